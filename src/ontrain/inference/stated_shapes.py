"""Shapes that a file states, against those that its operators give."""

from __future__ import annotations

from typing import Any

import onnx

from ontrain.errors import GraphError
from ontrain.files import inferred_graph
from ontrain.inference.options import config_entry

__all__ = ["STRICT", "check_stated_shapes"]

STRICT = "session.strict_shape_type_inference"


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
    try:
        inferred_graph(model, strict=True)
    except onnx.shape_inference.InferenceError as error:
        raise GraphError(
            "the model's stated shapes contradict its operators",
            reason=" ".join(str(error).split()),
            way_out=f"correct the shapes, or leave out the entry {STRICT!r}",
        ) from error
