"""The part of a graph that can be computed without some of its inputs."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ontrain.errors import InputError
from ontrain.graph import reads, rebuild

__all__ = ["without_inputs"]


def without_inputs(model: ir.Model, missing: Collection[str]) -> ir.Model:
    """Return the model with the outputs that depend on none of these inputs, and without the inputs.

    Args:
        model: left untouched.
        missing: names of inputs.

    Raises:
        InputError: there is no such output.
    """
    part = rebuild(model)
    graph = part.graph
    unknown = {value for value in graph.inputs if value.name in missing}
    for node in graph:
        if any(value in unknown for value in reads(node)):
            unknown.update(node.outputs)
    computable = [value for value in graph.outputs if value not in unknown]
    if not computable:
        name = next(iter(missing))
        raise InputError(f"input {name!r} is missing", reason="every output depends on it", way_out="feed all inputs")
    del graph.outputs[:]
    graph.outputs.extend(computable)
    part = rebuild(part)
    for value in [value for value in part.graph.inputs if value.name in missing]:
        part.graph.inputs.remove(value)
    return part
