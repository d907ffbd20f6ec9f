"""The standard's definitions of operators, as the package onnx has them."""

from __future__ import annotations

from functools import cache

import onnx

__all__ = ["OPSET", "schema_of"]

OPSET = 23
"""Version of the default ONNX operator set inside ontrain."""


@cache
def schema_of(op_type: str, domain: str = "", version: int = OPSET) -> onnx.defs.OpSchema | None:
    """Return the operator's schema at `version`, the first later one for a newer operator; None if there is none."""
    for at in (version, *range(version + 1, onnx.defs.onnx_opset_version() + 1)):
        try:
            return onnx.defs.get_schema(op_type, at, domain)
        except onnx.defs.SchemaError:
            continue
    return None
