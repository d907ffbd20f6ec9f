"""What is known of an operator, in one record: every room asks it, and no room keeps a list of operators of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.files import OPSET, schema_of

__all__ = [
    "AUTO_PAD",
    "DIRECTION",
    "DOMAIN",
    "ELEMENTWISE",
    "EVERY",
    "FLAT",
    "OPERATORS",
    "OPSET",
    "POINTWISE",
    "Axis",
    "Chance",
    "Evaluator",
    "Indexes",
    "Operator",
    "Outrun",
    "Precision",
    "Rows",
    "SWITCH",
    "Smallest",
    "Stock",
    "View",
    "WHEREVER",
    "attribute_of",
    "define",
    "holds_programs",
    "model_kind",
    "record_of",
    "schema_of",
]

DOMAIN = "ontrain"
"""Domain of ontrain's composite operators."""
EVERY = tuple(range(16))
"""The positions of all inputs."""


class Chance(Enum):
    """Whether an operator draws random numbers."""

    NEVER = "never"
    ALWAYS = "always"
    IN_TRAINING = "where its input `training_mode` is true"
    BY_ATTRIBUTE = "where its attribute `dropout` is above zero"


class Precision(Enum):
    """What an operator runs in where a graph is lowered to half precision."""

    FULL = "float32: it loses digits, or is not known to bear half precision"
    HALF = "half: a product, for which hardware has units that add up in float32"
    SCALED = "half, but not float16: its gradient is made before the loss is scaled"
    FOLLOWS = "that of its operands: element by element, or a mere rearrangement"
    OWN = "what its attribute says"


class View(Enum):
    """How a result shows the memory of the first input, where strides allow."""

    NONE = "not at all"
    SAME = "as it is"
    RESHAPED = "its elements in their order, in another shape"
    PERMUTED = "its axes in another order"
    PART = "a part of it, or all of it in parts"
    REPEATED = "some of its elements more than once"
    SCALED = "as it is, scaled in place where nobody else reads it"


class Axis(Enum):
    """Which numbers the attribute `axis` may be for an input of some rank."""

    INSIDE = "a dimension of the first input"
    ONE_MORE = "that, or the place behind the last one"
    ANY = "any: for some operands it means nothing"


class Indexes(Enum):
    """How the second input names places of the first."""

    NO = "not at all"
    ALONG_AXIS = "each number a place along the attribute `axis`"
    IN_TUPLES = "each row a place by several dimensions"
    ROWS = "each number a row, none counted from the end"


class Evaluator(Enum):
    """Whether onnx's evaluator computes the operator."""

    WHOLE = "in all its forms"
    IN_PART = "in some forms only"
    LACKS = "not at all, or wrongly"


class Rows(Enum):
    """Where the rows of a result come from; `passes/rows` knows what follows for packed ones."""

    MIXED = "from several rows, or it is not known"
    ELEMENTWISE = "from those at their place in each operand, as they broadcast"
    ALONG_AXIS = "from the first input's, unless they lie along the attribute `axis`"
    FROM_AXIS = "from the first input's, unless they lie along the attribute `axis` or behind it"
    REDUCED = "from the first input's, unless they lie along an axis that goes"
    RESHAPED = "from the first input's in their order"
    TRANSPOSED = "from the first input's, along other axes"
    EXPANDED = "from the first input's, repeated"
    CUT = "from some of the first input's"
    JOINED = "from those of each input, unless they lie along the attribute `axis`"
    LOOKED_UP = "from the second input's, which are indices"
    MATMUL = "from the first factor's, by a matrix"
    GEMM = "from the first factor's and the bias's, by a matrix"


class Stock(Enum):
    """Whether onnxruntime's kernels on the CPU compute in float32 what the standard says."""

    NO = "no, or nobody tried"
    KERNEL = "by a kernel of its own"
    BODY = "by those of the operators that it consists of"
    COMPARED = "by a kernel of its own that in some forms gives something else: where its results were compared"


class Outrun(Enum):
    """Whether onnxruntime's kernel takes a fraction of the time of what ontrain has in its place."""

    NO = "no, or nobody measured"
    ALIKE = "yes, and gives the same numbers"
    BUT_TIES = "yes, and may round numbers midway between two whole ones to the other one"
    ALONE = "yes, so a node is a call of onnxruntime's where a graph serves; the rest of a model may gain nothing"


Shape = tuple[int, ...]
Size = int | str | None
"""A dimension of a shape: a number, a name, or unknown."""
Resized = Callable[[ir.Node, Sequence[Size]], Sequence[Size] | None]
Agreeing = Callable[[ir.Node, Sequence[Shape]], Iterator[tuple[int, int]]]
"""agreeing(node, shapes of the operands): pairs of dimensions that must be equal for the operator to run."""


@dataclass(frozen=True)
class Smallest:
    """What a smallest node of an operator needs, where its schema does not tell.

    Attributes:
        attributes: values of those that the schema calls required and gives no default, or other than its default.
        types: for type variables of the schema, which of the types that they allow.
        inputs: how many; None for those that are not optional.
    """

    attributes: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    inputs: int | None = None


SWITCH = (0, 1)
"""Off and on."""
AUTO_PAD = {"auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "")}
"""How windows are padded; a text without a letter stands for the first."""
DIRECTION = {"direction": ("forward", "reverse", "bidirectional")}
"""How a recurrent layer goes through its sequences."""

WHEREVER = "its derivative is zero wherever it exists"


@dataclass(frozen=True)
class Operator:
    """What is known of one operator. The defaults say the least, and are right for an operator that nobody described.

    Attributes:
        name: without the domain.
        domain: "" for the standard's.
        rows: where the rows of its results come from.
        overwrites: positions of inputs whose memory the first result may take over where they die.
        chance: whether it draws random numbers.
        distinct: two nodes with equal inputs are two all the same.
        precision: what it runs in where a graph is lowered to half precision.
        settings: positions of inputs that say how it works: sizes, axes, modes, ratios. A plan has them as numbers.
        weightless: positions of further inputs that hold no weights, whatever their type: bounds, scales, labels.
        reads_shape: nothing matters of what it reads but the shape.
        sized_by_values: the shape of its result follows from the values of what it reads, too.
        view: how its results show the memory of the first input.
        computes: whether it does arithmetic; else it only moves elements, or counts them.
        written: its result is a number that a graph of concrete shapes has as such.
        keeps_values: the result's elements are the first input's, cast or at other places; what it leaves out matters
            to nobody.
        recurrent: whether it is a recurrent layer.
        labels: position of the input that holds class numbers, of which `ignore_index` may leave some out.
        fills: its result repeats a value as often as it is asked to.
        axis: which axes it takes.
        indexes: how the second input names places of the first.
        divides: what its block size must divide, as pairs of axis and number, by block size.
        like_first: its result has the first input's type and shape, where the standard's inference does not say so.
        agreeing: which dimensions of its operands must be equal; if None, those of an elementwise operator broadcast.
        evaluator: whether onnx's evaluator computes it.
        loops: onnx's evaluator computes it element by element in Python, which takes a second for 100,000 elements.
        evaluate: its value, given attributes and arrays; None lets onnx's evaluator compute it. For operators of which
            shape arithmetic and attention masks consist: onnx's takes half a millisecond a node.
        flops: floating-point operations of a node of concrete shapes, if it is a product; else one an element.
        zero_gradient: why nothing flows back through it, if nothing does; else "".
        linked: the operands that its results are functions of as autograd records it, where these are not all of them,
            or none if nothing flows back: what reaches a loss by derivatives of zero only has a gradient, of zeros.
        adjoints: the operands that stand for the adjoints of its results; whoever differentiates it makes what is
            computed of them again, of the real ones.
        no_gradient: why it cannot be differentiated, if it cannot and more is to be said than that it has no rule.
        control: whether it holds graphs: a branch or a loop of the standard's.
        searches: of a search for text, the kinds of models (attribute `model_type`) whose graphs ontrain runs in it.
        function: what it computes of arrays in double precision, if activations are spelled out in it.
        epilogue_of: operators that may apply it to their result where it is made: "Conv" and "Gemm".
        marks_gelu: it is a form of Gelu, or stands in each formula that spells one out.
        updates: its results are next values of its operands, and may be written over them.
        asks_device: what comes next depends on a number that it computes, so that a device is waited for.
        moments: of an optimizer's update: the state that it keeps per parameter, under torch.optim's names, in the
            order of its operands.
        smallest: what a smallest node needs.
        choices: of attributes that are words, or numbers that stand for something, all values that mean something.
        least: of attributes that are numbers, the least one that means something.
        fault: what is wrong with a node's attributes, in words, beyond what the schema says of them; "" if nothing is.
        misfit: what attributes say of operands of these shapes and does not hold, in words; "" if all holds.
        reduces: it touches more elements of the first input than of its result.
        in_encoders: transformers are written in this fused form; passes over rows see what it consists of.
        mask: position of the input that says which keys an attention counts.
        foreign: a program registered it, and has its kernel.
        convolves: it slides filters over images.
        resized: the shape of its result, given what onnx's inference says of it, where that is known to be otherwise.
        singular: of usual finite numbers it may make infinities or NaN, as a division by zero does.
        stock: whether onnxruntime computes it, so that small nodes of it may run there.
        forms: `stock` of a node, where it is more than that of its operator; None where no form is.
        outrun: whether onnxruntime's kernel takes a fraction of the time of what ontrain has in its place, as those
            that multiply numbers of few bits or attend to a cache in one go.
        alone: of an operator whose `outrun` is ALONE, whether a node is such a call; None where all are.
        ahead_from: how many elements an operand or result has from where ontrain's own kernel takes less time on one
            thread than onnxruntime's, of all nodes or by node; `python -m benchmarks.operators` measures it.
    """

    name: str
    domain: str = ""
    rows: Rows = Rows.MIXED
    overwrites: tuple[int, ...] = ()
    chance: Chance = Chance.NEVER
    distinct: bool = False
    precision: Precision = Precision.FULL
    settings: tuple[int, ...] = ()
    weightless: tuple[int, ...] = ()
    reads_shape: bool = False
    sized_by_values: bool = False
    view: View = View.NONE
    computes: bool = True
    written: bool = False
    keeps_values: bool = False
    reduces: bool = False
    recurrent: bool = False
    labels: int | None = None
    fills: bool = False
    axis: Axis = Axis.INSIDE
    indexes: Indexes = Indexes.NO
    divides: Callable[[int], Sequence[tuple[int, int]]] | None = None
    like_first: bool = False
    agreeing: Agreeing | None = None
    evaluator: Evaluator = Evaluator.WHOLE
    loops: bool = False
    evaluate: Callable[..., Any] | None = None
    flops: Callable[[ir.Node], int] | None = None
    zero_gradient: str = ""
    linked: Callable[[ir.Node], Sequence[ir.Value | None]] | None = None
    adjoints: Callable[[ir.Node], Sequence[ir.Value | None]] | None = None
    no_gradient: str = ""
    control: bool = False
    searches: tuple[int, ...] = ()
    function: Callable[..., Any] | None = None
    epilogue_of: tuple[str, ...] = ()
    marks_gelu: bool = False
    updates: bool = False
    asks_device: bool = False
    moments: tuple[str, ...] | None = None
    smallest: Smallest = Smallest()
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    fault: Callable[[ir.Node], str] | None = None
    misfit: Callable[[ir.Node, Sequence[Shape]], str] | None = None
    in_encoders: bool = False
    mask: int | None = None
    foreign: bool = False
    convolves: bool = False
    singular: bool = False
    resized: Resized | None = None
    stock: Stock = Stock.NO
    forms: Callable[[ir.Node], Stock] | None = None
    outrun: Outrun = Outrun.NO
    alone: Callable[[ir.Node], bool] | None = None
    ahead_from: float | Callable[[ir.Node], float] = math.inf

    @property
    def is_view(self) -> bool:
        """Whether it only looks at memory in another way, where strides allow."""
        return self.view not in (View.NONE, View.SCALED)

    @property
    def elementwise(self) -> bool:
        """Whether an element of the (first) result is made of the operands' at its place, as they broadcast."""
        return self.rows is Rows.ELEMENTWISE

    def stock_of(self, node: ir.Node) -> Stock:
        """Return whether onnxruntime computes a node of the operator."""
        return self.stock if self.forms is None else self.forms(node)

    def runs_alone(self, node: ir.Node) -> bool:
        """Return whether a node of the operator is a call of onnxruntime's kernel where a graph serves."""
        return self.outrun is Outrun.ALONE and (self.alone is None or self.alone(node))

    def ahead_of(self, node: ir.Node) -> float:
        """Return `ahead_from` of a node of the operator."""
        return self.ahead_from(node) if callable(self.ahead_from) else self.ahead_from

    @property
    def product(self) -> bool:
        """Whether each row of the result is a row of the first factor times a matrix, which is the second."""
        return self.rows in (Rows.MATMUL, Rows.GEMM)

    @property
    def schema(self) -> onnx.defs.OpSchema | None:
        """The standard's definition at `OPSET`, or the first one after it; None for an operator of ours."""
        return schema_of(self.name, self.domain)

    @property
    def since(self) -> int | None:
        """The opset version that the definition is from; None for an operator of ours."""
        schema = self.schema
        return None if schema is None else schema.since_version


ELEMENTWISE = Operator("", rows=Rows.ELEMENTWISE)
"""An element of the result is made of the operands' at its place, broadcast to one shape."""
POINTWISE = Operator("", rows=Rows.ELEMENTWISE, overwrites=EVERY)
"""So it is, and in place where an operand dies."""
FLAT = Operator("", rows=Rows.ELEMENTWISE, overwrites=EVERY, zero_gradient=WHEREVER, linked=lambda node: node.inputs)
"""So it is, and its derivative, which autograd records, is zero."""

OPERATORS: dict[tuple[str, str], Operator] = {}
"""All records by (domain, name)."""

_UNKNOWN = Operator("")


def define(name: str, base: Operator = _UNKNOWN, **known: Any) -> Operator:
    """Make the record of an operator: what is said of `base`, and what is known beside it.

    Args:
        name: without the domain.
        base: a record that holds for a family.
        known: attributes of `Operator`.
    """
    record = dataclasses.replace(base, name=name, **known)
    assert (record.domain, name) not in OPERATORS, f"{name} has two records"
    OPERATORS[record.domain, name] = record
    return record


def record_of(node: ir.Node) -> Operator:
    """Return the record of a node's operator; of an operator without a page the one that says nothing."""
    return OPERATORS.get((node.domain, node.op_type), _UNKNOWN)


def holds_programs(node: ir.Node) -> bool:
    """Return whether ontrain runs the graphs inside a node: a branch, a loop, a search of a kind that it knows."""
    record = record_of(node)
    return record.control or (bool(record.searches) and model_kind(node) in record.searches)


def model_kind(node: ir.Node) -> int:
    """Return the attribute `model_type` of a search for text; where it is left out, the first kind that the search has.

    0 is a decoder like GPT-2's, 1 an encoder and a decoder like T5's, 2 those of speech like Whisper's.
    """
    default = record_of(node).searches[0]
    kind = node.attributes.get_int("model_type", default)
    return default if kind is None else kind


def attribute_of(node: ir.Node, name: str) -> Any:
    """Return the value of a standard operator's attribute, its default where the node leaves it out."""
    own = node.attributes.get(name)
    return own.value if own is not None else _default(node.op_type, name)


@cache
def _default(op_type: str, name: str) -> Any:
    schema = schema_of(op_type)
    default = None if schema is None else schema.attributes[name].default_value
    return None if default is None or not default.type else ir.serde.deserialize_attribute(default).value
