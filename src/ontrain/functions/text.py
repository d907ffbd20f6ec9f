"""Operators on text that files hold and the standard does not."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.functions.registry import NoBodyError, composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


def _tokens(inputs: list[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(ir.DataType.STRING, ir.Shape([*inputs[0].shape, None]))]


@composite("Tokenizer", domain="com.microsoft", infer=_tokens)
def tokenizer(op: Builder, x: Value, **_: object) -> Value:
    """Text in tokens: no standard operator finds what an expression matches."""
    raise NoBodyError("the standard has no tokenizer", "run it by a session, where it is a step")
