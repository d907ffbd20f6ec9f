"""A model's message without the numbers of its large tensors: what names something, and what is quick to parse.

A search for names in a file of 1 GB would read the numbers once for each name, and to parse it copies them. The message
is walked over instead, by its tags and lengths; fields that hold a tensor's numbers are left out, and small ones are
not looked into.
Source: onnx.proto3, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3; https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Iterator

__all__ = ["Content", "fields", "outline"]

Content = bytes | mmap.mmap
_LARGE = 1 << 12
"""Bytes from which on a field is looked into."""
_FIXED = {1: 8, 5: 4}
"""Bytes of numbers by the kind of their field."""
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


def outline(content: Content) -> bytes:
    """Return a model's message without the numbers of its large tensors: it parses as the whole one does.

    Of a file that is no such message, everything is returned from the first place on at which it is none.
    """
    shorter = _shortened(content, 0, len(content), _Message.MODEL, 1)
    return content[:] if shorter is None else shorter


def fields(content: Content, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field of a message, and where its content begins and ends.

    A field whose form is none that protobuf writes today, and one that goes beyond the message, is yielded as number
    -1, up to the end.

    Args:
        content: holds the message.
        at: where the message begins.
        end: where it ends.
    """
    while at < end:
        begin, tag, start = at, content[at], at + 1
        if tag > 127:
            tag, start = _varint(content, at)
        kind = tag & 7
        if kind == 2:
            length, start = _varint(content, start)
            at = start + length
        elif kind == 0:
            _, at = _varint(content, start)
        else:
            at = start + _FIXED.get(kind, end)
        if at > end:
            yield -1, begin, end
            return
        yield tag >> 3, start, at


def _shortened(content: Content, at: int, end: int, message: _Message, depth: int) -> bytes | None:
    """The bytes of a message without numbers, and with the lengths that parts have then; None if it has no numbers."""
    inside, many, parts = _INSIDE[message], _MANY.get(message, ()), list[bytes]()
    rest = begin = at
    for number, start, stop in fields(content, at, end):
        if number in many or number < 0:
            break
        held = inside.get(number) if stop - start >= _LARGE and depth < _DEEPEST else None
        if held is _Message.NUMBERS:
            parts.append(content[rest:begin])
            rest = stop
        elif held is not None:
            part = _shortened(content, start, stop, held, depth + 1)
            if part is not None:
                parts += content[rest:begin], _prefix(number, len(part)), part
                rest = stop
        begin = stop
    return b"".join([*parts, content[rest:end]]) if parts else None


def _prefix(number: int, length: int) -> bytes:
    """The tag of a field, and the length of its content."""
    written = bytearray([number << 3 | 2])
    while length > 127:
        written.append(length & 127 | 128)
        length >>= 7
    written.append(length)
    return bytes(written)


def _varint(content: Content, at: int) -> tuple[int, int]:
    """A number of protobuf's and the place behind it; a file that ends within gives what there is."""
    value = shift = 0
    for place in range(at, min(at + 10, len(content))):
        byte = content[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    return value, len(content)
