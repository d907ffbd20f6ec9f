"""The table: every name of torch's that ontrain uses or replaces and torch does not promise to keep."""

from __future__ import annotations

from ontrain.internals import kernel_canaries as k, object_canaries as o, replaced_canaries as r, tracing_canaries as t
from ontrain.internals.constants import GLOBAL_HOOKS, LIBRARY_FUNCTIONS, MODULE_HOOKS, MODULE_STATE, TALKATIVE_LOGGERS
from ontrain.internals.row import Row

__all__ = ["TABLE"]

_FUNCTIONS = "modules with a torch.autograd.Function that brings a backward of its own"
_CAPTURE = "capturing a module"
_TRANSFORMS = "a forward that calls torch.func.grad, vjp, jvp, jacrev, jacfwd or hessian"
_VMAP = "a forward that calls torch.vmap with a product whose result has its batch elsewhere than first"
_WITHOUT_VALUES = "the cache of captures, and models that make a cache of keys and values unasked"
_RECURRENT = "one graph for all lengths of an LSTM, GRU or RNN; each length is captured anew"
_COMPOSITES = "quick captures of what torch has to write in other operators; they take some tenths of a second more"
_APART = "quick captures of operators without a translation; torch writes the whole program anew"
_TRANSFORMING = tuple(
    f"torch._functorch.eager_transforms.{name}" for name in ("grad_and_value_impl", "_vjp_with_argnums")
)
_OPERATORS = "a forward that calls an operator registered by torch.library.custom_op"
_CHECKPOINT = "a forward that calls torch.utils.checkpoint.checkpoint"
_DECISIONS = "a capture of the branch on values that a batch takes; such modules are refused"
_CONVERSIONS = "capturing a module that converts its layers in forward"
_COND = "capturing torch.cond and torch.while_loop in a module whose parameters share memory"
_SCAN = "capturing torch's scan over sizes that vary"
_PIECES = 'torch.compile(backend="ontrain") and ORTModule(breaks="allow")'
_BLOCKS = "capturing torch.no_grad, torch.autocast, torch.cond and torch.while_loop in forward"
_PACKS = "a forward that packs sequences"
_PACKED = "packed products; others are taken"
_FUSED_LAMB = "ontrain.training.optim.FusedLamb"
_PROCESSES = "training in several processes that meet without a process group"
_CUDA_ATTENTION = "attention by torch's fused kernels on a GPU"
_ONEDNN_LSTM = "LSTMs by oneDNN; they run step by step without it"
_GAMMA = "draws from gamma and Dirichlet distributions by torch's kernels"
_NO_HOOKS = "ORTModule's checks for hooks and changed attributes"
_DEFAULT_DEVICE = "a default device, or another mode that sees torch's functions, which is not the module's own"
_DISPATCHES = "a mode that sees torch's operators around a call, such as FlopCounterMode"
_SPARSE = "sparse matrices among the inputs and buffers of a module"

TABLE: tuple[Row, ...] = (
    # What is replaced while a module is traced
    Row("torch.autograd.function.FunctionMeta.__getattribute__", "see calls of autograd functions",
        r.ask_class_for_forward, _FUNCTIONS, replaced=True),
    Row("torch.autograd.Function.apply._forward_cls", "name the autograd functions that a trace has not seen",
        r.records_forward, _FUNCTIONS, of_instance=True),
    Row("torch.utils.checkpoint.CheckpointFunction.apply", "take a checkpoint as its function", None,
        "a forward that calls a reentrant checkpoint", replaced=True,
        callers=("torch.utils.checkpoint.CheckpointFunction.forward",)),
    Row("torch.utils.checkpoint._checkpoint_without_reentrant_generator", "take a checkpoint as its function",
        r.checkpoints, _CHECKPOINT, replaced=True, callers=("torch.utils.checkpoint.checkpoint",), until=(2, 13)),
    Row("torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl", "take a checkpoint as its function",
        r.checkpoints, _CHECKPOINT, replaced=True, callers=("torch.utils.checkpoint.checkpoint",), since=(2, 14)),
    Row("torch.autograd._engine_run_backward", "name the gradients that forward asks for", r.engine,
        "a forward that computes gradients itself", replaced=True,
        callers=("torch.autograd.grad", "torch.autograd.backward")),
    *(
        Row(f"torch._functorch.eager_transforms.{name}", "name the gradients that torch.func takes in forward", None,
            _TRANSFORMS, replaced=True, callers=_TRANSFORMING)
        for name in ("grad_increment_nesting", "_wrap_all_tensors", "_create_differentiable",
                     "_undo_create_differentiable", "_autograd_grad")
    ),
    Row("torch._functorch.eager_transforms._jvp_with_argnums", "differentiate forwards by gradients", None,
        "a forward that calls torch.func.jvp or jacfwd", replaced=True),
    Row("torch._functorch.eager_transforms._vjp_with_argnums", "differentiate forwards by gradients", None,
        _TRANSFORMS),
    Row("torch._functorch.apis.vmap_impl", "give each row of a batch its own gradient", None, _TRANSFORMS,
        replaced=True, callers=("torch.vmap",)),
    Row("torch._functorch.predispatch._remove_batch_dim_impl", "trace results whose batch is not their first dimension",
        None, _VMAP, replaced=True, callers=("torch._functorch.predispatch._remove_batch_dim",)),
    Row("torch.fx.experimental.proxy_tensor.make_fx", "write an operator in others", t.traces_operators, _APART),
    Row("torch._dispatch.python.enable_python_dispatcher", "write an operator in others for all sizes", None, _APART),
    Row("torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing", "compute what a trace has as one node", None,
        _VMAP),
    Row("torch._vmap_internals._vmap", "trace gradients of many adjoints at once", None,
        "a forward that calls torch.autograd.grad with is_grads_batched", replaced=True),
    Row("torch.autograd.forward_ad.enter_dual_level", "refuse forward-mode differentiation inside forward", None,
        "a forward that calls torch.autograd.forward_ad", replaced=True),
    Row("torch.Tensor.register_hook", "refuse hooks on gradients inside forward", r.registers_hooks,
        "a forward that registers hooks on gradients", replaced=True, callers=("torch.Tensor.register_hook",)),
    Row("torch.autograd.graph.saved_tensors_hooks.__enter__", "refuse hooks that change what autograd saves", None,
        "a forward with hooks on the tensors that autograd saves", replaced=True),
    Row("torch.fx.experimental.proxy_tensor._ModuleStackTracer.getattr", "show forward the module's own parts", None,
        "capturing a module with a part at two places", replaced=True),
    Row("torch.ctc_loss", "trace CTC as tensor operators", r.aligns, "capturing a CTC loss", replaced=True),
    Row("torch._subclasses.fake_impls.op_implementations_dict", "give the same slice the same size",
        t.holds_views, "a forward that writes through `view = x[:n]` with n out of a tensor", replaced=True),
    Row("torch._meta_registrations._meta_grouped_mm_common", "tell the shape of products of groups in any dtype", None,
        "capturing torch.nn.functional.grouped_mm in another dtype than bfloat16", replaced=True,
        callers=("torch._meta_registrations.meta_grouped_mm",)),
    Row("torch.linalg.lstsq", "trace least squares as tensor operators", None, "capturing torch.linalg.lstsq",
        replaced=True),
    Row("torch._VF._pack_padded_sequence", "keep the padded tensor beside packed rows", r.packs, _PACKS, replaced=True),
    Row("torch._VF._pad_packed_sequence", "lay packed rows out in steps", r.pads, _PACKS, replaced=True),
    *(
        Row(name, "run a recurrent layer over packed rows", None, _PACKS, replaced=True)
        for name in ("torch.nn.RNN.forward", "torch.nn.LSTM.forward", "torch.nn.GRU.forward")
    ),
    *(
        Row(f"torch._VF.{kind}", "give a recurrent layer the lengths of its sequences", None, _PACKS, replaced=True)
        for kind in ("rnn_tanh", "rnn_relu", "lstm", "gru")
    ),
    Row("torch.nn.modules.batchnorm._BatchNorm.forward", "count batches in a tensor", None,
        "capturing batch normalisation with momentum=None", replaced=True),
    Row("torch.nn.SyncBatchNorm.forward", "count batches in a tensor, and refuse several processes", None,
        "capturing SyncBatchNorm with momentum=None", replaced=True),
    Row("torch._C._nn.pad_sequence", "pad sequences to a length that varies", None,
        "one graph for all lengths that nn.utils.rnn.pad_sequence pads", replaced=True),
    *(
        Row(f"torch.{name}", "know the value in a submodule's name", None,
            'capturing a forward with `self.experts[f"{index}"]` for the index in a tensor', replaced=True)
        for name in ("Tensor.__format__", "nn.ModuleDict.__getitem__", "nn.ModuleDict.__contains__",
                     "fx._symbolic_trace._orig_module_getattr")
    ),
    Row("torch.Tensor.__bool__", "let checks of values pass", r.checks_values,
        "capturing a forward with an `assert` or `if …: raise` on values", replaced=True),
    Row("torch.SymBool.__bool__", "let checks of sizes pass", None,
        "capturing a forward with an `assert` or `if …: raise` on sizes that follow from values", replaced=True),
    Row("torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_expr", "answer what forward asks about values",
        None, _DECISIONS, replaced=True),
    Row("torch.fx.experimental.proxy_tensor.proxy_call", "know numbers that have to be constants of a graph", None,
        "capturing an operator with a number that varies where a graph has a constant", replaced=True),
    *(
        Row(f"torch.utils._sympy.reference.PythonReferenceAnalysis.{name}", "write down what holds of numbers", None,
            "a forward that divides a number out of a tensor and makes a size of the quotient", replaced=True)
        for name in ("ceil_to_int", "floor_to_int", "int_truediv")
    ),
    Row("torch.fx.experimental.proxy_tensor.get_proxy_mode", "run a program on values while it is traced",
        o.returns(None), _DECISIONS),
    Row("torch.fx.experimental.sym_node.SymNode._expr", "know the symbol of a number", None, _DECISIONS,
        of_instance=True),
    Row("torch.utils._sympy.value_ranges.ValueRanges", "know what no draw can change", None, _DECISIONS),
    Row("torch.utils._sympy.value_ranges.bound_sympy", "know what no draw can change", t.bounds, _DECISIONS),
    Row("torch._dynamo.convert_frame.compile_lock", "have TorchDynamo compile nothing while a module is traced", None,
        "capturing in one thread while torch.compile compiles in another"),
    Row("torch._dynamo.config.patch", "compute results without values anew", None, _DECISIONS),
    *(
        Row(f"{owner}.{name}", "compare tensors by operators that a trace has", None,
            "capturing a forward that asks whether two tensors are the same", replaced=True)
        for owner in ("torch", "torch.Tensor") for name in ("equal", "allclose")
    ),
    Row("torch.nn.Module.to", "let conversions to the same dtype pass", r.converts, _CONVERSIONS, replaced=True),
    Row("torch.random.default_generator", "know where forward sets torch's generator", None,
        "capturing a forward that calls torch.manual_seed or torch.set_rng_state", replaced=True,
        callers=("torch.random.manual_seed", "torch.random.set_rng_state")),
    Row("torch.fx.Tracer.call_module", "know which modules a trace is in behind one that raises an error", None,
        "capturing a forward that catches an error of a submodule", replaced=True),
    Row("torch.fx.Tracer.module_stack", "keep which modules a trace is in while a function is tried out", None,
        _FUNCTIONS, of_instance=True),
    Row("torch._library.custom_ops.OPDEFS", "find the code of operators that a program registers", None, _OPERATORS),
    *(
        Row(f"torch._library.custom_ops.CustomOpDef.{name}", "trace the code of such an operator", None, _OPERATORS,
            of_instance=True)
        for name in ("_backend_fns", "_init_fn", "_backward_fn", "_setup_context_fn")
    ),
    Row("torch.where", "let masks of bytes choose", None, "a forward that calls torch.where with a mask of bytes",
        replaced=True),
    Row("torch.as_tensor", "let sizes in a list vary", None, "one graph for all sizes that torch.as_tensor gets",
        replaced=True),
    Row("torch.nn.modules.transformer._detect_is_causal_mask", "keep an encoder from comparing its mask's values",
        r.detects_causal, "capturing nn.TransformerEncoder with a mask", replaced=True),
    Row("torch.nn.functional.handle_torch_function", "keep the weights of an absolute error", r.names_weights,
        "a forward that calls torch.nn.functional.l1_loss", replaced=True, callers=("torch.nn.functional.l1_loss",)),
    Row("torch._decomp.decompositions.one_layer_lstm", "find a recurrent layer's shapes at any length", None,
        _RECURRENT, replaced=True),
    Row("torch._decomp.decompositions.one_layer_rnn", "find a recurrent layer's shapes at any length", None,
        _RECURRENT, replaced=True),
    Row("torch._decomp.decompositions.select_one_layer_lstm_function",
        "find a recurrent layer's shapes at any length", r.decomposes, _RECURRENT, replaced=True),
    Row("torch.export.exported_program._collect_all_valid_cia_ops",
        "take apart those composite operators only that a program needs taken apart", o.collects, _COMPOSITES,
        replaced=True),
    Row("torch._dynamo.output_graph.SubgraphTracer.has_aliasing", "let branches share memory", None, _COND,
        replaced=True),
    Row("torch._higher_order_ops.scan.HopGraphMinCutPartitioner", "keep the body of a scan whole", t.partitions, _SCAN,
        replaced=True),
    Row("torch._higher_order_ops.scan.ScanAutogradImpl", "call the whole body of a scan", t.calls_forward, _SCAN,
        replaced=True),
    Row("torch._dynamo.output_graph.AliasingInfo", "answer that branches share none", t.fields_of_aliasing, _COND),
    Row("torch._dynamo.variables.builder.GraphArg", "tell numbers, parameters and buffers among the inputs of a graph",
        t.notes_inputs, _PIECES),
    Row("torch._C._ensureCUDADeviceGuardSet", "have torch's stand-in for missing GPUs outlive a thread", None,
        "capturing in a thread, with a torch for CUDA on a machine without a GPU"),
    Row("torch._export.non_strict_utils._tensor_min_max", "let Python's max and min take a vector", None,
        "capturing a forward that calls Python's max or min of a tensor", replaced=True),
    Row("torch._export.passes.replace_set_grad_with_hop_pass.replace_set_grad_with_hop_pass",
        "detach what no_grad blocks compute before torch loses where they end", r.passes_modes, _CAPTURE,
        replaced=True),
    Row("torch.export._trace.print", "keep a failed export from printing its graph", None,
        "errors without torch's own print", replaced=True, of_instance=True),
    Row("torch.compiler._is_compiling_flag", "look like an export", r.is_a_flag, _WITHOUT_VALUES,
        replaced=True),
    Row("torch.compiler._is_exporting_flag", "look like an export", r.is_a_flag, _WITHOUT_VALUES,
        replaced=True),
    Row("torch.compile", "refuse compiled parts in a run without values", None, _WITHOUT_VALUES,
        replaced=True),
    *(
        Row(f"{owner}.{kind}dropout{place}", "turn dropout off while a capture is compared with eager", None,
            "ontrain.capture.validate", replaced=True)
        for owner in ("torch", "torch._VF") for kind in ("", "feature_", "alpha_", "feature_alpha_")
        for place in ("", "_")
    ),
    Row("torch.nn.functional.scaled_dot_product_attention", "turn its dropout off while a capture is compared", None,
        "ontrain.capture.validate", replaced=True),
    # What is read or called around a trace
    Row("torch._C._set_grad_enabled", "set the mode of gradients where a trace sees it", t.modes, _CAPTURE),
    Row("torch._C._autograd._top_saved_tensors_default_hooks", "see whether the caller saves tensors in its own way",
        t.tells_saving_hooks, "torch.utils.checkpoint around an ORTModule"),
    Row("torch._C._nn._parse_to", "read the arguments of Module.to", t.parses_to,
        _CONVERSIONS),
    Row("torch.nn.modules.module._global_buffer_registration_hooks", "take back the hook of a failed export",
        o.is_a_dictionary, "the cache of captures behind an export that failed, up to torch 2.12"),
    Row("torch.nn.modules.batchnorm._BatchNorm", "find batch normalisations of every kind", o.is_base_of_batch_norms,
        "capturing a module with batch normalisation"),
    Row("torch._subclasses.fake_tensor.FakeTensor", "know tensors without values", None, "the cache of captures"),
    Row("torch._subclasses.fake_tensor.FakeTensorMode", "run forward on tensors without values", t.fakes,
        _WITHOUT_VALUES),
    Row("torch.utils._python_dispatch.TorchDispatchMode", "write down the operators that forward calls", t.dispatches,
        "the cache of captures"),
    Row("torch._C._DisableTorchDispatch", "read a constant under that mode", t.dispatches_not, "the cache of captures"),
    Row("torch._C._dispatch_has_kernel_for_dispatch_key", "know which operators autocast casts by their names",
        o.knows_casts, "eager's dtypes of composite operators under autocast"),
    Row("torch._ops.OpOverload", "read an operator's schema", t.knows_operators, _CAPTURE),
    *(
        Row(f"torch._ops.OpOverload.{name}", "read an operator's schema and name, and call it without detours",
            t.knows_operators_of_instance, "capturing a module, and the torch provider", of_instance=True)
        for name in ("_schema", "_overloadname", "_op")
    ),
    Row("torch._ops.HigherOrderOperator", "know torch.cond and its like", t.nests, _BLOCKS),
    Row("torch._ops.HigherOrderOperator._name", "tell them apart", t.nests_of_instance, _BLOCKS, of_instance=True),
    Row("torch._check", "pass by what a trace only asserts", None, "capturing a forward that calls torch._check"),
    Row("torch.ops.aten._has_compatible_shallow_copy_type", "notice `x.data = …` in a forward", None,
        "telling a forward that gives a tensor other memory"),
    Row("torch.ops.aten._local_scalar_dense", "translate tensor.item()", None,
        "capturing a forward that calls tensor.item()"),
    *(
        Row(f"{module}.{name}", "say which line branches on values", o.is_an_error,
            "naming the line of a forward that branches on values, and its checks of values")
        for module, name in (
            ("torch._subclasses.fake_tensor", "DataDependentOutputException"),
            ("torch._subclasses.fake_tensor", "DynamicOutputShapeException"),
            ("torch.fx.experimental.symbolic_shapes", "GuardOnDataDependentSymNode"),
        )
    ),
    *(
        Row(name, "keep its lines out of an error", o.logs_under_its_name, "errors without torch's own log")
        for name in TALKATIVE_LOGGERS
    ),
    *(
        Row(name, "know torch's own autograd functions", o.has_functions_of_its_own,
            "modules that call torch.cond, torch.while_loop, scan, a checkpoint, or a custom operator with a "
            "derivative")
        for name in sorted(LIBRARY_FUNCTIONS)
    ),
    Row("torch.utils._pytree", "walk through nested tensors", o.maps_trees,
        f"{_FUNCTIONS}, and ontrain.training.data.on_device"),
    # Modules and tensors
    *(
        Row(f"torch.nn.Module.{name}", "read a module's tables", o.tables_of_modules, _CAPTURE, of_instance=True)
        for name in (*MODULE_STATE, "_non_persistent_buffers_set")
    ),
    *(
        Row(f"torch.nn.Module.{name}", "find hooks", o.tables_of_hooks, _NO_HOOKS, of_instance=True)
        for name in MODULE_HOOKS
    ),
    *(
        Row(f"torch.nn.modules.module.{name}", "find the hooks of all modules", o.is_a_dictionary, _NO_HOOKS,
            replaced=True)
        for name in GLOBAL_HOOKS
    ),
    Row("torch._C._len_torch_dispatch_stack", "know whether a mode sees operators", o.returns(0), _DISPATCHES),
    Row("torch.utils._python_dispatch._get_current_dispatch_mode_stack", "know which modes see operators",
        t.lists_dispatch_modes, _DISPATCHES),
    Row("torch.utils._python_dispatch._disable_current_modes", "capture out of the sight of these modes",
        t.leaves_dispatch_modes, _DISPATCHES),
    Row("torch.nn.Module._apply", "convert the wrapped module with its wrapper", None, "ORTModule.to"),
    Row("torch.Tensor._version", "notice writes to tensors", o.counts_writes, "ORTModule, and ORTTrainer on a module",
        of_instance=True),
    Row("torch.nn.Parameter._is_param", "have forward find that an argument is a parameter", o.marks_parameters,
        "an argument that is an nn.Parameter", of_instance=True),
    *(
        Row(f"torch.Tensor.{name}", "refuse hooks on parameters", o.tables_of_parameter_hooks, "ORTTrainer on a module",
            of_instance=True)
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
    ),
    Row("torch.Tensor._indices", "take sparse matrices apart", o.shows_places, _SPARSE, of_instance=True),
    Row("torch.Tensor._values", "take sparse matrices apart", o.shows_places, _SPARSE, of_instance=True),
    Row("torch.Tensor._nnz", "know where forward counts the places of a sparse matrix", o.counts_places, _SPARSE),
    Row("torch._sparse_sum", "sum a sparse matrix without merging its places", o.sums_sparse, _SPARSE),
    Row("torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors", "make sparse matrices of sizes that vary",
        o.makes_sparse, _SPARSE),
    Row("torch.Tensor._make_wrapper_subclass", "make outputs that are computed when looked at", o.wraps,
        "ORTModule with lazy outputs"),
    Row("torch._C.DisableTorchFunctionSubclass", "ask such an output for its shape", None,
        "ORTModule with lazy outputs"),
    Row("torch._C.DisableTorchFunction", "run plans where a default device is set", t.turns_modes_off,
        _DEFAULT_DEVICE),
    Row("torch._C._len_torch_function_stack", "know whether a default device is set", o.returns(0), _DEFAULT_DEVICE),
    Row("torch.overrides._get_current_function_mode_stack", "know which modes see a forward", t.lists_modes,
        _DEFAULT_DEVICE),
    Row("torch.utils._device.DeviceContext", "tell a default device from other modes", None,
        _DEFAULT_DEVICE),
    Row("torch._C._is_tracing", "refuse a call within torch.jit.trace", o.returns(False), "ORTModule"),
    Row("torch._C._functorch.peek_interpreter_stack", "refuse a call within torch.func", o.returns(None), "ORTModule"),
    *(
        Row(f"torch._C._functorch.{name}", "leave the levels of torch.vmap after an error", None, _CAPTURE)
        for name in ("get_dynamic_layer_stack_depth", "pop_dynamic_layer_stack_and_undo_to_depth")
    ),
    Row("torch._C._functorch.is_legacy_batchedtensor", "refuse a batch of adjoints",
        o.returns(False, o.number()), "the backward of an ORTModule"),
    Row("torch._C._functorch.is_functorch_wrapped_tensor", "find the memory of a tensor within torch.func",
        o.returns(False, o.number()), _TRANSFORMS),
    Row("torch._C._functorch.get_unwrapped", "find the memory of a tensor within torch.func", None, _TRANSFORMS),
    Row("torch.autograd.forward_ad._current_level", "refuse forward-mode differentiation", t.has_no_level, "ORTModule",
        of_instance=True),
    Row("torch._C._current_graph_task_id", "know a checkpoint's second run", o.returns(-1),
        "ontrain.training.inspection"),
    Row("torch.UntypedStorage._cdata", "tell empty memory apart", t.tells_storages_apart, "the torch provider",
        of_instance=True),
    # Processes
    Row("torch.distributed.TCPStore", "meet the other processes before there is a group", o.keeps_a_store, _PROCESSES),
    Row("torch.distributed.rendezvous._torchelastic_use_agent_store", "know whether torchrun keeps the store",
        o.tells_who_keeps, _PROCESSES),
    # Kernels
    Row("torch._foreach_copy_", "copy a matrix strip by strip", k.multiplies_lists("copy_", list),
        "copies of transposed matrices by the torch provider"),
    Row("torch._foreach_norm", "norms of many tensors on a GPU", k.multiplies_lists("norm"),
        "clipping by the global norm on a GPU"),
    Row("torch._foreach_mul_", "update parameters", k.multiplies_lists("mul_", 0.5),
        _FUSED_LAMB),
    Row("torch._foreach_add_", "update parameters", k.multiplies_lists("add_", list, alpha=0.5), _FUSED_LAMB),
    Row("torch._foreach_addcmul_", "update moments", k.multiplies_lists("addcmul_", list, list, value=0.5),
        _FUSED_LAMB),
    Row("torch._foreach_sqrt", "divide by the second moment", k.multiplies_lists("sqrt"), _FUSED_LAMB),
    Row("torch._foreach_div_", "divide by the second moment", k.multiplies_lists("div_", list), _FUSED_LAMB),
    Row("torch._foreach_div", "correct the first moment", k.multiplies_lists("div", 0.5), _FUSED_LAMB),
    Row("torch._fused_adam_", "Adam in one kernel", k.fuses_adam(False),
        "Adam by the torch provider, and ontrain.training.optim.FusedAdam"),
    Row("torch._fused_adamw_", "AdamW in one kernel", k.fuses_adam(True),
        "AdamW by the torch provider, and ontrain.training.optim.FusedAdam"),
    Row("torch._amp_foreach_non_finite_check_and_unscale_", "scale gradients, and find infinite ones", k.fuses_amp,
        "ontrain.training.optim.FP16_Optimizer"),
    Row("torch.ops.aten._softmax_backward_data", "the adjoint of softmax", k.softmax_backward(False),
        "training through softmax and attention by the torch provider"),
    Row("torch.ops.aten._log_softmax_backward_data", "the adjoint of log-softmax", k.softmax_backward(True),
        "training through log-softmax and cross-entropy by the torch provider"),
    Row("torch.ops.aten.native_layer_norm_backward", "three adjoints, read by their places", k.layer_norm_backward,
        "training through layer normalisation by the torch provider"),
    Row("torch.ops.aten.native_batch_norm_backward", "three adjoints, read by their places", k.batch_norm_backward,
        "training through batch normalisation by the torch provider"),
    Row("torch.ops.aten.native_group_norm_backward", "three adjoints, read by their places", k.group_norm_backward,
        "training through normalisation by groups and instances by the torch provider"),
    Row("torch.ops.aten._adaptive_avg_pool2d_backward", "the adjoint of means", k.adaptive_average_backward,
        "training through adaptive average pooling by the torch provider"),
    Row("torch.ops.aten._embedding_bag_dense_backward", "the adjoint of bags' rows", k.embedding_bag_backward,
        "training through bags of an embedding by the torch provider"),
    Row("torch.ops.aten._ctc_loss", "losses over alignments", k.aligns(False),
        "connectionist temporal classification by the torch provider"),
    Row("torch.ops.aten._ctc_loss_backward", "its adjoint", k.aligns(True),
        "training through connectionist temporal classification by the torch provider"),
    Row("torch.ops.aten.convolution_backward", "three adjoints, read by their places", k.convolution_backward,
        "training through convolutions by the torch provider"),
    Row("torch.ops.aten.mkldnn_rnn_layer", "a layer of an LSTM", k.runs_lstm, _ONEDNN_LSTM),
    Row("torch.ops.aten.mkldnn_rnn_layer_backward", "seven adjoints, read by their places", k.lstm_backward,
        _ONEDNN_LSTM),
    Row("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu", "attention on a CPU", k.attention_forward,
        "attention without dropout by the torch provider on a CPU"),
    Row("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward", "its adjoints", k.attention_backward,
        "training through attention without dropout by the torch provider on a CPU"),
    Row("torch.ops.aten._scaled_dot_product_flash_attention", "attention on a GPU", k.flash_attention(False),
        _CUDA_ATTENTION, device="cuda"),
    Row("torch.ops.aten._scaled_dot_product_flash_attention_backward", "its adjoints", k.flash_attention(True),
        _CUDA_ATTENTION, device="cuda"),
    Row("torch.ops.aten._scaled_dot_product_efficient_attention", "attention on a GPU", k.efficient_attention(False),
        _CUDA_ATTENTION, device="cuda"),
    Row("torch.ops.aten._scaled_dot_product_efficient_attention_backward", "its adjoints",
        k.efficient_attention(True), _CUDA_ATTENTION, device="cuda"),
    *(
        Row(f"torch.ops.aten.{name}", "attention of packed sequences on a GPU", None, _CUDA_ATTENTION, device="cuda")
        for name in ("_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
                    "_efficient_attention_backward")
    ),
    Row("torch._standard_gamma", "draw from gamma distributions", None, _GAMMA),
    Row("torch._standard_gamma_grad", "differentiate these draws", None, _GAMMA),
    Row("torch._sample_dirichlet", "draw from Dirichlet distributions", None, _GAMMA),
    Row("torch._dirichlet_grad", "differentiate these draws", None, _GAMMA),
    Row("torch.ops.mkldnn._linear_pointwise", "products by oneDNN", k.linear, "products by oneDNN; others are taken"),
    Row("torch.ops.mkldnn._reorder_linear_weight", "linear layers by oneDNN with weights in its own order",
        k.linear_ordered, "linear layers with weights in oneDNN's own order; they are rearranged in each run"),
    Row("torch.ops.mkldnn._reorder_convolution_weight", "products by oneDNN in memory of ours", None, _PACKED),
    Row("torch.ops.mkldnn.data_ptr", "products by oneDNN in memory of ours", None, _PACKED),
    Row("torch.ops.mkldnn._nbytes", "products by oneDNN in memory of ours", None, _PACKED),
    Row("torch.ops.mkldnn._convolution_pointwise", "convolutions and what follows them by oneDNN", k.convolves_fused,
        "convolutions by oneDNN with filters in its own order; torch.convolution is taken"),
    Row("torch.ops.mkldnn._convolution_pointwise_", "products by oneDNN in memory of ours", k.convolves_packed,
        _PACKED),
)  # fmt: skip
