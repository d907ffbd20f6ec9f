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


def _hashes(inputs: list[Any], *, positive: int = 1, **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(ir.DataType.UINT32 if positive else ir.DataType.INT32, inputs[0].shape)]


@composite("MurmurHash3", domain="com.microsoft", infer=_hashes)
def murmur_hash(op: Builder, x: Value, *, positive: int = 1, seed: int = 0) -> Value:
    """A hash of each text or number: no standard operator reads the bytes of a text."""
    raise NoBodyError("the standard has no hash", "run it by a session, where it is a step")


@composite("Tokenizer", domain="com.microsoft", infer=_tokens)
def tokenizer(op: Builder, x: Value, **_: object) -> Value:
    """Text in tokens: no standard operator finds what an expression matches."""
    raise NoBodyError("the standard has no tokenizer", "run it by a session, where it is a step")
