"""What of a model's message may name something: all of it but the numbers of its weights.

A search for names in a file of 1 GB would read the numbers once for each name. The message is walked over instead, by
its tags and lengths; fields that hold a tensor's numbers are left out, and small ones are not looked into.
Source: onnx.proto3, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3; https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Iterator

__all__ = ["Content", "fields", "texts"]

Content = bytes | mmap.mmap
_LARGE = 1 << 12
"""Bytes from which on a field is looked into."""
_DEEPEST = 100
"""Messages in one another: protobuf reads no deeper ones."""


class _Message(enum.Enum):
    MODEL = enum.auto()
    GRAPH = enum.auto()
    NODE = enum.auto()
    ATTRIBUTE = enum.auto()
    TENSOR = enum.auto()
    NUMBERS = enum.auto()


_INSIDE: dict[_Message, dict[int, _Message]] = {
    _Message.MODEL: {7: _Message.GRAPH},
    _Message.GRAPH: {1: _Message.NODE, 5: _Message.TENSOR},
    _Message.NODE: {5: _Message.ATTRIBUTE},
    _Message.ATTRIBUTE: {5: _Message.TENSOR, 6: _Message.GRAPH},
    _Message.TENSOR: dict.fromkeys((4, 5, 7, 9, 10, 11), _Message.NUMBERS),
}
"""By message and number of a field in it, what that field holds."""
_MANY = {_Message.ATTRIBUTE: (7, 8, 9)}
"""Fields that stand once for each number or text of a list: what follows them in such a message is taken whole."""


def texts(content: Content) -> bytes:
    """Return the content of a model's file without the numbers of its large tensors.

    Of a file that is no such message, everything is returned from the first place on at which it is none.
    """
    ranges = [range(0)]
    for start, end in _ranges(content, 0, len(content), _Message.MODEL, 1):
        if start == ranges[-1].stop:
            ranges[-1] = range(ranges[-1].start, end)
        else:
            ranges.append(range(start, end))
    return b"\n".join(content[part.start : part.stop] for part in ranges)


def fields(content: Content, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field of a message, and where its content begins and ends.

    A field whose form is none that protobuf writes today is yielded as number -1, up to the end.

    Args:
        content: holds the message.
        at: where the message begins.
        end: where it ends.
    """
    while at < end:
        tag, start = _varint(content, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(content, start)
        elif kind == 2:
            length, start = _varint(content, start)
            at = start + length
        elif kind in (1, 5):
            at = start + (8 if kind == 1 else 4)
        else:
            yield -1, at, end
            return
        yield tag >> 3, start, min(at, end)


def _ranges(content: Content, at: int, end: int, message: _Message, depth: int) -> Iterator[tuple[int, int]]:
    inside, many = _INSIDE[message], _MANY.get(message, ())
    for number, start, stop in fields(content, at, end):
        if number in many or number < 0:
            yield at, end
            return
        held = inside.get(number) if stop - start >= _LARGE and depth < _DEEPEST else None
        if held is None:
            yield at, stop
        else:
            yield at, start
            if held is not _Message.NUMBERS:
                yield from _ranges(content, start, stop, held, depth + 1)
        at = stop


def _varint(content: Content, at: int) -> tuple[int, int]:
    """A number of protobuf's and the place behind it; a file that ends within gives what there is."""
    value = 0
    for i, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    return value, len(content)
