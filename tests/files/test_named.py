"""Names are told from texts that only contain them, wherever they stand and however their length is written."""

from __future__ import annotations

import random

import pytest

from ontrain.files.named import _CHUNK, Names

_NAMES = Names([b"Div", b"Loop", b"location", b"DynamicQuantizeLSTM"])


def _found(content: bytes) -> list[tuple[bytes, int]]:
    return [*_NAMES.places(content)]


@pytest.mark.parametrize("name", [b"Div", b"Loop", b"location", b"DynamicQuantizeLSTM"])
@pytest.mark.parametrize("before", [0, 1, _CHUNK - 25, _CHUNK - 4, _CHUNK - 3, _CHUNK - 2, _CHUNK - 1, _CHUNK])
def test_a_name_is_found_wherever_it_begins(name: bytes, before: int) -> None:
    content = b"\xff" * before + bytes([len(name)]) + name
    assert _found(content) == _found(content + b"\xff" * _CHUNK) == [(name, len(content))]


def test_texts_that_contain_a_name_are_none() -> None:
    for text in (b"Division", b"a/Div", b"DivDiv", b"div", b"Di", b"", b"CustomLoop", b"relocation"):
        assert not _found(b'"' + bytes([len(text)]) + text + b'"\x04Relu')


def test_a_length_of_more_bytes_than_it_needs_is_read() -> None:
    for length in (b"\x83\x00", b"\x83\x80\x00", b"\x83\x80\x80\x80\x00"):
        assert _found(b'"' + length + b"Div") == [(b"Div", len(length) + 4)]


def test_names_are_found_as_by_looking_at_each_place() -> None:
    numbers = random.Random(0)
    content = b"".join(
        bytes([numbers.choice([0, 3, 4, 8, 19])]) + numbers.choice([b"Div", b"Loop", b"locations", b"Lo", b"D"])
        for _ in range(_CHUNK // 3)
    )
    names = (b"Div", b"Loop", b"location")
    expected = [
        (name, at + len(name))
        for at in range(1, len(content))
        for name in names
        if content.startswith(name, at) and content[at - 1] in (0, len(name))
    ]
    assert len(expected) > 1000 and _found(content) == expected
