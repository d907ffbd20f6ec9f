"""Operators of older operator sets rewritten in the terms of ontrain's own.

An adapter says what one operator of one range of versions becomes; whatever has none means the same today. Source:
the changelog of the ONNX operators. Where an adapter needs a shape it computes it in the graph: specialisation folds
that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.onnx_file.experiments import EXPERIMENTS
from ontrain.capture.onnx_file.settings import check_settings
from ontrain.capture.onnx_file.site import Site
from ontrain.errors import GraphError
from ontrain.functions import lookup
from ontrain.graph import OPSET, blamed_on, describe, every_node, schema_of, source_of
from ontrain.operators import form_of, holds_programs, record_of

__all__ = ["upgrade"]


Adapter = Callable[[Site], None]
_ADAPTERS: dict[str, list[tuple[int, Adapter]]] = {}


def _below(version: int, *op_types: str) -> Callable[[Adapter], Adapter]:
    """Register an adapter for operators of operator sets below `version`; of several the lowest version runs first."""

    def register(adapter: Adapter) -> Adapter:
        for op_type in op_types:
            steps = _ADAPTERS.setdefault(op_type, [])
            steps.append((version, adapter))
            steps.sort(key=lambda step: step[0])
        return adapter

    return register


for _op_type, (_version, _adapter) in EXPERIMENTS.items():
    _below(_version, _op_type)(_adapter)


def upgrade(model: ir.Model, *, foreign: bool = False, trains: bool = True) -> None:
    """Rewrite every node of the model, those of subgraphs too, to ontrain's operator set, in place.

    Args:
        model: with its functions inlined.
        foreign: whether operators of other domains may be ones that ontrain does not know.
        trains: whether the model may be trained, and not only run as the file has it.

    Raises:
        GraphError: an operator, or one use of it, has no form at ontrain's operator set; names the node.
    """
    for node in list(every_node(model.graph)):
        graph = node.graph
        if node.domain == "ai.onnx":
            node.domain = ""
        if node.domain or not isinstance(graph, ir.Graph):
            if not foreign:
                _known(node)
            continue
        site, version = Site(node, graph, trains=trains), node.version or OPSET
        for below, adapter in _ADAPTERS.get(node.op_type, ()):
            if version < below and node.graph is not None:
                with blamed_on(node, f"{node.op_type} of operator set {version} cannot be converted"):
                    adapter(site)
        if node.graph is not None:
            _known(node)
    model.opset_imports[""] = OPSET


_OTHERS = (
    ", register the operator with @ontrain.op, or, to run it, let CPUExecutionProvider follow in the list of providers"
)


_LAYOUT = "com.microsoft.nchwc"


def _unknown_reason(node: ir.Node) -> str:
    if not node.domain:
        return f"it is not in operator set {OPSET}"
    if node.domain == _LAYOUT:
        return "onnxruntime writes it into optimised files, for images in the layout of one kind of processor"
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return "it is no operator of the standard, and only its own runtime knows how it runs the graphs inside it"
    return "it is no operator of the standard"


def _way_out(node: ir.Node) -> str:
    if node.domain != _LAYOUT:
        return "export the model with standard operators" + (_OTHERS if node.domain else "")
    return (
        "take the file that it was optimised from, or have it optimised at ORT_ENABLE_EXTENDED; or, to run it, let "
        "CPUExecutionProvider follow in the list of providers"
    )


def _known(node: ir.Node) -> None:
    """Refuse an operator that neither the standard at ontrain's version nor ontrain itself has, and wrong settings."""
    check_settings(node)
    if lookup(node) is not None or record_of(node).foreign or (node.domain and holds_programs(node)):
        return
    schema = form_of(node) if not node.domain else schema_of(node.op_type, node.domain, node.version or 1)
    name = f"{node.domain or 'ai.onnx'}.{node.op_type}"
    if schema is None or schema.deprecated:
        raise GraphError(
            f"operator {name} of operator set {node.version} is unknown to ontrain",
            node=describe(node),
            source=source_of(node),
            reason=_unknown_reason(node),
            way_out=_way_out(node),
        )
    for attribute in node.attributes:
        if attribute not in schema.attributes:
            raise GraphError(
                f"{name} has no attribute {attribute!r} at operator set {OPSET}",
                node=describe(node),
                source=source_of(node),
                reason=f"the model was written for operator set {node.version}",
                way_out=f"export it at operator set {OPSET}, if it can do without",
            )
    if len(node.inputs) > schema.max_input or len(node.outputs) > schema.max_output:
        raise GraphError(
            f"{name} has {len(node.inputs)} inputs, {schema.max_input} at operator set {OPSET}",
            node=describe(node),
            source=source_of(node),
        )


def _to_input(site: Site, name: str, dtype: Any = np.int64) -> None:
    """Turn an attribute into the second input."""
    value = site.take(name, None)
    if value is not None:
        site.inputs(site.node.inputs[0], site.const(value, dtype))


@_below(8, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater", "PRelu", "Gemm", "Sum",
        "Mean", "Max", "Min", "Dropout", "BatchNormalization", "InstanceNormalization", "Sqrt", "Abs", "Exp", "Log",
        "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Neg", "Reciprocal", "Floor", "Ceil", "Clip", "Elu", "Selu",
        "HardSigmoid")  # fmt: skip
def _hint(site: Site) -> None:
    """`consumed_inputs` was a hint that an operator may overwrite its input."""
    site.take("consumed_inputs")


@_below(17, "LayerNormalization")
def _early_layer_normalization(site: Site) -> None:
    """onnxruntime's optimisers wrote it before the standard had it: the result is of the scale's dtype.

    It may have attributes of other names, which nothing reads.
    """
    for name in set(site.node.attributes) - {"axis", "epsilon", "stash_type"}:
        site.take(name)
    x, scale, *bias = site.node.inputs
    if x is None or scale is None or (x.dtype is not None and x.dtype == scale.dtype):
        return
    if x.dtype == ir.DataType.FLOAT and not any(value.uses() for value in site.node.outputs[1:]):
        wide = [site.emit("CastLike", value, x) for value in (scale, *bias) if value is not None]
        settings = {name: attr.value for name, attr in site.node.attributes.items()}
        site.replace(site.emit("CastLike", site.emit("LayerNormalization", x, *wide, **settings), scale))
        return
    site.inputs(site.emit("CastLike", x, scale), scale, *bias)


@_below(7, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")
def _broadcast(site: Site) -> None:
    """`broadcast` and `axis` said where the second operand's dimensions lie; today they lie at the end."""
    broadcast, axis = site.take("broadcast", 0), site.take("axis")
    if not broadcast or axis is None:
        return
    a, b = site.input(0), site.input(1)
    behind = site.const(-axis) if axis < 0 else site.emit("Sub", _rank(site, a), site.const(axis))
    tail = _ones(site, site.emit("Sub", behind, _rank(site, b)))
    site.inputs(a, site.emit("Reshape", b, site.emit("Concat", site.emit("Shape", b), tail, axis=0)))


def _rank(site: Site, value: ir.Value | None) -> ir.Value:
    return site.emit("Size", site.emit("Shape", value))


def _ones(site: Site, count: ir.Value) -> ir.Value:
    return site.emit("ConstantOfShape", site.emit("Reshape", count, site.const([1])), value=ir.tensor(np.array([1])))


@_below(7, "PRelu")
def _prelu(site: Site) -> None:
    """A slope of one value per channel was taken along axis 1; today it broadcasts from the end."""
    x, slope = site.input(0), site.input(1)
    tail = _ones(site, site.emit("Sub", _rank(site, x), site.const(2)))
    site.inputs(x, site.emit("Reshape", slope, site.emit("Concat", site.const([-1]), tail, axis=0)))


@_below(7, "Gemm")
def _gemm(site: Site) -> None:
    site.take("broadcast")


@_below(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax(site: Site) -> None:
    """It normalised over all dimensions from `axis` on together."""
    x, axis = site.input(0), site.take("axis", 1)
    assert x is not None
    flat = site.emit("Flatten", x, axis=axis)
    product = site.emit(site.node.op_type, flat, axis=1)
    site.replace(site.reshaped(product, x))


@_below(13, "Squeeze", "Unsqueeze", "ReduceSum")
@_below(18, "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip
def _axes(site: Site) -> None:
    _to_input(site, "axes")


@_below(13, "Split")
def _split_sizes(site: Site) -> None:
    if site.node.version is not None and site.node.version < 2 and site.has(1):
        return
    _to_input(site, "split")


@_below(18, "Split")
def _split_count(site: Site) -> None:
    """Without sizes it split evenly, and refused what does not divide."""
    if not site.has(1):
        site.set("num_outputs", len(site.node.outputs))


@_below(5, "Reshape")
def _reshape(site: Site) -> None:
    _to_input(site, "shape")


@_below(6, "Tile")
def _tile(site: Site) -> None:
    raise site.refuse("Tile took a number and an axis then", "export the model at operator set 6 or newer")


@_below(6, "Cast")
def _cast(site: Site) -> None:
    to = site.take("to")
    name = to.decode() if isinstance(to, bytes) else str(to)
    if name.upper() not in ir.DataType.__members__:
        raise site.refuse(f"it casts to {name!r}, which is no type")
    site.set("to", int(ir.DataType[name.upper()]))


@_below(4, "Concat")
def _concat(site: Site) -> None:
    site.set("axis", site.get("axis", 1))


@_below(10, "Slice")
def _slice(site: Site) -> None:
    starts, ends, axes = site.take("starts"), site.take("ends"), site.take("axes")
    site.inputs(site.input(0), site.const(starts), site.const(ends), site.const(axes) if axes is not None else None)


@_below(10, "TopK")
def _top_k(site: Site) -> None:
    if not site.has(1):
        site.inputs(site.input(0), site.const([site.take("k")]))


@_below(2, "Pad")
def _old_pad(site: Site) -> None:
    site.set("pads", site.take("paddings"))


@_below(11, "Pad")
def _pad(site: Site) -> None:
    pads, value = site.take("pads"), site.take("value", 0.0)
    x = site.input(0)
    if pads is None:
        raise site.refuse("Pad has no pads")
    fill = site.emit("CastLike", site.const(value, np.float32), x)
    site.inputs(x, site.const(pads), fill if site.get("mode", "constant") in ("constant", b"constant") else None)


@_below(11, "Clip")
def _clip(site: Site) -> None:
    if len(site.node.inputs) > 1:
        return
    low, high, x = site.take("min"), site.take("max"), site.input(0)
    bounds = [None if b is None else site.emit("CastLike", site.const(b, np.float32), x) for b in (low, high)]
    site.inputs(x, *bounds)


@_below(12, "Dropout")
def _dropout(site: Site) -> None:
    """The ratio was an attribute; `is_test` of the first versions said that nothing is dropped."""
    ratio, training = site.take("ratio", 0.5), not site.take("is_test", 1)
    flag = site.const(True, np.bool_) if training and (site.node.version or 1) < 7 else None
    site.inputs(site.input(0), site.const(ratio, np.float32), flag)
    mask = site.node.outputs[1] if len(site.node.outputs) > 1 else None
    if mask is not None and not site.trains and (mask.uses() or mask.is_graph_output()):
        _unset(site, mask)


def _unset(site: Site, mask: ir.Value) -> None:
    """Where nothing was dropped the mask said nothing: onnxruntime fills it with zeros."""
    zeros = site.emit("ConstantOfShape", site.emit("Shape", site.input(0)), value=ir.tensor(np.array([False])))
    unset = zeros if (site.node.version or 1) >= 10 else site.emit("CastLike", zeros, site.input(0))
    unset.name = mask.name
    mask.name = None
    ir.convenience.replace_all_uses_with([mask], [unset], replace_graph_outputs=True)
    site.node.resize_outputs(1)


@_below(9, "BatchNormalization")
def _batch_norm(site: Site) -> None:
    """With `spatial` = 0 each position had statistics of its own, which are of a row's sizes."""
    if site.take("spatial", 1):
        return
    if site.trains or len(site.node.outputs) > 1:
        raise site.refuse("BatchNormalization with spatial = 0 normalises each position for itself")
    x, scale, bias, mean, variance = map(site.input, range(5))
    epsilon = site.emit("CastLike", site.const(site.get("epsilon", 1e-5), np.float32), variance)
    deviation = site.emit("Sqrt", site.emit("Add", variance, epsilon))
    scaled = site.emit("Mul", site.emit("Div", site.emit("Sub", x, mean), deviation), scale)
    site.replace(site.emit("Add", scaled, bias))


@_below(14, "BatchNormalization")
def _batch_norm_mode(site: Site) -> None:
    """Training was told by more than one output; the saved mean and variance exist no longer."""
    training = len(site.node.outputs) > 1 and not site.take("is_test", 0)
    site.take("is_test")
    for spare in list(site.node.outputs)[3:]:
        if spare.uses() or spare.is_graph_output():
            raise site.refuse(f"its saved statistics {spare.name!r} are read")
    if len(site.node.outputs) > 3:
        site.node.resize_outputs(3)
    if training:
        site.set("training_mode", 1)


@_below(9, "Upsample")
def _old_upsample(site: Site) -> None:
    if site.node.attributes.get("height_scale") is not None:
        raise site.refuse("Upsample took height_scale and width_scale then")
    _to_input(site, "scales", dtype=np.float32)


@_below(10, "Upsample")
def _upsample(site: Site) -> None:
    check_settings(site.node)
    site.replace(_resized(site, site.input(0), site.input(1)))


@_below(11, "Resize")
def _resize(site: Site) -> None:
    """The nearest element was that below a place along axes that grow, and that above along axes that shrink."""
    check_settings(site.node)
    x, scales = site.input(0), site.input(1)
    constant = None if scales is None else ir.convenience.get_const_tensor(scales)
    sizes = None if constant is None else constant.numpy()
    if _mode(site) != "nearest" or (sizes is not None and (sizes >= 1).all()):
        site.replace(_resized(site, x, scales))
    elif sizes is not None and (sizes <= 1).all():
        site.replace(_resized(site, x, scales, "ceil"))
    else:
        same = site.const(1, np.float32)
        grown = _resized(site, x, site.emit("Max", scales, same))
        site.replace(_resized(site, grown, site.emit("Min", scales, same), "ceil"))


def _mode(site: Site) -> str:
    mode = site.get("mode", "nearest")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    return "nearest" if mode == "nearest" else "linear"


def _resized(site: Site, x: ir.Value | None, scales: ir.Value | None, nearest: str = "floor") -> ir.Value:
    # onnx's examples and onnxruntime agree on this reading of the old operator.
    return site.emit(
        "Resize", x, None, scales, mode=_mode(site), coordinate_transformation_mode="asymmetric", nearest_mode=nearest
    )


@_below(11, "Scatter")
def _scatter(site: Site) -> None:
    site.node.op_type = "ScatterElements"


@_below(16, "RoiAlign")
def _roi_align(site: Site) -> None:
    site.set("coordinate_transformation_mode", "output_half_pixel")


@_below(20, "GridSample")
def _grid_sample(site: Site) -> None:
    mode = site.take("mode", "bilinear")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    site.set("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@_below(20, "DFT")
def _dft(site: Site) -> None:
    inputs = [site.input(0), site.input(1)]
    site.inputs(*inputs, site.const(site.take("axis", 1)))


@_below(OPSET + 1, "BlackmanWindow", "DFT", "HammingWindow", "HannWindow", "MelWeightMatrix", "STFT")
def _numbers(site: Site) -> None:
    """Lengths and the like are numbers; onnxruntime takes arrays of one element for them, too."""
    numbers = record_of(site.node).settings
    site.inputs(*(_as_number(site, v) if i in numbers and v is not None else v for i, v in enumerate(site.node.inputs)))


def _as_number(site: Site, value: ir.Value) -> ir.Value:
    if value.shape is not None and not len(value.shape):
        return value
    return site.emit("Reshape", value, site.const(np.empty(0)))


@_below(21, "GroupNormalization")
def _group_norm(site: Site) -> None:
    """Scale and bias had one value per group, today one per channel."""
    groups, x = site.get("num_groups"), site.input(0)
    channels = site.emit("Shape", x, start=1, end=2)
    each = site.emit("Div", channels, site.const([groups]))

    def widened(value: ir.Value | None) -> ir.Value:
        column = site.emit("Reshape", value, site.const([-1, 1]))
        wide = site.emit("Expand", column, site.emit("Concat", site.const([1]), each, axis=0))
        return site.emit("Reshape", wide, site.const([-1]))

    site.inputs(x, widened(site.input(1)), widened(site.input(2)))


@_below(7, "LSTM", "GRU", "RNN")
def _recurrent(site: Site) -> None:
    site.take("output_sequence")


@_below(9, "Scan")
def _scan(site: Site) -> None:
    """All operands had a batch dimension first: today that is a Scan over the batch, with the Scan inside it."""
    if site.has(0):
        raise site.refuse(
            "Scan took sequences of different lengths then", "export the model at operator set 9 or newer"
        )
    node, operands = site.node, [value for value in site.node.inputs[1:] if value is not None]
    body, count, directions = site.take("body"), site.get("num_scan_inputs"), site.take("directions")
    rows = [ir.Value(name=f"{node.outputs[0].name}_in_{i}") for i in range(len(operands))]
    inner = ir.node(
        "Scan", rows, {"num_scan_inputs": count, "body": body, "scan_input_directions": directions or [0] * count},
        num_outputs=len(node.outputs), version=OPSET,
    )  # fmt: skip
    inner.metadata_props.update(node.metadata_props)
    for result, output in zip(inner.outputs, node.outputs, strict=True):
        result.name = f"{output.name}_row"
    site.set("num_scan_inputs", len(operands))
    site.set("body", ir.Graph(rows, inner.outputs, nodes=[inner], opset_imports={"": OPSET}, name="batch"))
    site.inputs(*operands)


@_below(7, "Upsample")
def _first_upsample(site: Site) -> None:
    raise site.refuse("Upsample of the first operator set has another form", "export the model again")
