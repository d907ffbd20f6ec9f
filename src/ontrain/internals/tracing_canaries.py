"""Trials of what a trace calls, reads and leaves: modes, tensors without values, dispatch, nested graphs."""

from __future__ import annotations

import inspect
from typing import Any

import sympy
import torch

from ontrain.internals.canary import CanaryError, expect, expect_close

__all__ = [
    "bounds",
    "calls_forward",
    "dispatches",
    "dispatches_not",
    "fakes",
    "fields_of_aliasing",
    "has_no_level",
    "holds_views",
    "knows_operators",
    "knows_operators_of_instance",
    "leaves_dispatch_modes",
    "lists_dispatch_modes",
    "lists_modes",
    "modes",
    "nests",
    "nests_of_instance",
    "notes_inputs",
    "parses_to",
    "partitions",
    "tells_saving_hooks",
    "tells_storages_apart",
    "traces_operators",
    "turns_modes_off",
]


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


def traces_operators(trace: Any) -> None:
    """It returns the program that a function runs, in operators below autograd."""
    program = trace(torch.matmul)(torch.ones(2, 3), torch.ones(3, 2))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    expect(targets == [torch.ops.aten.mm.default], f"a product of matrices is {targets}")


def has_no_level(_: object) -> None:
    """Where nothing is differentiated forward, its level is below zero."""
    expect(torch.autograd.forward_ad._current_level == -1, "the level is another")
