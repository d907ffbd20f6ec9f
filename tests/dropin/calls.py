"""Calls of each public name of onnxruntime's that ontrain has as an object of its own: right ones and wrong ones.

A call takes a `Maker`, whose `m` is onnxruntime or ontrain. What onnxruntime gives or raises is the oracle.
"""

from __future__ import annotations

import dataclasses
import importlib
import threading
from collections.abc import Callable

import numpy as np

from tests.dropin.models import WEIGHT
from tests.dropin.twins import Maker

X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
Call = Callable[[Maker], object]


def state(value):
    """What an OrtValue tells of itself."""
    told = [value.data_type(), value.is_tensor(), value.is_tensor_sequence(), value.has_value(), value.device_name()]
    if value.is_tensor():
        told += [value.element_type(), value.shape(), value.tensor_size_in_bytes(), value.numpy()]
    return told


def entry(options, key="session.disable_prepacking", value="1"):
    options.add_session_config_entry(key, value)
    return options.get_session_config_entry(key)


def options_with(t, **settings):
    options = t.m.SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    return options


def changed(method, *arguments, model="scaled", feeds=None):
    """A run of a session whose options were changed by a method."""

    def call(t):
        options = t.m.SessionOptions()
        values = [argument(t) if callable(argument) else argument for argument in arguments]
        getattr(options, method)(*values)
        session = t(model, options)  # the values live until it is made
        del values
        return session.run(None, feeds or {"x": X})

    return call


def value_of(array):
    return lambda t: t.m.OrtValue.ortvalue_from_numpy(array)


def asynchronous(feeds, *data):
    def call(t):
        done, told = threading.Event(), []

        def callback(results, user_data, error):
            told.extend([results, user_data, bool(error)])
            done.set()

        t().run_async(["y"], feeds, callback, *data)
        assert done.wait(60)
        return told

    return call


def bound(work):
    """What work on a binding of the model `scaled` comes to."""
    return lambda t: work(t, t().io_binding())


def fed_binding(session, x=X):
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    return binding


def ran(work):
    """What work on a binding comes to, after a run."""

    def call(t):
        session = t()
        binding = fed_binding(session)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        return work(t, binding)

    return call


def run_bound(*names, model="scaled", feeds=None, told=state):
    """All outputs of a model as values."""

    def call(t):
        session = t(model)
        binding = session.io_binding()
        for name, array in (feeds or {"x": X}).items():
            binding.bind_ortvalue_input(name, t.m.OrtValue.ortvalue_from_numpy(array))
        for name in names:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        return [told(value) for value in binding.get_outputs()]

    return call


def without_input(t):
    session = t()
    binding = session.io_binding()
    binding.bind_output("y")
    session.run_with_iobinding(binding)


def without_output(t):
    session = t()
    session.run_with_iobinding(fed_binding(session))


def of_another_session(t):
    binding = fed_binding(t())
    binding.bind_output("y")
    t().run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def after_clearing(kind):
    def call(t):
        session = t()
        binding = fed_binding(session)
        binding.bind_output("y")
        getattr(binding, f"clear_binding_{kind}")()
        session.run_with_iobinding(binding)

    return call


def vectors(t, session=None, names=("x",)):
    """The arguments of `run_with_ortvaluevector`."""
    state_ = importlib.import_module(f"{t.m.__name__}.capi.onnxruntime_pybind11_state")
    feeds, fetches = state_.OrtValueVector(), state_.OrtValueVector()
    for _ in names:
        feeds.push_back(t.m.OrtValue.ortvalue_from_numpy(X)._ortvalue)
    device = t.m.OrtDevice.make("cpu", 0)._get_c_device()
    (session or t()).run_with_ortvaluevector(t.m.RunOptions(), list(names), feeds, ["y"], fetches, [device])
    return [value.numpy() for value in fetches]


def recorded(t, entry="1"):
    options = t.m.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", entry)
    options.graph_optimization_level = t.m.GraphOptimizationLevel.ORT_DISABLE_ALL
    parts = t(options=options).get_provider_graph_assignment_info()
    return [(n.name, n.domain, n.op_type) for part in parts for n in part.get_nodes()]


def described(values):
    return [(value.name, value.type, value.shape, str(value)) for value in values]


def told(meta):
    names = "producer_name graph_name domain description graph_description version custom_metadata_map"
    return [getattr(meta, name) for name in names.split()]


def written_meta(t):
    meta = t().get_modelmeta()
    meta.version, meta.custom_metadata_map = 7, {"a": "b"}
    return told(meta)


def options_back(t):
    requested = options_with(t, logid="mine", intra_op_num_threads=1)
    requested.add_session_config_entry("session.disable_prepacking", "1")
    options = t(options=requested).get_session_options()
    return options.logid, options.intra_op_num_threads, options.get_session_config_entry("session.disable_prepacking")


def infos(values):
    return [(info.device_id, str(info.mem_type)) for info in values]


def extra(name):
    """A call with an argument too many."""
    return lambda t: getattr(t(), name)(1, 2, 3, 4, 5, 6, 7)


def kept_values(t):
    """Values outlive the session and the binding."""
    session = t()
    values = session.run_with_ort_values(None, {"x": t.m.OrtValue.ortvalue_from_numpy(X)})
    del session
    return [state(value) for value in values]


def rewritten(t):
    (value,) = t().run_with_ort_values(["y"], {"x": t.m.OrtValue.ortvalue_from_numpy(X)})
    value.update_inplace(X)
    return state(value)


def of_type(model, array):
    """What each way of running gives for an element type."""

    def call(t):
        session = t(model)
        binding = session.io_binding()
        binding.bind_cpu_input("x", array)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        (value,) = session.run_with_ort_values(None, {"x": t.m.OrtValue.ortvalue_from_numpy(array)})
        return session.run(None, {"x": array}), binding.copy_outputs_to_cpu(), state(value)

    return call


def adapter(t):
    """The path of an adapter that stands for the weight of `overridable`."""
    form = t.m.AdapterFormat()
    form.set_adapter_version(1)
    form.set_model_version(3)
    form.set_parameters({"w": t.m.OrtValue.ortvalue_from_numpy(WEIGHT * 2)})
    form.export_adapter(str(t.scratch / "w.adapter"))
    return str(t.scratch / "w.adapter")


def with_adapter(t):
    options, weights = t.m.RunOptions(), t.m.LoraAdapter()
    weights.Load(adapter(t))
    options.add_active_adapter(weights)
    return t("overridable").run(None, {"x": X}, options)


def run_option(**settings):
    def call(t):
        options = t.m.RunOptions()
        for name, value in settings.items():
            setattr(options, name, value)
        return [getattr(options, name) for name in settings], t().run(None, {"x": X}, options)

    return call


def setting(**settings):
    def call(t):
        options = options_with(t, **settings)
        return [getattr(options, name) for name in settings], t(options=options).run(None, {"x": X})

    return call


def leveled(kind, member, name):
    return lambda t: setting(**{name: getattr(getattr(t.m, kind), member)})(t)


TYPES: dict[str, tuple[Call, ...]] = {
    f"elements of {model}": (of_type(model, array),)
    for model, array in {
        "booleans": np.array([True, False]), "integers": np.array([1, -2]), "bytes": np.array([1, 255], np.uint8),
        "doubles": np.array([0.1, 2]), "shorts": np.array([-3, 7], np.int16),
        "halves": np.array([0.5, 7], np.float16), "words": np.array([3, 7], np.uint16),
        "unsigned": np.array([3, 2**32 - 1], np.uint32), "wide": np.array([3, 2**64 - 1], np.uint64),
    }.items()
}  # fmt: skip
"""Element types, through all ways of running."""

SESSION: dict[str, tuple[Call, ...]] = {
    "__init__": (
        lambda t: t().run(None, {"x": X}), lambda t: t("nothing"), lambda t: t.m.InferenceSession(None),
        lambda t: t.m.InferenceSession(), lambda t: t.m.InferenceSession(b""), lambda t: t(options=3),
        lambda t: t.m.InferenceSession(t.path("scaled"), "text"), lambda t: t.m.InferenceSession(t.path("scaled"), 3),
        lambda t: t.m.InferenceSession(t.bytes("scaled"), {}).run(None, {"x": X}), lambda t: t(options="text"),
        lambda t: t("never_made"), lambda t: t("newer_standard"), lambda t: t("newer_form"),
        lambda t: t(disabled_optimizers=["ConstantFolding", "Nonsense"]).run(None, {"x": X}),
        lambda t: t.m.InferenceSession(t.path("scaled"), None, t.providers, [{}]).run(None, {"x": X}),
        lambda t: t.m.InferenceSession(t.path("scaled"), providers=t.providers, nonsense=1).run(None, {"x": X}),
    ),
    "run": (
        lambda t: t().run(["y"], {"x": X}), lambda t: t().run(None, {"x": X.astype(np.float64)}),
        lambda t: t().run(None, {}), lambda t: t().run(None, {"x": X[0]}), lambda t: t().run(None, {"x": X[:, :1]}),
        lambda t: t().run(None, {"x": "text"}), lambda t: t().run(None, None),
        lambda t: t().run(None, {"x": None}), lambda t: t("strings").run(None, {"x": None}),
        lambda t: t("sequence_in").run(None, {"x": None}), lambda t: t().run(None, {"x": np.array(1, np.float32)}),
        lambda t: t().run(["y", "y"], {"x": X}), lambda t: t().run("y", {"x": X}), lambda t: t().run([3], {"x": X}),
        lambda t: t().run([""], {"x": X}), lambda t: t().run(None, {"x": X, 3: X}), lambda t: t().run(None, [X]),
        lambda t: t().run(None, {"x": X}, 3), lambda t: t().run(("y",), {"x": X}), lambda t: t().run(None),
        lambda t: t().run(None, {"x": X[:0]}), lambda t: t().run(None, {"x": [[1.0, "a"]]}),
        lambda t: t().run(None, {"x": [[1.0], [1.0, 2.0]]}),
        lambda t: t("strings").run(None, {"x": np.array([1, 2])}), lambda t: t("booleans").run(None, {"x": [True]}),
        lambda t: t("integers").run(None, {"x": np.array([1, 2], np.int32)}),
        lambda t: t("bytes").run(None, {"x": [1, 300]}), lambda t: t("integers").run(None, {"x": [1.5]}),
        lambda t: t("two_inputs").run(None, {"a": [True, False]}),
        lambda t: t("zip_map").run(None, {"x": X}),
        lambda t: t("sequence_in").run(None, {"x": [X, X]}), lambda t: t("sequence_in").run(None, {"x": X}),
        lambda t: t("sequence_in").run(None, {"x": []}), lambda t: t("sequence_in").run(None, {"x": [X, X[0]]}),
        lambda t: t("sequence_length").run(None, {"x": [X.astype(np.float64)]}),
        lambda t: t("sequence_at").run(None, {"x": X, "i": np.array(1)}),
        lambda t: t("sequence_at").run(None, {"x": X, "i": np.array(9)}),
        lambda t: t("of_map").run(None, {"x": {1: 2.0, 0: 3.0}}), lambda t: t("of_map").run(None, {"x": [1.0]}),
    ),
    "run_async": (
        asynchronous({"x": X}, 5), asynchronous({"x": X.astype(np.float64)}, 5), asynchronous({"x": X}),
        asynchronous({}, None), asynchronous({"z": X}, None),
    ),
    "run_with_iobinding": (
        run_bound("y"), without_input, without_output, of_another_session, lambda t: t().run_with_iobinding(None),
        after_clearing("inputs"), after_clearing("outputs"), lambda t: t().run_with_iobinding(3),
        run_bound("y", model="sequence_out", feeds={"a": X[0], "b": X[0]}),
        run_bound("y", model="zip_map"), run_bound("y", model="strings", feeds={"x": np.array(["a", "bc"], object)}),
    ),
    "run_with_ort_values": (
        kept_values, rewritten, lambda t: t().run_with_ort_values(["y"], {}),
        lambda t: t().run_with_ort_values(["z"], {"x": value_of(X)(t)}),
        lambda t: t().run_with_ort_values(["y"], {"x": value_of(X.astype(np.float64))(t)}),
        lambda t: t().run_with_ort_values(["y"], {"x": value_of(X[0])(t)}),
    ),
    "run_with_ortvaluevector": (vectors, lambda t: vectors(t, names=("z",)), lambda t: vectors(t, names=("x", "x"))),
    "get_inputs": (lambda t: described(t().get_inputs()), extra("get_inputs")),
    "get_outputs": (lambda t: described(t().get_outputs()), extra("get_outputs")),
    "get_overridable_initializers": (
        lambda t: described(t("overridable").get_overridable_initializers()), extra("get_overridable_initializers"),
    ),
    "get_modelmeta": (lambda t: told(t().get_modelmeta()), written_meta, extra("get_modelmeta")),
    "get_providers": (lambda t: len(t().get_providers()), extra("get_providers")),
    "get_provider_options": (
        lambda t: [type(told) for told in t().get_provider_options().values()], extra("get_provider_options"),
    ),
    "set_providers": (
        lambda t: [len(session.get_providers()) for session in [t()] if not session.set_providers(t.providers)],
        lambda t: t().set_providers(["Nonsense"]), lambda t: t().set_providers(t.providers, []),
        lambda t: t().set_providers(t.providers, [{}, {}]), lambda t: t().set_providers([3]),
        lambda t: t().set_providers(t.providers[0]), lambda t: t().set_providers(t.providers, {}),
    ),
    "get_session_options": (options_back, extra("get_session_options")),
    "_inputs_meta": (lambda t: described(t()._inputs_meta),),
    "_outputs_meta": (lambda t: described(t()._outputs_meta),),
    "_overridable_initializers": (lambda t: described(t("overridable")._overridable_initializers),),
    "_model_meta": (lambda t: told(t()._model_meta),), "_providers": (lambda t: len(t()._providers),),
    "_provider_options": (lambda t: len(t()._provider_options),),
    "_sess_options": (lambda t: t(options=options_with(t, logid="mine"))._sess_options.logid,),
    "io_binding": (run_bound("y"), extra("io_binding")),
    "end_profiling": (lambda t: t().end_profiling(), extra("end_profiling")),
    "get_profiling_start_time_ns": (
        lambda t: type(t().get_profiling_start_time_ns()), extra("get_profiling_start_time_ns"),
    ),
    "disable_fallback": (lambda t: t().disable_fallback(), extra("disable_fallback")),
    "enable_fallback": (lambda t: t().enable_fallback(), extra("enable_fallback")),
    "create_ortvalue_from_shape_and_type": (
        lambda t: t().create_ortvalue_from_shape_and_type([2, 3], np.int64, "cpu").data_type(),
        lambda t: t().create_ortvalue_from_shape_and_type([2, 3], np.int64, "nonsense"),
        lambda t: t().create_ortvalue_from_shape_and_type([-2], np.int64, "cpu"),
    ),
    "get_input_memory_infos": (lambda t: infos(t().get_input_memory_infos()), extra("get_input_memory_infos")),
    "get_output_memory_infos": (lambda t: infos(t().get_output_memory_infos()), extra("get_output_memory_infos")),
    "get_provider_graph_assignment_info": (
        recorded, lambda t: recorded(t, "0"), lambda t: t().get_provider_graph_assignment_info(),
    ),
    "get_tuning_results": (lambda t: t().get_tuning_results(), extra("get_tuning_results")),
    "set_tuning_results": (lambda t: t().set_tuning_results([]), extra("set_tuning_results")),
}  # fmt: skip

BINDING: dict[str, tuple[Call, ...]] = {
    "__init__": (
        lambda t: t.m.IOBinding(t()).get_outputs(), lambda t: t.m.IOBinding(None), lambda t: t.m.IOBinding(),
    ),
    "bind_cpu_input": (
        bound(lambda t, b: b.bind_cpu_input("x", X)), bound(lambda t, b: b.bind_cpu_input("z", X)),
        bound(lambda t, b: b.bind_cpu_input("x", None)),
        bound(lambda t, b: b.bind_cpu_input("x", X.astype(np.float64))),
        bound(lambda t, b: b.bind_cpu_input("x", X[0])),
    ),
    "bind_input": (
        bound(lambda t, b: b.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)),
        bound(lambda t, b: b.bind_input("x", "cpu", 0, 1, X.shape, X.ctypes.data)),
        bound(lambda t, b: b.bind_input("z", "cpu", 0, np.float32, X.shape, X.ctypes.data)),
        bound(lambda t, b: b.bind_input("x", "nonsense", 0, np.float32, X.shape, X.ctypes.data)),
        bound(lambda t, b: b.bind_input("x", "cpu", 0, np.float32, X.shape)),
    ),
    "bind_output": (
        bound(lambda t, b: b.bind_output("y")),
        bound(lambda t, b: b.bind_output("y", "cpu", 0, np.float32, [2, 2])),
        bound(lambda t, b: b.bind_output("y", "nonsense")), bound(lambda t, b: b.bind_output()),
    ),
    "bind_ortvalue_input": (
        bound(lambda t, b: b.bind_ortvalue_input("x", value_of(X)(t))),
        bound(lambda t, b: b.bind_ortvalue_input("z", value_of(X)(t))),
    ),
    "bind_ortvalue_output": (
        bound(lambda t, b: b.bind_ortvalue_output("y", value_of(X.copy())(t))),
        bound(lambda t, b: b.bind_ortvalue_output("y", X)),
    ),
    "get_outputs": (ran(lambda t, b: [state(v) for v in b.get_outputs()]), bound(lambda t, b: b.get_outputs())),
    "get_outputs_as_ortvaluevector": (
        ran(lambda t, b: [v.numpy() for v in b.get_outputs_as_ortvaluevector()]),
        bound(lambda t, b: list(b.get_outputs_as_ortvaluevector())),
    ),
    "copy_outputs_to_cpu": (ran(lambda t, b: b.copy_outputs_to_cpu()), bound(lambda t, b: b.copy_outputs_to_cpu())),
    "clear_binding_inputs": (bound(lambda t, b: b.clear_binding_inputs()), after_clearing("inputs")),
    "clear_binding_outputs": (
        ran(lambda t, b: (b.clear_binding_outputs(), b.get_outputs())), after_clearing("outputs"),
    ),
    "synchronize_inputs": (bound(lambda t, b: b.synchronize_inputs()),),
    "synchronize_outputs": (bound(lambda t, b: b.synchronize_outputs()),),
}  # fmt: skip

SETTINGS: dict[str, tuple[Call, ...]] = {
    "__init__": (lambda t: t(options=t.m.SessionOptions()).run(None, {"x": X}), lambda t: t.m.SessionOptions(3)),
    "add_external_initializers": (
        changed("add_external_initializers", ["w"], lambda t: [value_of(WEIGHT * 3)(t)], model="outside"),
        changed("add_external_initializers", ["w"], []), changed("add_external_initializers", ["w"], [3]),
        changed("add_external_initializers", 3, 3),
        changed("add_external_initializers", ["v"], lambda t: [value_of(WEIGHT * 3)(t)], model="outside"),
        changed("add_external_initializers", ["w"], lambda t: [value_of(WEIGHT[:1])(t)], model="outside"),
        changed("add_external_initializers", ["w"], lambda t: [value_of(WEIGHT.astype(int))(t)], model="outside"),
    ),
    "add_external_initializers_from_files_in_memory": (
        changed("add_external_initializers_from_files_in_memory", ["a"], [b"abc"], [3]),
        changed("add_external_initializers_from_files_in_memory", ["a"], [b"abc"], []),
        changed("add_external_initializers_from_files_in_memory", ["a"], [3], [3]),
    ),
    "add_free_dimension_override_by_name": (
        changed("add_free_dimension_override_by_name", "named", 2, model="denoted"),
        changed("add_free_dimension_override_by_name", "named", 3, model="denoted"),
        changed("add_free_dimension_override_by_name", "nonsense", 2),
        changed("add_free_dimension_override_by_name", 3, 2),
        changed("add_free_dimension_override_by_name", "named", "2"),
    ),
    "add_free_dimension_override_by_denotation": (
        changed("add_free_dimension_override_by_denotation", "DATA_BATCH", 2, model="denoted"),
        changed("add_free_dimension_override_by_denotation", "DATA_BATCH", 5, model="denoted"),
        changed("add_free_dimension_override_by_denotation", 3, 2),
    ),
    "add_initializer": (
        changed("add_initializer", "w", value_of(WEIGHT * 2)), changed("add_initializer", "nonsense", value_of(WEIGHT)),
        changed("add_initializer", "w", WEIGHT), changed("add_initializer", 3, 3),
        changed("add_initializer", "w", value_of(WEIGHT[:1])),
    ),
    "add_session_config_entry": (
        lambda t: entry(t.m.SessionOptions()), lambda t: entry(t.m.SessionOptions(), value=1),
        lambda t: entry(t.m.SessionOptions(), key=""), lambda t: entry(t.m.SessionOptions(), key="k" * 5000),
        changed("add_session_config_entry", "session.nonsense", "1"),
    ),
    "set_load_cancellation_flag": (
        changed("set_load_cancellation_flag", True), changed("set_load_cancellation_flag", False),
        changed("set_load_cancellation_flag", "text"),
    ),
    "register_custom_ops_library": (
        changed("register_custom_ops_library", "/nonsense.so"), changed("register_custom_ops_library", 3),
    ),
    "graph_optimization_level": (
        *(leveled("GraphOptimizationLevel", f"ORT_{level}", "graph_optimization_level")
          for level in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT", "ENABLE_ALL")),
        setting(graph_optimization_level=99), setting(graph_optimization_level="all"),
    ),
    "execution_mode": (leveled("ExecutionMode", "ORT_PARALLEL", "execution_mode"), setting(execution_mode=1)),
    "execution_order": (leveled("ExecutionOrder", "PRIORITY_BASED", "execution_order"), setting(execution_order=1)),
    **{
        name: (setting(**{name: value}), setting(**{name: object()}))
        for name, value in {
            "enable_cpu_mem_arena": False, "enable_mem_pattern": False, "enable_mem_reuse": False,
            "inter_op_num_threads": 1, "intra_op_num_threads": 1, "log_severity_level": 3, "log_verbosity_level": 1,
            "logid": "mine", "use_deterministic_compute": True, "use_per_session_threads": True,
            "enable_profiling": False, "profile_file_prefix": "mine", "optimized_model_filepath": "",
        }.items()
    },
}  # fmt: skip

RUNS: dict[str, tuple[Call, ...]] = {
    "__init__": (run_option(), lambda t: t.m.RunOptions(3)),
    "add_active_adapter": (lambda t: t.m.RunOptions().add_active_adapter(3), with_adapter),
    "add_run_config_entry": (
        lambda t: t.m.RunOptions().add_run_config_entry("disable_synchronize_execution_providers", "1"),
        lambda t: t.m.RunOptions().add_run_config_entry("a", 1), lambda t: t.m.RunOptions().add_run_config_entry(3),
    ),
    "get_run_config_entry": (lambda t: t.m.RunOptions().get_run_config_entry("nonsense"),),
    "terminate": (run_option(terminate=False), run_option(terminate=True), run_option(terminate="x")),
    **{
        name: (run_option(**{name: value}), run_option(**{name: object()}))
        for name, value in {
            "log_severity_level": 3, "log_verbosity_level": 1, "logid": "mine", "only_execute_path_to_fetches": True,
        }.items()
    },
}  # fmt: skip

ADAPTERS: dict[str, tuple[Call, ...]] = {
    "__init__": (lambda t: t.m.LoraAdapter(3),),
    "Load": (
        lambda t: t.m.LoraAdapter().Load(adapter(t)), lambda t: t.m.LoraAdapter().Load(str(t.scratch / "nothing")),
        lambda t: t.m.LoraAdapter().Load(3), lambda t: t.m.LoraAdapter().Load(t.path("scaled")),
    ),
}  # fmt: skip

TOP: dict[str, tuple[Call, ...]] = {
    "get_available_providers": (
        lambda t: t.m.get_available_providers()[0], lambda t: t.m.get_available_providers(1),
    ),
    "get_all_providers": (lambda t: t.m.get_all_providers()[-1], lambda t: t.m.get_all_providers(1)),
    "set_seed": (lambda t: t.m.set_seed(3), lambda t: t.m.set_seed("a"), lambda t: t.m.set_seed()),
    "NodeArg": (lambda t: t.m.NodeArg(),),
    "ModelMetadata": (lambda t: t.m.ModelMetadata(),),
    "OrtValue": (kept_values, lambda t: t.m.OrtValue(3)),
    "backend.prepare": (
        lambda t: t.m.backend.prepare(t.path("scaled")).run([X]), lambda t: t.m.backend.prepare(t.path("nothing")),
        lambda t: t.m.backend.prepare(t.path("scaled"), "NONSENSE"),
        lambda t: t.m.backend.prepare(t.path("scaled"), nonsense=1).run(X),
        lambda t: t.m.backend.prepare(t.path("scaled")).run([X.astype(np.float64)]),
    ),
    "backend.run": (lambda t: t.m.backend.run(t.path("scaled"), [X]), lambda t: t.m.backend.run(t.path("scaled"), [])),
    "backend.supports_device": (
        lambda t: [t.m.backend.supports_device(name) for name in ("CPU", "CUDA", "GPU", "NONSENSE")],
    ),
    "backend.is_compatible": (lambda t: t.m.backend.is_compatible(t.path("scaled")),),
}  # fmt: skip

CALLS: dict[str, tuple[Call, ...]] = {
    **{f"InferenceSession.{name}": calls for name, calls in SESSION.items()},
    **{f"IOBinding.{name}": calls for name, calls in BINDING.items()},
    **{f"SessionOptions.{name}": calls for name, calls in SETTINGS.items()},
    **{f"RunOptions.{name}": calls for name, calls in RUNS.items()},
    **{f"LoraAdapter.{name}": calls for name, calls in ADAPTERS.items()},
    **TOP, **TYPES,
}  # fmt: skip
"""Calls by the name that they are of."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A call that comes to something else in ontrain: what onnxruntime does, what ontrain does, and why."""

    name: str
    call: Call
    theirs: str
    ours: str
    on_all: bool = False


BIG_ENDIAN = X.astype(">f4")
DIFFERENT = (
    Difference("InferenceSession.run", lambda t: t().run(None, {"x": BIG_ENDIAN}),
        "reads an array of the other byte order as if it were of the machine's", "converts it", on_all=True),
    Difference("InferenceSession.run", lambda t: t().run(None, {"x": X + 1j}),
        "raises `RuntimeError` for complex numbers", "raises `InvalidArgument`, as for every wrong element type"),
    Difference("InferenceSession.run_with_ort_values", lambda t: len(t().run_with_ort_values(["y"], {"x": X})),
        "takes `OrtValue`s only", "takes whatever `run` takes"),
    Difference("InferenceSession.create_ortvalue_from_shape_and_type",
        lambda t: t().create_ortvalue_from_shape_and_type([2], np.int64, "cpu", 7).shape(),
        "refuses a second CPU", "does not look at the number of a CPU"),
    Difference("InferenceSession.get_input_epdevices", lambda t: len(t().get_input_epdevices()),
        "names its device for each input", "refused: the device is onnxruntime's object"),
    Difference("InferenceSession.set_ep_dynamic_options", lambda t: t().set_ep_dynamic_options({"nonsense": "1"}),
        "passes options to its provider", "refused: there are none"),
    Difference("InferenceSession.release_captured_graph", lambda t: t().release_captured_graph(0),
        "drops a CUDA graph", "refused: CUDA graphs are not captured by annotation"),
    Difference("IOBinding.bind_cpu_input", bound(lambda t, b: b.bind_cpu_input("x", [[1.0, 2.0]])),
        "takes arrays only", "takes whatever `run` takes"),
    Difference("IOBinding.bind_ortvalue_input", bound(lambda t, b: b.bind_ortvalue_input("x", X)),
        "takes `OrtValue`s only", "takes whatever `run` takes"),
    Difference("IOBinding.bind_input",
        bound(lambda t, b: b.bind_input("x", "cpu", 0, "nonsense", X.shape, X.ctypes.data)),
        "raises `RuntimeError` for an unknown element type", "raises `InputError`, which is a `TypeError`"),
    Difference("IOBinding.bind_output", bound(lambda t, b: b.bind_output("z")),
        "refuses an unknown output when the session runs", "refuses it when it is bound, as a `RuntimeError`, too"),
    Difference("IOBinding.bind_ortvalue_output", bound(lambda t, b: b.bind_ortvalue_output("z", value_of(X.copy())(t))),
        "refuses an unknown output when the session runs", "refuses it when it is bound, as a `RuntimeError`, too"),
    Difference("NodeArg", lambda t: isinstance(t().get_inputs()[0], t.m.NodeArg),
        "gives its own class, which has no constructor", "gives a class of the same attributes"),
    Difference("ModelMetadata", lambda t: isinstance(t().get_modelmeta(), t.m.ModelMetadata),
        "gives its own class, which has no constructor", "gives a class of the same attributes"),
    Difference("backend.prepare", lambda t: t.m.backend.prepare(3),
        "raises `AttributeError` for what is no model", "raises `InputError`, which is a `TypeError`", on_all=True),
)  # fmt: skip
"""What stays different: on ontrain's providers, or on all of them."""
