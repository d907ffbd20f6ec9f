"""ONNX files as they lie on the disk: read, checked, and guarded for stock onnxruntime. Needs the package onnx only.

What is named here is loaded when it is first asked for: onnxruntime's own sessions run files that nobody reads here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ontrain.files.checks import check_proto as check_proto
    from ontrain.files.expansion import call_depth as call_depth, check_expansion as check_expansion
    from ontrain.files.guard_errors import sprung as sprung
    from ontrain.files.inferred_shapes import inferred_graph as inferred_graph, with_shapes as with_shapes
    from ontrain.files.inner_graphs import subgraphs as subgraphs
    from ontrain.files.left import left_data as left_data
    from ontrain.files.order import in_order as in_order
    from ontrain.files.ranks import infers_rank as infers_rank, with_types as with_types
    from ontrain.files.read import (
        Source as Source,
        check_external as check_external,
        read_proto as read_proto,
        tensors_of as tensors_of,
    )
    from ontrain.files.schemas import OPSET as OPSET, imports_of as imports_of, schema_of as schema_of
    from ontrain.files.suspicion import TRAPS as TRAPS, suspect as suspect
    from ontrain.files.traps import guard as guard

_HOMES = {
    "checks": ("check_proto",),
    "expansion": ("call_depth", "check_expansion"),
    "guard_errors": ("sprung",),
    "inferred_shapes": ("inferred_graph", "with_shapes"),
    "inner_graphs": ("subgraphs",),
    "left": ("left_data",),
    "order": ("in_order",),
    "ranks": ("infers_rank", "with_types"),
    "read": ("Source", "check_external", "read_proto", "tensors_of"),
    "schemas": ("OPSET", "imports_of", "schema_of"),
    "suspicion": ("TRAPS", "suspect"),
    "traps": ("guard",),
}
"""The file in which each name stands."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"ontrain.files.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
