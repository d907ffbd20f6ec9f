"""Building blocks: each adds nodes to the model of `onnxblock.base` and returns the name of their result."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from ontrain.arguments import checked_flag, checked_kind, checked_number, checked_path, checked_whole, told
from ontrain.errors import InputError, OptionError
from ontrain.training.onnxblock.base import ModelAccessor, current

__all__ = [
    "Abs", "Add", "Block", "Cast", "Clip", "Constant", "Div", "InputLike", "LabelEncoder", "Linear", "Log", "Mul",
    "Neg", "PassThrough", "Pow", "ReduceAllL2", "ReduceMean", "ReduceSum", "SequenceConstruct", "Sigmoid", "Sub",
]  # fmt: skip


class Block(ABC):
    """Base of all blocks; a subclass writes `build` and is called inside `with onnxblock.base(model):`.

    Args:
        temp_file_name: as onnxruntime's blocks take it; nothing is written here.

    Attributes:
        base: the model to add to, an `onnx.ModelProto`.
    """

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        checked_path("temp_file_name", temp_file_name)
        self.base: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes to `base`, given names of values; return the name of the result, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `build` on the present base model."""
        self.base = current().model
        return self.build(*args, **kwargs)

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Return a copy of the present base model with the shapes that onnx can tell.

        Raises:
            GraphError: the model is damaged.
        """
        return current().inferred()

    @property
    def on(self) -> ModelAccessor:
        """What adds nodes, initializers and inputs to the present base model."""
        return current()


class _Binary(Block):
    op_type = ""

    def build(self, input_name1: str, input_name2: str) -> str:
        """Add the node."""
        return self.on.node(self.op_type, [input_name1, input_name2])


class Add(_Binary):
    """a + b."""

    op_type = "Add"


class Sub(_Binary):
    """a − b."""

    op_type = "Sub"


class Mul(_Binary):
    """a · b."""

    op_type = "Mul"


class Div(_Binary):
    """a / b."""

    op_type = "Div"


class Pow(Block):
    """xⁿ for a fixed exponent n."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = checked_number("the exponent", exponent)

    def build(self, pow_input_name: str) -> str:
        """Add the node."""
        exponent = self.on.constant(np.array([self._exponent], np.float32), "pow_exponent")
        return self.on.node("Pow", [pow_input_name, exponent])


class _Unary(Block):
    op_type = ""

    def build(self, input_name: str) -> str:
        """Add the node."""
        return self.on.node(self.op_type, [input_name])


class Sigmoid(_Unary):
    """1 / (1 + e⁻ˣ)."""

    op_type = "Sigmoid"


class Log(_Unary):
    """The natural logarithm."""

    op_type = "Log"


class Neg(_Unary):
    """−x."""

    op_type = "Neg"


class Abs(_Unary):
    """|x|."""

    op_type = "Abs"


class _Reduction(Block):
    op_type = ""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = int(checked_flag("keepdims", keepdims))

    def build(self, input_name: str) -> str:
        """Add the node, over all axes."""
        return self.on.node(self.op_type, [input_name], keepdims=self._keepdims)


class ReduceMean(_Reduction):
    """The mean of all elements."""

    op_type = "ReduceMean"


class ReduceSum(_Reduction):
    """The sum of all elements."""

    op_type = "ReduceSum"


class ReduceAllL2(Block):
    """√Σ x² over all elements of all inputs, 0-d, in standard operators."""

    def build(self, *reduce_node_input_names: str) -> str:
        """Add the nodes."""
        squares = [self.on.node("ReduceSumSquare", [name], keepdims=0) for name in reduce_node_input_names]
        return self.on.node("Sqrt", [self.on.node("Sum", squares)])


class Constant(Block):
    """A float constant of one element."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = checked_number("the constant", value_float)

    def build(self) -> str:
        """Add the constant."""
        return self.on.constant(np.array([self._value], np.float32), "constant")


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        """Add the node."""
        return self.on.node("SequenceConstruct", sequence_input_names)


class Clip(Block):
    """min(max(x, low), high); None is no bound."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        bounds = {"clip_min": clip_min, "clip_max": clip_max}
        self._bounds = [
            None if v is None else checked_number(what, v, "a number, or None", infinite=True)
            for what, v in bounds.items()
        ]

    def build(self, clip_input_name: str) -> str:
        """Add the node."""
        names = ["" if bound is None else self.on.constant(np.array(bound, np.float32), name)
                 for bound, name in zip(self._bounds, ("clip_min", "clip_max"), strict=True)]  # fmt: skip
        while names and not names[-1]:
            names.pop()
        return self.on.node("Clip", [clip_input_name, *names])


class Cast(Block):
    """The value in another dtype.

    Args:
        to: onnx's number of the dtype, such as onnx.TensorProto.FLOAT.
    """

    def __init__(self, to: int) -> None:
        super().__init__()
        if not isinstance(to, int) or to not in onnx.TensorProto.DataType.values():
            raise OptionError(
                f"there is no dtype {told(to)}", way_out="give onnx's number, such as onnx.TensorProto.FLOAT"
            )
        self._to = int(to)

    def build(self, cast_input_name: str) -> str:
        """Add the node."""
        return self.on.node("Cast", [cast_input_name], to=self._to)


class LabelEncoder(Block):
    """Each key by its value, and all else by the default; for labels, as no gradient passes it.

    Of keys and of values one list each is given: numbers or texts (ai.onnx.ml's LabelEncoder).

    Raises:
        OptionError: there is no list of keys or none of values, several, or the two are of unequal length.
    """

    def __init__(
        self, default_float: float = 0.0, default_int64: int = -1, default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None, keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None, values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None, values_strings: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        keys = {"keys_floats": keys_floats, "keys_int64s": keys_int64s, "keys_strings": keys_strings}
        values = {"values_floats": values_floats, "values_int64s": values_int64s, "values_strings": values_strings}
        lists = {what: list(entries) for what, entries in {**keys, **values}.items() if entries is not None}
        named = list(lists)
        if len(named) != 2 or named[0] not in keys or named[1] not in values:
            raise OptionError(
                f"a LabelEncoder was given {', '.join(named) or 'no lists'}",
                way_out="give one of keys_floats, keys_int64s, keys_strings, and one of the values_…",
            )
        if len(lists[named[0]]) != len(lists[named[1]]):
            raise OptionError(f"{named[0]} and {named[1]} differ in length", way_out="give each key a value")
        self._attributes: dict[str, Any] = {
            **lists,
            "default_float": checked_number("default_float", default_float),
            "default_int64": checked_whole("default_int64", default_int64, -(1 << 63)),
            "default_string": checked_kind("default_string", default_string, str, "give a text"),
        }

    def build(self, label_encoder_input_name: str) -> str:
        """Add the node."""
        imports = self.on.model.opset_import
        if all(opset.domain != "ai.onnx.ml" for opset in imports):
            imports.add(domain="ai.onnx.ml", version=3)
        return self.on.node("LabelEncoder", [label_encoder_input_name], domain="ai.onnx.ml", **self._attributes)


class Linear(Block):
    """alpha · x Wᵀ + beta · b with a new weight [out, in] and bias, drawn from numpy's global generator.

    Both are uniform in ±1/√in, as torch.nn.Linear's. Their names are `weight_name` and `bias_name` once it was called;
    give them to `TrainingBlock.requires_grad`.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, alpha: float = 1.0, beta: float = 1.0
    ) -> None:
        super().__init__()
        sizes = {"out_features": out_features, "in_features": in_features}
        self._shape = tuple(checked_whole(what, size, 1) for what, size in sizes.items())
        self._bias = checked_flag("bias", bias)
        self._alpha, self._beta = checked_number("alpha", alpha), checked_number("beta", beta)
        self.weight_name: str | None = None
        self.bias_name: str | None = None

    def build(self, linear_input_name: str) -> str:
        """Add the node for an input [rows, in]."""
        bound = 1 / math.sqrt(self._shape[1])
        self.weight_name = self.on.initializer(self._drawn(self._shape, bound), "linear.weight")
        names = [linear_input_name, self.weight_name]
        if self._bias:
            self.bias_name = self.on.initializer(self._drawn(self._shape[:1], bound), "linear.bias")
            names.append(self.bias_name)
        return self.on.node("Gemm", names, alpha=self._alpha, beta=self._beta, transB=1)

    @staticmethod
    def _drawn(shape: tuple[int, ...], bound: float) -> Any:
        return np.random.uniform(-bound, bound, shape).astype(np.float32)


class PassThrough(Block):
    """The names as they are."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        """Add nothing."""
        return input_names


class InputLike(Block):
    """A new input with dtype and shape of another value."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        """Add the input and return its name."""
        if input_name is not None:
            checked_kind("the name of an input", input_name, str, "give a text")
        if input_name is not None and self.on.exists(input_name):
            raise InputError(f"the model has a value {input_name!r} already", way_out="choose another name")
        return self.on.input_like(self._like, input_name or "input")
