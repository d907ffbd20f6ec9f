"""The standard's definitions of operators, as the package onnx has them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import onnx

__all__ = ["OPSET", "STANDARD", "imports_of", "schema_of"]

STANDARD = "ai.onnx"
"""What the standard's domain is called where it has a name."""
_IMPLIED = {STANDARD: 0, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1, "com.microsoft": 1, "com.microsoft.nchwc": 1}
"""Versions of the domains that onnxruntime imports where a file imports others only; of the standard the newest."""

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


def imports_of(stated: Iterable[onnx.OperatorSetIdProto], *, implied: bool = True) -> dict[str, int]:
    """Return the versions of a file's domains; the standard's is "", however the file calls it.

    Args:
        stated: the imports of a model or function; of a domain imported twice the last one counts.
        implied: whether domains that onnxruntime knows are imported as it does, where the file imports any.
    """
    versions = {"" if entry.domain == STANDARD else entry.domain: entry.version for entry in stated}
    for domain, version in _IMPLIED.items() if versions and implied else ():
        versions.setdefault("" if domain == STANDARD else domain, version or onnx.defs.onnx_opset_version())
    return versions
