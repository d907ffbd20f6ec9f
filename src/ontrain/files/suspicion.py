"""Whether a file must be looked into before stock onnxruntime gets it: told from its bytes, without parsing them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator

from ontrain.disk import open_file
from ontrain.errors import InputError
from ontrain.files.demands import DEMANDING
from ontrain.files.named import Names
from ontrain.files.outline import Content, fields, outline

__all__ = ["TRAPS", "TREES", "suspect"]

TRAPS = (
    b"Div", b"Mod", b"Loop", b"SequenceAt", b"SequenceErase", b"SequenceInsert", b"LayerNormalization", b"Max", b"Min",
    b"Sum", b"Mean", b"Einsum", b"RandomNormal", b"RandomNormalLike", b"RandomUniform", b"RandomUniformLike",
    b"QLinearWhere", *DEMANDING,
)  # fmt: skip
"""Operators that a file must name to need a guard, see `ontrain.files.traps`."""
TREES, _LABELS = b"TreeEnsembleClassifier", b"classlabels_strings"
_WAY = (7, 1, 5)
"""The fields that lead from a model's message over the graph and its nodes to their attributes."""
_STRINGS = 9
"""The field of an attribute's message that holds its texts; numbers, for to import onnx would take longer than this."""
_EXTERNAL = b"location"
_TRAINS, _ONE = b"training_mode", b"\x18\x01"
"""An attribute of this name that is 1, as protobuf writes it: see `ontrain.inference.guarded`."""
_ORT_FORMAT = b"ORTM"
_FUNCTIONS = 25
"""The field of a model's message that holds its functions."""
_SMALL = 1 << 22
"""Bytes up to which a message is read whole: if it needs a guard, it is walked through once, and not a second time."""
_NAMES = Names([*TRAPS, TREES, _EXTERNAL, _TRAINS])


def suspect(source: str | bytes) -> bytes | None:
    """Return the outline of a file, or of these bytes, if it names an operator of `TRAPS`, trees of one label, data in
    another file, or a normalisation in training mode; all of it if it is small or has functions; else None.

    Raises:
        InputError: the file cannot be read.
    """
    if isinstance(source, bytes):
        return _suspect_part(source)
    try:
        with open_file(source) as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _suspect_part(content)
    except (OSError, ValueError) as error:
        raise InputError(f"{source!r} cannot be read", reason=str(error)) from error


def _suspect_part(content: Content) -> bytes | None:
    # A file of onnxruntime's own format is read by nothing else.
    if content[4:8] == _ORT_FORMAT:
        return None
    if any(number == _FUNCTIONS for number, _, _ in fields(content, 0, len(content))):
        return content[:]
    sketch = outline(content)
    if not any(_is_suspect(sketch, name, end) for name, end in _NAMES.places(sketch)):
        return None
    return sketch if len(content) > _SMALL else content[:]


def _is_suspect(sketch: bytes, name: bytes, end: int) -> bool:
    """Whether a name that ends here is a reason to look closer."""
    if name == TREES:
        return _has_lone_label(sketch)
    return name != _TRAINS or sketch.startswith(_ONE, end)


def _has_lone_label(content: Content) -> bool:
    """Whether labels may be a single text: told from the form of the message, for a forest is large to be parsed."""
    attributes: Iterable[tuple[int, int]] = [(0, len(content))]
    for number in _WAY:
        attributes = _parts(content, attributes, number)
    messages = (content[start:stop] for start, stop in attributes)
    return any(_LABELS in message and _count(message, _STRINGS) < 2 for message in messages)


def _parts(content: Content, messages: Iterable[tuple[int, int]], wanted: int) -> Iterator[tuple[int, int]]:
    """Where fields of a number lie in messages, and what is no field."""
    for at, end in messages:
        yield from ((start, stop) for number, start, stop in fields(content, at, end) if number in (wanted, -1))


def _count(message: bytes, wanted: int) -> int:
    return sum(number == wanted for number, _, _ in fields(message, 0, len(message)))
