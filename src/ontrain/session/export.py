"""A trained graph as a stand-alone ONNX file: plain operators, parameters inside, loss and label gone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.errors import OptionError
from ontrain.functions import inline_all
from ontrain.graph import Role, by_role, live_nodes, rebuild
from ontrain.graph.subgraphs import captured

__all__ = ["inference_model", "save_model"]

_INLINE_LIMIT = 1 << 30
"""Bytes of parameters beyond which they go to a file of their own beside the model (protobuf ends at 2 GiB)."""


def inference_model(model: ir.Model, state: Mapping[str, Any], outputs: Sequence[str]) -> ir.Model:
    """Return an evaluation graph with its parameters as initializers.

    Args:
        model: captured in evaluation mode; symbolic dimensions stay.
        state: values of parameters and buffers by name, as arrays.
        outputs: names of the outputs to keep; inputs that only the others need are dropped.
    """
    made = inline_all(rebuild(model))
    graph = made.graph
    kept = [v for v in graph.outputs if v.name in outputs]
    del graph.outputs[:]
    graph.outputs.extend(kept)
    made = rebuild(made)
    graph = made.graph
    used = set(graph.outputs)
    for node in live_nodes(graph):
        used.update((*(v for v in node.inputs if v is not None), *captured(node)))
    for value in by_role(graph, Role.PARAMETER, Role.BUFFER):
        graph.inputs.remove(value)
        value.metadata_props.clear()
        if value in used:
            value.const_value = ir.tensor(state[value.name or ""], name=value.name)
            graph.register_initializer(value)
    for value in list(graph.inputs):
        if value not in used:
            graph.inputs.remove(value)
    for node in graph:
        node.metadata_props.clear()
    made.graph.opset_imports.pop("ontrain", None)
    return made


def save_model(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Check a model and write it, beside and then renamed into place.

    Raises:
        OptionError: the folder does not exist or cannot be written.
    """
    target = Path(path)
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise OptionError(
            f"cannot write {os.fspath(path)!r}",
            reason="its folder does not exist or is not writable",
            way_out="create the folder, or choose another path",
        )
    values = (v.const_value for v in model.graph.initializers.values())
    size = sum(v.nbytes for v in values if v is not None)
    beside = target.with_name(f".{target.name}.partial")
    if size > _INLINE_LIMIT:
        ir.save(model, beside, external_data=f"{target.name}.data")
    else:
        proto = ir.to_proto(model)
        onnx.checker.check_model(proto, full_check=True)
        beside.write_bytes(proto.SerializeToString())
    os.replace(beside, target)
