"""A user's function on the captured graph, before it is specialised and differentiated."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from ontrain.errors import OptionError
from ontrain.graph import rebuild, verify

__all__ = ["postprocessed"]


def postprocessed(model: ir.Model, function: Callable[[onnx.ModelProto], object]) -> ir.Model:
    """Return what a user's function makes of a captured graph.

    Args:
        model: captured graph; left untouched.
        function: gets the graph as an `onnx.ModelProto` and changes it in place, or returns another. Parameters are
            inputs under their `state_dict` names. What has a gradient of its own, as attention with dropout, is one
            node of the domain `ontrain`. Inputs and outputs must stay.

    Raises:
        OptionError: the function returned something else, or took an input or output away.
        GraphError: the graph that it left is malformed.
    """
    proto = ir.to_proto(model)
    result = function(proto)
    if result is not None and not isinstance(result, onnx.ModelProto):
        raise OptionError(
            f"the postprocessing function returned a {type(result).__name__}",
            way_out="change the ModelProto in place and return None, or return a ModelProto",
        )
    copy = ir.from_proto(proto if result is None else result)
    for what, before, after in (
        ("input", model.graph.inputs, copy.graph.inputs),
        ("output", model.graph.outputs, copy.graph.outputs),
    ):
        left = {value.name: value for value in after}
        for value in before:
            if value.name not in left:
                raise OptionError(
                    f"the postprocessing function took the {what} {value.name!r} away",
                    way_out="leave the graph's inputs and outputs as they are",
                )
            left[value.name].metadata_props.update(value.metadata_props)
    rebuilt = rebuild(copy)
    verify(rebuilt, after="postprocessing")
    rebuilt.meta.update(model.meta)
    return rebuilt
