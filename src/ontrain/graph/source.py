"""Where a node came from: the line of the user's model, and a printable description of the node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from ontrain.graph.ties import TIES

__all__ = ["annotate", "describe", "inherit_source", "name_of", "pass_source_on", "shape_text", "source_of"]

_SOURCE, _MODULE, _NAME = "ontrain.source", "ontrain.module", "ontrain.name"
_INHERITED = (_SOURCE, _MODULE, _NAME, TIES)


def annotate(node: ir.Node, source: str | None, module: str | None, name: str | None = None) -> None:
    """Record the user's source line ("file.py:12: code") and module path ("encoder.layer.0") on a node.

    A node of a file has a name there, too.
    """
    if name:
        node.metadata_props[_NAME] = name
    if source:
        node.metadata_props[_SOURCE] = source
    if module:
        node.metadata_props[_MODULE] = module


def source_of(node: ir.Node) -> str | None:
    """Return the user's line that made the node, with the module it sits in, or None."""
    source, module = node.metadata_props.get(_SOURCE), node.metadata_props.get(_MODULE)
    return f"{source} (in {module})" if source and module else source or module


def name_of(node: ir.Node) -> str:
    """Return the name of the file's node that a node derives from; "" where it has none."""
    return node.metadata_props.get(_NAME, "")


@contextmanager
def inherit_source(node: ir.Node, nodes: list[ir.Node]) -> Iterator[None]:
    """Give every node that is appended to `nodes` inside the block the source of `node`, and its order of ties."""
    start = len(nodes)
    yield
    pass_source_on(node, nodes[start:])


def pass_source_on(node: ir.Node, nodes: Sequence[ir.Node]) -> None:
    """Give nodes that were made of `node` its source and its order of ties, where they have none."""
    known = {key: text for key, text in node.metadata_props.items() if key in _INHERITED}
    for new in nodes:
        for key, text in known.items():
            new.metadata_props.setdefault(key, text)


def shape_text(value: ir.Value | None) -> str:
    """Return "float32[batch, 128]" for a value."""
    if value is None:
        return "absent"
    dtype = str(value.dtype).lower() if value.dtype is not None else "unknown"
    dims = "?" if value.shape is None else ", ".join(str(_dim(d)) for d in value.shape)
    return f"{dtype}[{dims}]"


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def describe(node: ir.Node) -> str:
    """Return a node as one readable line: operator, name, inputs with dtype and shape, outputs."""
    op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    inputs = ", ".join("-" if v is None else f"{v.name}: {shape_text(v)}" for v in node.inputs)
    outputs = ", ".join(f"{v.name}: {shape_text(v)}" for v in node.outputs)
    return f"{op}({inputs}) -> {outputs}"
