"""Small trials of what torch does behind names that it does not promise: each raises where it does something else.

A trial takes the object that stands under the name. It runs in a thread of its own, on a few numbers, without changing
anything, the random state included. `expect` is what each ends in.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import sympy
import torch
import torch.distributed as dist
from torch import nn

__all__ = ["CanaryError"]


class CanaryError(Exception):
    """A trial came out otherwise than expected."""


def expect(holds: bool, what: str) -> None:
    """Raise unless it holds."""
    if not holds:
        raise CanaryError(what)


def expect_close(actual: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Raise unless a result has the dtype, shape and values of another way to compute it."""
    expect(actual.dtype == wanted.dtype and actual.shape == wanted.shape, f"{what} has another dtype or shape")
    expect(torch.allclose(actual, wanted, rtol=1e-4, atol=1e-5), f"{what} has other values")


# What is replaced while a module is traced


class _Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, *adjoints: Any) -> Any:
        return adjoints[0] * 3


def calls(run: Callable[[], Any], owner: Any, attribute: str, result: Any = None) -> None:
    """Raise unless `run` comes by what is put in place of an attribute."""
    called: list[bool] = []

    def instead(*args: Any, **kwargs: Any) -> Any:
        called.append(True)
        return result

    with mock.patch.object(owner, attribute, instead):
        run()
    expect(bool(called), f"{attribute} is not called any more")


def ask_class_for_forward(_: object) -> None:
    """`apply` asks a function's class for `_backward_cls` in the caller's mode, then for `forward`, and calls that."""
    from torch.autograd.function import FunctionMeta

    asked: list[tuple[str, bool]] = []

    def attribute(function: Any, name: str) -> Any:
        if function is _Tripled:
            asked.append((name, torch.is_grad_enabled()))
            if name == "forward" and ("_backward_cls", True) in asked:
                return lambda ctx, x: x * 5
        return type.__getattribute__(function, name)

    apply = _Tripled.apply
    with mock.patch.object(FunctionMeta, "__getattribute__", attribute):
        result = apply(torch.ones(1, requires_grad=True))  # type: ignore[no-untyped-call]
    expect(float(result.detach()) == 5, "apply does not call the forward that the class answers with")


def records_forward(_: object) -> None:
    """The node of an autograd function in autograd's record knows its class."""
    node: Any = _Tripled.apply(torch.ones(1, requires_grad=True)).grad_fn  # type: ignore[no-untyped-call]
    expect(isinstance(node, torch.autograd.function.BackwardCFunction), "the node is of another class")
    expect(node._forward_cls is _Tripled, "the node names another function")


def checks_values(_: object) -> None:
    """`if tensor:` asks the class for `__bool__`."""
    calls(lambda: bool(torch.ones(1)), torch.Tensor, "__bool__", True)


def engine(_: object) -> None:
    """Gradients are computed by what `torch.autograd` holds under the name."""
    x = torch.ones(1, requires_grad=True)
    calls(lambda: (x * 2).sum().backward(), torch.autograd, "_engine_run_backward", ())


def registers_hooks(_: object) -> None:
    """`tensor.register_hook` asks the class."""
    x: Any = torch.ones(1, requires_grad=True)
    calls(lambda: x.register_hook(print), torch.Tensor, "register_hook")


def aligns(_: object) -> None:
    """`functional.ctc_loss` calls it."""
    ones = torch.ones(1, dtype=torch.int64)
    calls(
        lambda: nn.functional.ctc_loss(torch.zeros(1, 1, 2), ones[None], ones, ones),
        torch, "ctc_loss", torch.ones(()),
    )  # fmt: skip


def packs(_: object) -> None:
    """`pack_padded_sequence` calls it."""
    from torch.nn.utils import rnn

    calls(
        lambda: rnn.pack_padded_sequence(torch.ones(2, 1, 1), torch.tensor([2])),
        torch._VF, "_pack_padded_sequence", (torch.ones(2, 1), torch.tensor([1, 1])),
    )  # fmt: skip


def pads(_: object) -> None:
    """`pad_packed_sequence` calls it."""
    from torch.nn.utils import rnn

    rows = rnn.PackedSequence(torch.ones(2, 1), torch.tensor([1, 1]))
    calls(
        lambda: rnn.pad_packed_sequence(rows),
        torch._VF, "_pad_packed_sequence", (torch.ones(2, 1, 1), torch.tensor([2])),
    )  # fmt: skip


def checkpoints(generator: Any) -> None:
    """A checkpoint that is not reentrant goes by the generator, which stops at its function."""
    from torch.utils import checkpoint

    run = inspect.unwrap(checkpoint.checkpoint)  # what wraps it imports torch._dynamo, which takes seconds
    calls(
        lambda: run(torch.sin, torch.ones(1, requires_grad=True), use_reentrant=False),
        checkpoint, generator.__name__, iter([None]),
    )  # fmt: skip


def converts(_: object) -> None:
    """`Module.to` is what a module's conversion goes by."""
    calls(lambda: nn.Identity().to(torch.float64), nn.Module, "to")


def decomposes(_: object) -> None:
    """A recurrent layer's shapes come from the functions that are replaced."""
    from torch._decomp import decompositions

    x, h, layer = torch.ones(2, 1, 3), torch.zeros(1, 1, 4), nn.LSTM(3, 4)
    weights = [weight.detach() for weight in layer.parameters()]
    asked: list[bool] = []

    def select(*operands: Any) -> Any:
        asked.append(True)
        return decompositions.one_layer_lstm

    with mock.patch.object(decompositions, "select_one_layer_lstm_function", select):
        y = decompositions.lstm_impl(x, [h, h], weights, True, 1, 0.0, False, False, False)[0]
    expect(bool(asked), "the choice of a layer's function is not asked for any more")
    expect_close(y, layer(x)[0].detach(), "the result of a layer")


def detects_causal(_: object) -> None:
    """A transformer's encoder asks it about its mask."""
    from torch.nn.modules import transformer

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 4), 1, enable_nested_tensor=False)
    mask = torch.zeros(2, 2)
    calls(lambda: encoder(torch.ones(2, 1, 4), mask), transformer, "_detect_is_causal_mask", False)


def is_a_flag(flag: object) -> None:
    """It is True or False; which one a trace that may be under way says."""
    expect(isinstance(flag, bool), f"it is a {type(flag).__name__}")


def names_weights(_: object) -> None:
    """l1_loss gives it all three tensors, whether or not it tells the function's weights."""
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    told: list[Any] = []

    class Passing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def handled(function: Any, relevant: Any, *args: Any, **kwargs: Any) -> Any:
        told.append((function, relevant))
        return None

    x, target, weight = torch.ones(3), torch.zeros(3), torch.rand(3)
    weighted: Any = functional.l1_loss  # torch's stub leaves the weights out, too
    if "weight" not in inspect.signature(weighted).parameters:
        return
    with Passing(), mock.patch.object(functional, "handle_torch_function", handled):
        weighted(x, target, weight=weight)
    expect(len(told) == 1 and told[0][0] is functional.l1_loss and told[0][1][2] is weight, "weights are not handed on")


def passes_modes(_: object) -> None:
    """torch.export hands it a program that still has the calls that set the mode of gradients."""
    from torch._export.passes import replace_set_grad_with_hop_pass as passes

    class Blocked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x * 2
            return x + y

    modes: list[Any] = []
    replacing = passes.replace_set_grad_with_hop_pass

    def look(module: Any, signature: Any) -> Any:
        modes.extend(node.args[0] for node in module.graph.nodes if node.target is torch._C._set_grad_enabled)
        return replacing(module, signature)

    with mock.patch.object(passes, "replace_set_grad_with_hop_pass", look):
        torch.export.export(Blocked(), (torch.ones(2),), strict=False)
    expect(modes == [False, True], "the program says otherwise where gradients are recorded")


# What is called or read while a module is traced


def modes(set_enabled: Any) -> None:
    """It sets the mode of gradients."""
    set_enabled(False)
    expect(not torch.is_grad_enabled(), "gradients are still enabled")
    set_enabled(True)
    expect(torch.is_grad_enabled(), "gradients are still disabled")


def tells_saving_hooks(top: Any) -> None:
    """It returns the pair of functions that saved tensors go through, None if there is none."""
    expect(top(False) is None or len(top(False)) == 2, "it returns something else")
    with torch.autograd.graph.saved_tensors_hooks(abs, abs):
        expect(top(False) == (abs, abs), "it does not see the innermost hooks")


def parses_to(parse: Any) -> None:
    """It returns device, dtype, whether not to wait, and the memory format of `Module.to`'s arguments."""
    parsed = parse(torch.device("cpu"), torch.float64)
    expect(len(parsed) == 4 and parsed[:2] == (torch.device("cpu"), torch.float64), "other results")


def fakes(mode: Any) -> None:
    """Under the mode tensors have shapes, and no values."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

    with mode(allow_non_fake_inputs=True):
        product = torch.ones(2, 3) @ torch.ones(3, 4)
        expect(type(product) is FakeTensor and tuple(product.shape) == (2, 4), "no fake tensor of that shape")
        try:
            product.sum().item()
        except DataDependentOutputException:
            return
    raise CanaryError("a fake tensor gave a value")


def holds_views(implementations: Any) -> None:
    """It says of slices and of places along an axis what a tensor without values has there."""
    views = torch.ops.aten.slice.Tensor, torch.ops.aten.select.int
    expect(all(callable(implementations.get(view)) for view in views), "no functions for views")


def dispatches(mode: Any) -> None:
    """Each operator below autograd goes by the mode, until it is disabled."""
    seen: list[str] = []

    class Written(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))

    with Written():
        torch.ones(2).mul(torch.ones(2))
    expect("aten.mul.Tensor" in seen, "an operator passes by")


def dispatches_not(_: object) -> None:
    """Under it a mode sees nothing."""
    from torch.utils._python_dispatch import TorchDispatchMode

    dispatches(TorchDispatchMode)


def knows_operators(overload: Any) -> None:
    """An operator has a schema, a name of its overload, and a function in C that computes the same."""
    op: Any = torch.ops.aten.add_.Tensor
    expect(isinstance(op, overload), "an operator is of another class")
    expect(op._schema.name == "aten::add_" and op._schema.is_mutable, "another schema")
    expect(op._schema.arguments[0].alias_info.is_write, "the schema does not say what is written")
    expect(op._overloadname == "Tensor", "another name of the overload")
    expect_close(op._op(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0), "the function in C")


def knows_operators_of_instance(_: object) -> None:
    """The same, where the class is not asked for."""
    knows_operators(type(torch.ops.aten.add_.Tensor))


def nests(operator: Any) -> None:
    """torch.cond is one of the operators that take functions, and has its name."""
    cond: Any = torch.ops.higher_order.cond
    expect(isinstance(cond, operator) and cond._name == "cond", "cond is something else")


def nests_of_instance(_: object) -> None:
    """The same, where the class is not asked for."""
    expect(torch.ops.higher_order.cond._name == "cond", "cond has another name")


def partitions(partitioner: Any) -> None:
    """It is given a body by a method of its class."""
    expect(callable(getattr(partitioner, "create_partitioned_graph", None)), "it divides graphs otherwise")


def calls_forward(halves: Any) -> None:
    """It is made of a body and its three kinds of operands, and calls the forward half."""
    expect(len(inspect.signature(halves).parameters) == 4, "it takes other arguments")
    expect(callable(getattr(halves, "call_forward", None)), "it calls the forward half otherwise")


def fields_of_aliasing(info: Any) -> None:
    """It says whether there is aliasing, and what."""
    expect(info(False, "").has_aliasing is False, "it has other fields")


def notes_inputs(note: Any) -> None:
    """It says what is no tensor of the program, and a parameter is marked."""
    from torch import _dynamo

    expect("is_tensor" in note.__dataclass_fields__, "it has other fields")
    weight = torch.ones(1)
    _dynamo.mark_static_address(weight)
    expect(hasattr(weight, "_dynamo_static_input_type"), "parameters and buffers are marked otherwise")


def is_a_dictionary(hooks: Any) -> None:
    """Hooks are in a dictionary, which is empty where there are none."""
    expect(isinstance(hooks, dict), "it is no dictionary")


def is_base_of_batch_norms(base: Any) -> None:
    """Every batch normalisation is one of its kind."""
    expect(all(issubclass(norm, base) for norm in (nn.BatchNorm1d, nn.SyncBatchNorm)), "it is not their base")
    expect(hasattr(nn.BatchNorm1d(2), "track_running_stats"), "it has other attributes")


def number() -> torch.Tensor:
    """A tensor."""
    return torch.ones(())


def maps_trees(pytree: Any) -> None:
    """Trees of lists, tuples and dictionaries."""
    tree = [1, (2, {"a": 3})]
    expect(pytree.tree_map(lambda x: x + 1, tree) == [2, (3, {"a": 4})], "tree_map gives something else")
    expect(pytree.tree_leaves(tree) == [1, 2, 3], "tree_leaves gives something else")
    expect(pytree.tree_map_only(int, str, tree) == ["1", ("2", {"a": "3"})], "tree_map_only gives something else")


def tables_of_modules(_: object) -> None:
    """A module's tensors and children are in its tables."""
    module: Any = nn.Sequential(nn.BatchNorm1d(2))
    module.register_buffer("passing", torch.ones(1), persistent=False)
    (norm,) = module._modules.values()
    expect("running_mean" in norm._buffers and "weight" in norm._parameters, "its tensors are elsewhere")
    expect(module._non_persistent_buffers_set == {"passing"}, "passing buffers are elsewhere")


def tables_of_hooks(_: object) -> None:
    """A module's hooks are in its tables."""
    module: Any = nn.Identity()
    for register, table in (
        (module.register_forward_hook, "_forward_hooks"), (module.register_forward_pre_hook, "_forward_pre_hooks"),
        (module.register_full_backward_hook, "_backward_hooks"),
        (module.register_full_backward_pre_hook, "_backward_pre_hooks"),
    ):  # fmt: skip
        register(print)
        expect(len(getattr(module, table)) == 1, f"{table} lacks a hook")


def tables_of_parameter_hooks(_: object) -> None:
    """A parameter's hooks are in its tables."""
    parameter: Any = nn.Parameter(torch.ones(2))
    for register, table in (
        (parameter.register_hook, "_backward_hooks"),
        (parameter.register_post_accumulate_grad_hook, "_post_accumulate_grad_hooks"),
    ):
        expect(not getattr(parameter, table), f"{table} has a hook that nobody registered")
        register(print)
        expect(len(getattr(parameter, table)) == 1, f"{table} lacks a hook")


def counts_writes(_: object) -> None:
    """It grows with each write in place."""
    x = torch.ones(2)
    before = x._version
    x.add_(1)
    expect(x._version > before, "a write is not counted")


def shows_places(_: object) -> None:
    """A sparse matrix whose places occur twice shows them as they are."""
    places, values = torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0])
    matrix = torch.sparse_coo_tensor(places, values, (2, 3))
    expect(torch.equal(matrix._indices(), places), "other places")
    expect(torch.equal(matrix._values(), values), "other values")


def counts_places(count: Any) -> None:
    """It counts the places of a sparse matrix."""
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 3))
    expect(count(matrix) == 2 and count(matrix.coalesce()) == 1, "another number of places")


def sums_sparse(add_up: Any) -> None:
    """It sums all values of a sparse matrix, or those along a dimension."""
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 3))
    expect(float(add_up(matrix)) == 3.0, "another sum")
    expect(torch.equal(add_up(matrix, [1]).to_dense(), torch.tensor([3.0, 0.0])), "other sums of rows")


def makes_sparse(make: Any) -> None:
    """It takes numbers of sparse and dense dimensions, the shape, places and values."""
    places, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([1.0, 2.0])
    matrix = make(2, 0, (2, 3), places, values, dtype=values.dtype, layout=torch.sparse_coo, is_coalesced=True)
    expect(matrix.is_coalesced(), "the matrix does not know that each place occurs once")
    expect(torch.equal(matrix.to_dense(), torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]])), "another matrix")


class _Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


def wraps(make: Any) -> None:
    """It makes a tensor without values that has a shape and a dtype."""
    wrapped = make(_Wrapped, (2, 3), dtype=torch.float64, device=torch.device("cpu"))
    expect(tuple(wrapped.shape) == (2, 3) and wrapped.dtype == torch.float64, "it has another shape or dtype")


def collects(collect: Any) -> None:
    """What torch takes apart wherever it is called: `linear` is among it, `add` is not; torch asks for it anew."""
    composites = collect()
    aten = torch.ops.aten
    expect(aten.linear.default in composites and aten.add.Tensor not in composites, "other operators than composites")


def returns(value: Any, *args: Any) -> Callable[[Any], None]:
    """Called where nothing is going on, it returns this."""

    def check(function: Any) -> None:
        got = function(*args) if callable(function) else function
        expect(type(got) is type(value) and got == value, f"{got!r} instead of {value!r}")

    return check


def turns_modes_off(disable: Any) -> None:
    """Within it a tensor is made on the CPU, whatever the default device is, and after it where that is."""
    with torch.device("meta"):
        with disable():
            expect(torch.empty(1).device.type == "cpu", "a tensor is made on the default device")
        expect(torch.empty(1).device.type == "meta", "the default device is forgotten")


def lists_modes(stack: Any) -> None:
    """A default device is among the modes."""
    with torch.device("meta"):
        expect([mode.device.type for mode in stack()] == ["meta"], "a default device is no mode")


def lists_dispatch_modes(stack: Any) -> None:
    """A mode that sees operators is on the stack for as long as it is entered."""
    from torch.utils._python_dispatch import TorchDispatchMode

    with TorchDispatchMode() as mode:
        expect(stack() == [mode], "a mode is not on the stack")


def leaves_dispatch_modes(disable: Any) -> None:
    """Within the context no mode sees operators, and behind it the same do."""
    from torch._C import _len_torch_dispatch_stack
    from torch.utils._python_dispatch import TorchDispatchMode

    with TorchDispatchMode():
        with disable():
            expect(_len_torch_dispatch_stack() == 0, "a mode is left")
        expect(_len_torch_dispatch_stack() == 1, "a mode is lost")


def bounds(bound: Any) -> None:
    """A condition that holds between the bounds of its symbol is bounded by that alone."""
    from torch.utils._sympy.value_ranges import ValueRanges

    number, between = sympy.Symbol("number", real=True), ValueRanges(0.25, 0.75)
    for condition, wanted in ((number < 1, True), (number < 0, False)):
        within = bound(condition, {number: between})
        expect(within.lower == within.upper == sympy.sympify(wanted), f"{condition} is not always {wanted}")


def tells_storages_apart(_: object) -> None:
    """Storages without elements have different numbers."""
    first, other = (torch.empty(0).untyped_storage() for _ in range(2))
    expect(isinstance(first._cdata, int) and first._cdata != other._cdata, "storages are not told apart")


def has_no_level(_: object) -> None:
    """Where nothing is differentiated forward, its level is below zero."""
    expect(torch.autograd.forward_ad._current_level == -1, "the level is another")


def is_an_error(error: Any) -> None:
    """It is what a trace raises where a value is needed."""
    expect(isinstance(error, type) and issubclass(error, Exception), "it is no exception")


def logs_under_its_name(module: Any) -> None:
    """The module's logger has the module's name."""
    expect(isinstance(module.log, logging.Logger) and module.log.name == module.__name__, "its logger has another name")


def has_functions_of_its_own(module: Any) -> None:
    """Autograd functions are defined there, or made there by a function of that name."""
    expect(
        hasattr(module, "make_autograd_impl")
        or any(
            isinstance(function, type)
            and issubclass(function, torch.autograd.Function)
            and function.__module__ == module.__name__
            for function in vars(module).values()
        ),
        "no autograd function is there",
    )


# Processes


def keeps_a_store(store: Any) -> None:
    """Two clients in one process share a store at one port, and find what the other has put there."""
    place: Any = {"wait_for_workers": False, "multi_tenant": True, "timeout": timedelta(seconds=5)}
    keeper = store("127.0.0.1", 0, is_master=True, **place)
    first, other = (
        dist.PrefixStore("canary", client)  # type: ignore[attr-defined]
        for client in (keeper, store("127.0.0.1", keeper.port, is_master=True, **place))
    )
    expect(not other.check(["a"]), "a store has what nobody put there")
    first.set("a", "1")  # does not wait; get does
    expect(other.get("a") == b"1" and other.check(["a"]), "a client does not find what another has put there")
    expect(other.compare_set("b", "", "2") == b"2", "what is not there is not set")
    expect(first.compare_set("b", "", "3") == b"2", "what is there is set anew")


def tells_who_keeps(asks: Any) -> None:
    """It answers as the variable that torchrun sets."""
    wanted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    expect(asks() is wanted, f"it does not answer {wanted}")
