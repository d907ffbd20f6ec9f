"""Byte-level BPE as Radford et al. 2019 (section 2.2) and Sennrich et al. 2016 describe it, in few slow lines.

Shares nothing with the library that the recipe calls: an oracle for it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# The paper's pattern over a letter for each character's class, since `re` knows no \p{L}: l letter, n number, a blank
# for itself, s other space, o the rest.
CONTRACTION = re.compile(r"'(?:[sdmt]|ll|ve|re)")
WORD = re.compile(r" ?l+| ?n+| ?o+|[ s]+(?![lno])|[ s]+")


def words(text: str) -> Iterator[str]:
    classes, place = "".join(map(character_class, text)), 0
    while place < len(text):
        match = CONTRACTION.match(text, place) or WORD.match(classes, place)
        assert match is not None
        yield text[place : match.end()]
        place = match.end()


def character_class(character: str) -> str:
    if character == " ":
        return " "
    if character.isspace() and not "\x1c" <= character <= "\x1f":
        return "s"
    category = unicodedata.category(character)[0]
    return {"L": "l", "N": "n"}.get(category, "o")


def byte_characters() -> dict[int, str]:
    """Printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def encode(text: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> list[int]:
    ranks, characters, ids = {pair: i for i, pair in enumerate(merges)}, byte_characters(), []
    for word in words(text):
        parts = [characters[byte] for byte in word.encode()]
        while len(parts) > 1:
            best = min(zip(parts, parts[1:], strict=False), key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            joined, i = [], 0
            while i < len(parts):
                if tuple(parts[i : i + 2]) == best:
                    joined.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    joined.append(parts[i])
                    i += 1
            parts = joined
        ids += [vocab[part] for part in parts]
    return ids
