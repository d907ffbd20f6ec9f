"""Shapes that a file states, against those that its operators give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from ontrain.errors import GraphError
from ontrain.files import inferred_outputs
from ontrain.inference.options import config_entry

__all__ = ["STRICT", "check_stated_shapes", "sizes_by_onnx", "told_sizes"]

STRICT = "session.strict_shape_type_inference"
_SMALL = 1 << 10
"""Bytes of an initializer that may be a shape; the contents of larger ones are left out."""

Sizes = Sequence[int | str | None]
"""Numbers, names, and None for what is unknown."""


def check_stated_shapes(model: onnx.ModelProto, options: Any) -> None:
    """Refuse a model whose stated shapes contradict its operators, if the options ask for this.

    Source: onnxruntime_session_options_config_keys.h, `kOrtSessionOptionsConfigStrictShapeTypeInference`.

    Args:
        model: with its data.
        options: of the session, or None.

    Raises:
        GraphError: a stated shape or type is another than the one that follows from the operators.
    """
    if config_entry(options, STRICT) != "1":
        return
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        if len(tensor.raw_data) > _SMALL:
            tensor.ClearField("raw_data")
    try:
        onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise GraphError(
            "the model's stated shapes contradict its operators",
            reason=" ".join(str(error).split()),
            way_out=f"correct the shapes, or leave out the entry {STRICT!r}",
        ) from error


def told_sizes(
    own: Sizes, stated: Sizes, proto: onnx.ModelProto, name: str, *, changed: bool
) -> list[int | str | None]:
    """Return what a session tells of an output's sizes: numbers that follow from the graph, and the file's names.

    As in onnxruntime, where the file contradicts the graph, neither is told: not the sizes where their number differs,
    and no size that the two have different. A contradiction that onnxruntime does not see is told as the file has it.
    Where optimisation changed the graph, onnxruntime has inferred the sizes anew, and what the file says is forgotten.

    Args:
        own: what follows from the graph.
        stated: what the file says.
        proto: the model, left untouched.
        name: of the output.
        changed: whether the graph was optimised.
    """
    clash = _clash(own, stated)
    if clash is not None:
        own = _seen(own, stated, proto, name)
        clash = _clash(own, stated)
    if clash is None:
        return [_told(size, dim) for size, dim in zip(own, stated, strict=True)]
    if changed:
        return list(own)
    pairs = [] if len(own) != len(stated) else zip(own, stated, strict=True)
    return [_agreed(size, dim, at < clash) for at, (size, dim) in enumerate(pairs)]


def sizes_by_onnx(proto: onnx.ModelProto) -> dict[str, list[int | str | None]]:
    """Return the sizes that onnx infers of outputs that are tensors, without what it knows nothing of.

    Args:
        proto: the model, left untouched.
    """
    named = {dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    inferred = inferred_outputs(proto, {value.name for value in proto.graph.output})
    return {
        name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param if dim.dim_param in named else None
            for dim in shape.dim
        ]
        for name, shape in inferred.items()
        if shape is not None
    }


def _seen(own: Sizes, stated: Sizes, proto: onnx.ModelProto, name: str) -> Sizes:
    """What follows from the graph; the file's where onnx infers no number, so that it sees no contradiction."""
    inferred = inferred_outputs(proto, [name])
    shape = inferred.get(name)
    if shape is None:
        return stated if name in inferred else own
    if not len(own) == len(stated) == len(shape.dim):
        return own
    sizes = zip(own, stated, shape.dim, strict=True)
    return [told if isinstance(told, int) and not dim.HasField("dim_value") and isinstance(size, int) else size
            for size, told, dim in sizes]  # fmt: skip


def _clash(sizes: Sizes, stated: Sizes) -> int | None:
    """The first place at which the file states another number than follows from the graph; 0 for another rank."""
    if len(sizes) != len(stated):
        return 0
    pairs = enumerate(zip(sizes, stated, strict=True))
    return next((at for at, pair in pairs if all(isinstance(n, int) for n in pair) and pair[0] != pair[1]), None)


def _agreed(size: int | str | None, stated: int | str | None, is_merged: bool) -> int | str | None:
    """What is left of a size where others clash: those before the clash have been merged."""
    return size if size == (_told(size, stated) if is_merged else stated) else None


def _told(size: int | str | None, stated: int | str | None) -> int | str | None:
    """What is told of a size that follows from the graph, and of which the file states a number, a name or nothing."""
    return size if isinstance(size, int) or stated is None else stated
