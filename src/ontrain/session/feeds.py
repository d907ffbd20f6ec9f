"""A batch against a graph: dtype, shape, device and label range, each refused in words that say what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.capture import FIXED, GUARDS, tensor_dtype
from ontrain.errors import InputError
from ontrain.graph import Role, by_role, describe, shape_text, source_of
from ontrain.internals import tensor_of
from ontrain.operators import Indexes, View, is_from_start, record_of
from ontrain.sizes import parse

__all__ = [
    "FILE",
    "MixedSizesError",
    "Origin",
    "Signature",
    "batch_inputs",
    "check_feed",
    "check_feeds",
    "check_guards",
    "check_shape",
    "explain_index_error",
    "normalises_by_batch",
]


@dataclass(frozen=True)
class Origin:
    """Where the types of inputs come from, in the words of errors.

    Attributes:
        states: what leads to the type that an input has.
        convert: how an input gets another dtype.
        vary: how a fixed dimension is made to vary.
        part: how two dimensions of one name get sizes of their own.
    """

    states: str
    convert: str
    vary: str
    part: str


MODULE = Origin(
    states="the model was captured with",
    convert="convert it with .to(torch.{dtype})",
    vary="name the dimension by a string in model_desc to let it vary",
    part="describe it under two names",
)
"""A module, and the description of its inputs."""
FILE = Origin(
    states="the file states",
    convert="feed it as {dtype}",
    vary="export the file with a dimension that varies there",
    part="give it two names in the file",
)
"""A file that a session for inference runs."""


class MixedSizesError(InputError):
    """A dimension that has one name has two sizes."""


class ScalarError(InputError):
    """Something that has sizes is fed where the graph states a scalar."""


Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""Input names with concrete shapes: what a plan is made for."""


def batch_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Return the graph inputs that each batch brings."""
    return by_role(graph, Role.INPUT, Role.LABEL)


def check_feeds(
    graph: ir.Graph, feeds: Mapping[str, torch.Tensor], device: torch.device, origin: Origin = MODULE
) -> Signature:  # fmt: skip
    """Check a batch and return its signature; `origin` says in errors where the types of inputs come from.

    Raises:
        InputError: a missing input, a wrong dtype, rank, fixed dimension or device, or one symbolic dimension with
            two sizes.
    """
    sizes: dict[str, tuple[int, str]] = {}
    signature: list[tuple[str, tuple[int, ...]]] = []
    for value in batch_inputs(graph):
        name = value.name or ""
        if name not in feeds:
            raise InputError(f"the batch has no {name!r}", way_out=f"feed {_expected(graph)}")
        tensor = feeds[name]
        check_feed(value, tensor, device, sizes, origin)
        signature.append((name, tuple(tensor.shape)))
    return tuple(signature)


def check_feed(
    value: ir.Value, tensor: torch.Tensor, device: torch.device, sizes: dict[str, tuple[int, str]],
    origin: Origin = MODULE,
) -> None:  # fmt: skip
    """Check what is fed for one input; `sizes` says of dimensions by name how long they are, and in which input.

    Raises:
        InputError: see `check_feeds`.
    """
    _check_dtype(value, tensor, origin)
    if tensor.device.type != device.type:
        raise InputError(
            f"input {value.name!r} is on {tensor.device}, the graph runs on {device}",
            way_out=f"move it with .to({str(device)!r}), or set the device in the options",
        )
    if value.shape is not None:
        check_shape(value, tuple(tensor.shape), sizes, origin)


def check_guards(model: ir.Model, signature: Signature) -> None:
    """Check a batch's sizes against what the module's forward assumed of them when it was captured.

    Raises:
        InputError: forward would take another branch for these sizes than the graph has, or would refuse them.
    """
    guards = model.meta.get(GUARDS)
    if guards is None:
        return
    violated = guards.violated(dict(signature), ones=False)
    if violated is not None:
        raise InputError(
            f"the graph holds for {violated} only",
            reason="the module's forward decides by this size, and the graph has the branch of the first batch",
            way_out="feed batches that fulfil it, pad them, or use ORTModule, which captures each branch; if all "
            "batches have this size, write it in model_desc",
        )
    _check_statistics(model.graph, dict(signature))


def _check_statistics(graph: ir.Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a batch of one value per channel for the statistics of a batch normalisation, as eager PyTorch does.

    Its running variance would not be finite. A trace takes sizes that vary to be two at least.
    """
    nodes = [node for node in graph if normalises_by_batch(node)]
    sizes: dict[str, int] = {}
    for value in batch_inputs(graph) if nodes else ():
        for dim, size in zip(value.shape or (), shapes[value.name or ""], strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                sizes[dim.value] = size
    for node in nodes:
        x = node.inputs[0]
        shape = [None if x is None else _number(dim, sizes) for dim in (x.shape if x is not None and x.shape else ())]
        counts = [size for axis, size in enumerate(shape) if axis != 1]
        if counts and None not in counts and set(counts) == {1}:
            raise InputError(
                f"Expected more than 1 value per channel when training, got input size {shape}",
                node=describe(node), source=source_of(node),
                reason="a variance of one value is none, and eager PyTorch refuses it in these words",
                way_out="leave out a last batch of one row, DataLoader(…, drop_last=True), or set the layer to eval()",
            )  # fmt: skip


def _number(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | None:
    """How long a dimension is where its symbols stand for these sizes; None if that is not known."""
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return None
    size = parse(dim.value)
    return int(size.value(dict(sizes))) if size.symbols() <= sizes.keys() else None


def normalises_by_batch(node: ir.Node) -> bool:
    """Whether a node takes the statistics of the batch, and updates its running ones."""
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and mode is not None and mode.as_int() == 1


def _check_dtype(value: ir.Value, tensor: torch.Tensor, origin: Origin) -> None:
    assert value.dtype is not None
    have = str(tensor.dtype).removeprefix("torch.")
    want = _torch_name(value.dtype)
    if have != want:
        raise InputError(
            f"input {value.name!r} is {have}, the graph expects {want}",
            reason=f"{origin.states} {value.name}: {shape_text(value)}",
            way_out=origin.convert.format(dtype=want),
        )


def _torch_name(dtype: ir.DataType) -> str:
    """Torch's name of a dtype; ONNX's of what torch does not have."""
    try:
        return str(tensor_dtype(dtype)).removeprefix("torch.")
    except TypeError:
        return dtype.name.lower()


def check_shape(
    value: ir.Value, shape: Sequence[int], sizes: dict[str, tuple[int, str]], origin: Origin = MODULE
) -> None:  # fmt: skip
    """Check the shape of what is fed for an input whose shape the graph states; `sizes` as for `check_feed`.

    Raises:
        InputError: a wrong rank or fixed dimension.
        ScalarError: sizes where the graph states none.
        MixedSizesError: one symbolic dimension with two sizes.
    """
    assert value.shape is not None
    name, wanted = value.name or "", list(value.shape)
    fits = len(wanted) == len(shape) and all(
        not isinstance(w, int) or w == s for w, s in zip(wanted, shape, strict=True)
    )
    if not fits:
        text = [w if isinstance(w, int) else w.value for w in wanted]
        problem = f"input {name!r} has shape {list(shape)}, the graph expects {text}"
        same_rank = len(wanted) == len(shape)
        if same_rank and (fixed := _fixed_by_forward(value, shape)):
            raise InputError(
                problem, reason=f"forward fixes the dimension {fixed[0]!r}, as a loop of Python's over a size does",
                way_out="pad each batch to that size, or train the module in a loop of your own with ORTModule, which "
                "captures it for each size",
            )  # fmt: skip
        raise (InputError if wanted else ScalarError)(
            problem, way_out="feed that shape" + (f", or {origin.vary}" if same_rank else "")
        )
    for dim, size in zip(wanted, shape, strict=True):
        if isinstance(dim, int) or dim.value is None:
            continue
        before = sizes.setdefault(dim.value, (size, name))
        if before[0] != size:
            raise MixedSizesError(
                f"dimension {dim.value!r} is {size} in input {name!r} and {before[0]} in {before[1]!r}",
                way_out=f"give the batch one size along it, or {origin.part}",
            )


def _fixed_by_forward(value: ir.Value, shape: Sequence[int]) -> list[str]:
    """The names of dimensions that have another size here and were described as varying."""
    noted = [note.split(":", 1) for note in value.metadata_props.get(FIXED, "").split(",") if note]
    assert value.shape is not None
    return [name for axis, name in noted if value.shape[int(axis)] != shape[int(axis)]]


def _expected(graph: ir.Graph) -> str:
    return ", ".join(f"{v.name}: {shape_text(v)}" for v in batch_inputs(graph))


def explain_index_error(graph: ir.Graph, feeds: Mapping[str, object]) -> InputError | None:
    """Find the label or id that lies outside what an operator can index; None if there is none."""
    for node in graph:
        limit, ids, ignore = _indexing(node)
        if ids is None or limit is None:
            continue
        origin = _origin(ids)
        tensor = feeds.get(origin.name or "")
        if tensor is None:
            continue
        wrong = tensor_of(tensor)
        least = -limit if record_of(node).indexes is Indexes.ALONG_AXIS and not is_from_start(ids) else 0
        wrong = wrong[(wrong < least) | (wrong >= limit)]
        if ignore is not None:
            wrong = wrong[wrong != ignore]
        if wrong.numel():
            what = "index" if record_of(node).labels is None else "label"
            return InputError(
                f"input {origin.name!r} holds {what} {int(wrong[0])}, allowed is {least} to {limit - 1}"
                + (f", or {ignore} to ignore a row" if ignore is not None else ""),
                node=describe(node),
                source=source_of(node),
                way_out="check the labels against the number of classes, and the vocabulary against the tokenizer",
            )
    return None


def _indexing(node: ir.Node) -> tuple[int | None, ir.Value | None, int | None]:
    """(how many there are to index, the indices, the index that is ignored) of an operator that indexes."""

    def size(value: ir.Value | None, axis: int) -> int | None:
        if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
            return None
        dim = value.shape[axis]
        return dim if isinstance(dim, int) else None

    if (labels := record_of(node).labels) is not None:
        ignore = node.attributes["ignore_index"].as_int() if "ignore_index" in node.attributes else None
        in_head = node.op_type == "LinearCrossEntropy"
        classes = size(node.inputs[2], 1 - node.attributes["transB"].as_int()) if in_head else size(node.inputs[0], 1)
        return classes, node.inputs[labels], ignore
    if record_of(node).indexes in (Indexes.ALONG_AXIS, Indexes.ROWS):
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        return size(node.inputs[0], axis), node.inputs[1], None
    return None, None, None


def _origin(value: ir.Value) -> ir.Value:
    """The graph input that a value is a rearrangement of, or the value itself."""
    producer = value.producer()
    # PackRows takes some of the rows: those that are left out are not used as indices.
    while producer is not None and (record_of(producer).keeps_values or record_of(producer).view is View.REPEATED):
        assert producer.inputs[0] is not None
        value = producer.inputs[0]
        producer = value.producer()
    return value
