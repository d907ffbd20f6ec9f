"""Data of large initializers that stay in their files until they are wanted: checked, and not read into the message.

protobuf copies the data of a tensor whenever anybody asks for it. So the message says where they lie, in the entry of
the tensor's external data that is for a checksum; by a text that changes from process to process, so that no file can
say so itself.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ontrain.disk import open_file

__all__ = ["LeftData", "left_data", "may_be_left"]

_OURS = f"{secrets.token_hex(16)}:"
_LARGE = 1 << 20
"""Bytes from which it is worth while."""
_KINDS = (
    onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16,
)  # fmt: skip


@dataclass(frozen=True)
class LeftData:
    """Where data lie in a file.

    Attributes:
        path: of the file.
        offset: of their first byte.
        length: in bytes, as the tensor's shape wants it.
    """

    path: str
    offset: int
    length: int

    def mark(self, tensor: onnx.TensorProto) -> None:
        """Let a tensor's message say so."""
        tensor.external_data.add(key="checksum", value=f"{_OURS}{self.offset}:{self.length}:{self.path}")

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            OSError: the file is gone.
        """
        with open_file(self.path) as file:
            file.seek(self.offset)
            return file.read(self.length)

    def array(self, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the values, mapped from the file: what is written to them stays in memory.

        Raises:
            OSError: the file is gone.
            ValueError: it has become shorter.
        """
        with open_file(self.path) as file:
            content = np.memmap(file, np.uint8, "c", self.offset, (self.length,))
        return content.view(dtype).reshape(tuple(shape))


def left_data(tensor: onnx.TensorProto) -> LeftData | None:
    """Return where a tensor's data were left; None of one that has them, or whose file nobody has checked."""
    for entry in tensor.external_data:
        if entry.value.startswith(_OURS):
            offset, length, path = entry.value[len(_OURS) :].split(":", 2)
            return LeftData(path, int(offset), int(length))
    return None


def may_be_left(tensor: onnx.TensorProto, length: int) -> bool:
    """Return whether a tensor's data of so many bytes are worth it, and lie in the file as in memory."""
    return length >= _LARGE and tensor.data_type in _KINDS and sys.byteorder == "little"
