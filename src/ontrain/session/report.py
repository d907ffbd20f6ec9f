"""A run as one self-contained HTML file: curves, time per operator, peak memory, facts, and the step's graph."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ontrain.graph import Role, role_of, shape_text, source_of, updates_of

__all__ = ["write_report"]

_TEMPLATE = Path(__file__).with_suffix(".html")
_PLACE = '<script type="application/json" id="data"></script>'
# What could end the script element or open a comment in it; JSON may escape any character of a string.
_MARKUP = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}
_LONG_ATTRIBUTE = 120
_SHOWN_CONSTANT = 8


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    metrics: Sequence[Mapping[str, Any]],
    operators: Sequence[Mapping[str, Any]],
    peak_memory: Mapping[str, int],
    graph: ir.Model,
    facts: Mapping[str, str],
) -> None:
    """Write the report beside `path` and rename it into place.

    Args:
        path: the HTML file; its folder must exist.
        title: heading of the page.
        metrics: rows with "step", "split" ("train", "valid", "test"; absent means "train") and any of "loss", "ppl",
            "ms" and "lr"; other keys are ignored. A NaN or an infinity leaves a gap.
        operators: rows {"operator": str, "calls": int, "milliseconds": float}, of one step.
        peak_memory: bytes by what holds them.
        graph: the model whose nodes are listed, those of subgraphs included.
        facts: what the page should say about the run, in this order.

    Raises:
        OSError: the file cannot be written.
    """
    content = {
        "title": title,
        "facts": list(facts.items()),
        "metrics": [_metric(row) for row in metrics],
        "operators": [[str(r["operator"]), int(r["calls"]), float(r["milliseconds"])] for r in operators],
        "memory": list(peak_memory.items()),
        "graph": _graph(graph.graph),
    }
    text = json.dumps(content, allow_nan=False, separators=(",", ":")).translate(_MARKUP)
    page = _TEMPLATE.read_text(encoding="utf-8").replace(_PLACE, _PLACE.replace("></", f">{text}</"))
    path = Path(path)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        beside.write_text(page, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _metric(row: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"step": int(row["step"]), "split": str(row.get("split", "train"))}
    for key in ("loss", "ppl", "ms", "lr"):
        if key in row and math.isfinite(row[key]):
            entry[key] = float(f"{row[key]:.6g}")
    return entry


def _graph(graph: ir.Graph) -> dict[str, Any]:
    """Number the values once: [name, dtype and shape, remark]; nodes refer to them by number, -1 for an absent input.

    A node is [operator, name, inputs, outputs, source, attributes].
    """
    numbers: dict[ir.Value, int] = {}
    values: list[list[str]] = []
    returned = set(graph.outputs)

    def number(value: ir.Value | None) -> int:
        if value is None:
            return -1
        if value not in numbers:
            numbers[value] = len(values)
            values.append([value.name or "", shape_text(value), _remark(value, returned)])
        return numbers[value]

    inputs = [number(v) for v in graph.inputs]
    nodes = [
        [
            f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
            node.name or "",
            [number(v) for v in node.inputs],
            [number(v) for v in node.outputs],
            source_of(node) or "",
            ", ".join(_attributes(node)),
        ]
        for node in graph.all_nodes()
    ]
    outputs = [number(v) for v in graph.outputs]
    return {"name": graph.name or "", "values": values, "nodes": nodes, "inputs": inputs, "outputs": outputs}


def _remark(value: ir.Value, returned: set[ir.Value]) -> str:
    """What a value is besides a node's result: the graph's input, output or constant."""
    remarks = []
    if value.is_graph_input():
        role = role_of(value)
        remarks.append("graph input" if role is Role.INPUT else str(role))
    elif value.const_value is not None or value.is_initializer():
        tensor = value.const_value
        remarks.append("constant")
        if tensor is not None and tensor.size <= _SHOWN_CONSTANT:
            remarks[-1] += f" {tensor.numpy().tolist()}"
    if value in returned:
        updated = updates_of(value)
        remarks.append(f"new {updated}" if updated else "graph output")
    return ", ".join(remarks)


def _attributes(node: ir.Node) -> Iterator[str]:
    for name, attr in node.attributes.items():
        if isinstance(attr, ir.Attr) and attr.is_ref():
            text = f"@{attr.ref_attr_name}"
        elif attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            text = "graph"
        elif attr.type in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
            text = "tensor"
        else:
            text = str(attr.value)
        yield f"{name}={text[:_LONG_ATTRIBUTE]}" + ("…" if len(text) > _LONG_ATTRIBUTE else "")
