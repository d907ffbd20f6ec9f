"""`ontrain.op`: operators whose kernels are functions of the program, over tensors of PyTorch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.autodiff import Op
from ontrain.capture import to_tensor
from ontrain.errors import GraphError, OptionError
from ontrain.functions import adopted, attributes_of, composite
from ontrain.graph import TypeAndShape, UntypedError, describe, register_inference, source_of
from ontrain.operators import DOMAIN, OPERATORS, Operator, gradient, schema_of, static_dims
from ontrain.providers.torch.buffers import torch_dtype
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import lowers
from ontrain.sizes import Size, parse

__all__ = ["ProgramOperator", "TensorType", "op", "program_operator"]

_NAME = re.compile(r"([A-Za-z][\w.\-]*)::([A-Za-z]\w*)")
_GRADIENT = ".gradient"
"""Behind an operator's name, the operator that computes its gradient; no name of a user's has a dot."""


@dataclass(frozen=True)
class TensorType:
    """What a shape function is given of an input, and returns of an output.

    Attributes:
        dtype: of torch.
        shape: dimensions, each a number or, where the file leaves it open, an expression that takes `+ - * // %`.
    """

    dtype: torch.dtype
    shape: tuple[int | Size, ...]

    def replace(self, *, shape: Sequence[int | Size] | None = None, dtype: torch.dtype | None = None) -> TensorType:
        """Return the same with another shape or dtype."""
        return TensorType(dtype or self.dtype, self.shape if shape is None else tuple(shape))


class ProgramOperator:
    """An operator that `ontrain.op` made; calling it calls the function.

    Attributes:
        domain, name: as files call it.
        outputs: how many.
        defaults: values of the attributes that a node may leave out.
    """

    def __init__(self, function: Callable[..., Any], domain: str, name: str, outputs: int) -> None:
        self.function, self.domain, self.name, self.outputs = function, domain, name, outputs
        self.__doc__, self.__name__ = function.__doc__, name
        parameters = list(inspect.signature(function).parameters.values())
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise OptionError(
                f"{self} takes any keyword", reason="keyword arguments are the operator's attributes",
                way_out="name each of them, with its default behind `*`",
            )  # fmt: skip
        named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self._attributes = frozenset(p.name for p in named)
        self.defaults = {p.name: p.default for p in named if p.default is not p.empty}
        inputs = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._least = sum(p.default is p.empty for p in inputs)
        self._most = 1 << 16 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(inputs)
        self._shape: Callable[..., Any] | None = None
        self._backward: Callable[..., Any] | None = None

    def __str__(self) -> str:
        return f"operator {self.domain}::{self.name}"

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        """Call the function."""
        return self.function(*inputs, **attributes)

    @property
    def has_shape(self) -> bool:
        """Whether the types of its outputs are known before it runs."""
        return self._shape is not None

    def shape(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register the shape function: of a `TensorType` an input (None for one left out) and the attributes.

        It returns a `TensorType`, or a sequence of them where there are several outputs. Without it the operator runs
        in inference, where its outputs have the sizes that the function gives, and cannot be trained through.
        """
        self._shape = function
        register_inference(self.name, self._infer, self.domain)
        return function

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register the gradient: of an adjoint an output, then the inputs, and the attributes, all tensors.

        It returns an adjoint an input with that input's shape, or None where it is zero. It needs a shape function.
        """
        self._backward = function
        register_inference(self.name + _GRADIENT, self._infer_gradient, self.domain)
        return function

    def body(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register the body: of a builder that emits standard operators (`op.Sin(x)`), the inputs and the attributes.

        Providers without PyTorch and exported files take the body, and where there is no gradient the operator is
        differentiated through it. It needs a shape function, and the attributes and defaults of the operator.
        """
        composite(self.name, domain=self.domain, infer=None)(function)
        return function

    def run(self, node: ir.Node, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a node for inputs, as the function gives them.

        Raises:
            GraphError: the function gives another number of them, or something else than tensors.
        """
        results = self.function(*inputs, **self._values(node))
        return self._tensors(node, results, self.outputs)

    def typed_run(self, node: ir.Node) -> Callable[..., Any]:
        """Return a function of the inputs of this node, whose results are of the types that the shape function says."""
        types = [(tuple(static_dims(v)), torch_dtype(v.dtype)) for v in node.outputs]

        def run(*inputs: Any) -> Any:
            results = list(self.run(node, inputs))[: len(types)]
            for result, (shape, dtype) in zip(results, types, strict=True):
                if tuple(result.shape) != shape or result.dtype != dtype:
                    raise self._misfit(
                        node, f"its function gave {_text(result.dtype, result.shape)}",
                        f"its shape function said {_text(dtype, shape)}",
                    )  # fmt: skip
            return results[0] if len(results) == 1 else results

        return run

    def gradient_run(self, node: ir.Node, wanted: Sequence[bool]) -> Callable[..., Any]:
        """Return a function of adjoints and inputs to the adjoints of those inputs that are wanted."""
        assert self._backward is not None
        backward = self._backward

        def run(*tensors: Any) -> Any:
            inputs = tensors[self.outputs :]
            results = backward(*tensors, **self._values(node))
            adjoints = list(results) if isinstance(results, tuple | list) else [results]
            if len(adjoints) != len(inputs):
                raise self._misfit(
                    node, f"its gradient gave {len(adjoints)} adjoints", f"it has {len(inputs)} inputs",
                    "return one an input, None where it is zero",
                )  # fmt: skip
            chosen = []
            for i, (adjoint, x, want) in enumerate(zip(adjoints, inputs, wanted, strict=True)):
                if not want:
                    continue
                if adjoint is not None and tuple(adjoint.shape) != tuple(x.shape):
                    raise self._misfit(
                        node, f"its gradient gave an adjoint {list(adjoint.shape)} for input {i}",
                        f"that input is {list(x.shape)}",
                    )  # fmt: skip
                chosen.append(torch.zeros_like(x) if adjoint is None else adjoint)
            return chosen[0] if len(chosen) == 1 else chosen

        return run

    def rule(self, op: Op, dy: ir.Value, *inputs: ir.Value | None, **attributes: Any) -> Any:
        """The gradient rule: a node that calls the gradient's function, or the way through the body."""
        if self._backward is None:
            if (self.domain, self.name) in adopted:
                return NotImplemented
            raise op.refused("it was registered without a gradient", f"register one with @{self.name}.gradient")
        adjoints = [
            op.const(np.zeros(static_dims(value)), value.dtype) if adjoint is None else adjoint
            for value, adjoint in zip(op.outputs, op.dys, strict=True)
        ]
        stated = {name: attr.value for name, attr in op.node.attributes.items()}
        results = op.call(self.domain, self.name + _GRADIENT, [*adjoints, *inputs], stated, len(inputs))
        grads = [results] if len(inputs) == 1 else results
        return tuple(grad if want else None for grad, want in zip(grads, op.wanted, strict=True))

    def _infer(self, node: ir.Node) -> Sequence[TypeAndShape]:
        assert self._shape is not None
        present = len(node.inputs)
        if not self._least <= present <= self._most or len(node.outputs) > self.outputs:
            raise self._misfit(node, f"the node has {present} inputs and {len(node.outputs)} outputs", str(self))
        values = self._values(node)
        for value in node.inputs:
            if value is not None and (value.dtype is None or value.shape is None):
                raise UntypedError(f"value {value.name!r} has no dtype or shape", node=describe(node))
        known = [None if value is None else _type_of(value, i) for i, value in enumerate(node.inputs)]
        returned = self._shape(*known, **values)
        types = [returned] if isinstance(returned, TensorType) else returned
        if not isinstance(types, Sequence) or not all(isinstance(kind, TensorType) for kind in types):
            raise self._misfit(node, f"its shape function gave {returned!r}", "it returns a TensorType an output")
        if len(types) != self.outputs:
            raise self._misfit(node, f"its shape function gave {len(types)} types", f"it has {self.outputs} outputs")
        return [(from_torch_dtype(kind.dtype), ir.Shape(list(map(_dim, kind.shape)))) for kind in types][
            : len(node.outputs)
        ]

    def _infer_gradient(self, node: ir.Node) -> Sequence[TypeAndShape]:
        answer: list[TypeAndShape] = []
        for value in node.inputs[self.outputs :]:
            if value is None:
                answer.append((ir.DataType.FLOAT, ir.Shape([])))
                continue
            assert value.dtype is not None and value.shape is not None
            answer.append((value.dtype, value.shape))
        return answer

    def _values(self, node: ir.Node) -> dict[str, Any]:
        """The attributes of a node for the function."""
        values = attributes_of(node, self.defaults)
        for name in values:
            if name not in self._attributes:
                known = ", ".join(sorted(self._attributes)) or "none"
                raise self._misfit(node, f"it has no attribute {name!r}", f"its attributes are: {known}")
        for name in sorted(self._attributes - values.keys()):
            raise self._misfit(node, f"attribute {name!r} is missing", "it has no default")
        return {name: _plain(value) for name, value in values.items()}

    def _tensors(self, node: ir.Node, results: Any, count: int) -> Sequence[Any]:
        tensors = [results] if isinstance(results, torch.Tensor) else results
        if not isinstance(tensors, Sequence) or not all(isinstance(result, torch.Tensor) for result in tensors):
            raise self._misfit(node, f"its function gave a {type(results).__name__}", "it returns a tensor an output")
        if len(tensors) != count:
            raise self._misfit(node, f"its function gave {len(tensors)} tensors", f"it has {count} outputs")
        return tensors

    def _misfit(self, node: ir.Node, problem: str, reason: str, way_out: str | None = None) -> GraphError:
        return GraphError(
            f"{self}: {problem}", node=describe(node), source=source_of(node), reason=reason, way_out=way_out
        )


_operators: dict[tuple[str, str], ProgramOperator] = {}


def op(
    name: str, *, outputs: int = 1, like: int | None = None, autograd: bool = False
) -> Callable[[Callable[..., Any]], ProgramOperator]:
    """Make the decorated function the kernel of an operator that files hold.

    `InferenceSession` runs the operator on `TorchExecutionProvider`, and trainers train through it. The function's
    positional parameters are the inputs: tensors of torch, None for one that a node leaves out. Its keyword-only
    parameters are the attributes, which may have defaults. It returns a tensor, or one an output, and writes to none
    of its inputs. The result has the methods `shape`, `gradient` and `body`, which are decorators, too. A name that is
    registered again is the new function's for sessions made from then on.

    Args:
        name: "domain::Name". Files that hold the operator import the domain.
        outputs: how many outputs it has.
        like: the input whose type and shape every output has; stands for a shape function.
        autograd: whether the function is written in torch's functions, so that torch differentiates it; stands for a
            gradient.

    Raises:
        OptionError: the name is no such name, or an operator that ontrain has; or the function takes any keyword.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise OptionError(f"{name!r} names no operator", way_out="write it as 'domain::Name'")
    key = domain, op_type = match[1], match[2]
    if key not in _operators and (domain in (DOMAIN, "ai.onnx") or key in adopted or schema_of(op_type, domain)):
        raise OptionError(f"{name!r} is an operator that ontrain has", way_out="take a domain of your own")
    if outputs < 1:
        raise OptionError(f"{name!r} has {outputs} outputs")

    def register(function: Callable[..., Any]) -> ProgramOperator:
        operator = ProgramOperator(function, domain, op_type, outputs)
        adopted.pop(key, None)
        if key not in _operators:
            OPERATORS[key] = Operator(op_type, domain, foreign=True)
            gradient(op_type, domain=domain)(lambda op, *args, **named: _operators[key].rule(op, *args, **named))
            lowers(op_type, domain=domain, when=_is_typed)(_lower)
            lowers(op_type + _GRADIENT, domain=domain)(_lower_gradient)
        _operators[key] = operator
        if like is not None:
            operator.shape(lambda *inputs, **attributes: [inputs[like]] * outputs)
        if autograd:
            operator.gradient(_by_autograd(operator))
        return operator

    return register


def program_operator(node: ir.Node) -> ProgramOperator | None:
    """Return the operator that a node calls, None if `op` made none of the name."""
    return _operators.get((node.domain, node.op_type))


def _is_typed(node: ir.Node) -> bool:
    operator = program_operator(node)
    return operator is not None and operator.has_shape


def _lower(e: Emitter, node: ir.Node) -> None:
    operator = _operators[node.domain, node.op_type]
    operands = [None if value is None else e.value(value) for value in node.inputs]
    e.compute(operator.typed_run(node), *operands, outs=[e.out(value) for value in node.outputs])


def _lower_gradient(e: Emitter, node: ir.Node) -> None:
    operator = _operators[node.domain, node.op_type.removesuffix(_GRADIENT)]
    operands = [None if value is None else e.value(value) for value in node.inputs]
    wanted = [e.reads(value) for value in node.outputs]
    outs = [e.out(value) for value, want in zip(node.outputs, wanted, strict=True) if want]
    e.compute(operator.gradient_run(node, wanted), *operands, outs=outs)


def _by_autograd(operator: ProgramOperator) -> Callable[..., Any]:
    """The gradient of a function that torch differentiates: it is computed once more for that."""

    def backward(*tensors: Any, **attributes: Any) -> list[Any]:
        dys, inputs = tensors[: operator.outputs], tensors[operator.outputs :]
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() if _is_float(x) else x for x in inputs]
            results = operator.function(*leaves, **attributes)
            outputs = [results] if isinstance(results, torch.Tensor) else results
            pairs = [(y, dy) for y, dy in zip(outputs, dys, strict=True) if y.requires_grad]
            wanted = [leaf for leaf in leaves if _is_float(leaf)]
            grads = iter(
                torch.autograd.grad([y for y, _ in pairs], wanted, [dy for _, dy in pairs], allow_unused=True)
                if pairs
                else [None] * len(wanted)
            )
        return [next(grads) if _is_float(leaf) else None for leaf in leaves]

    return backward


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _type_of(value: ir.Value, position: int) -> TensorType:
    assert value.shape is not None
    dims = [_size(dim, f"_{position}_{at}") for at, dim in enumerate(value.shape)]
    return TensorType(torch_dtype(value.dtype), tuple(dims))


def _size(dim: int | ir.SymbolicDim, unknown: str) -> int | Size:
    if isinstance(dim, int):
        return dim
    try:
        return Size.symbol(unknown) if dim.value is None else parse(dim.value)
    except ValueError:
        return Size.symbol(dim.value or unknown)


def _dim(dim: int | Size) -> int | str | None:
    if isinstance(dim, Size):
        number = dim.as_number
        if number is None:
            return None if any(name.startswith("_") for name in dim.symbols()) else str(dim)
        dim = int(number)
    return dim


def _plain(value: Any) -> Any:
    """An attribute as Python has it, a tensor as torch has it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ir.TensorProtocol):
        return to_tensor(np.array(value.numpy()))
    return value


def _text(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
