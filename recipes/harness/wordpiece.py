"""BERT's tokeniser for whole corpora: `tokenizers` says how a word is cut, a table remembers it.

A sentence is cut at white space and ASCII punctuation first, where BERT's own rules always cut, and each kind of piece
is given to `tokenizers` once. So the numbers are those of `tokenizers`, and most pieces cost a look into a table.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from harness.files import DataError, read_text

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONGEST_WORD = 100  # upstream's; a longer one is [UNK]
_TABLE = 1 << 21  # pieces remembered: some 400 MB at the most

# BERT calls every ASCII character punctuation that is no letter, digit or white space. What Python takes for white
# space and BERT for control characters (which it deletes, so that words grow together) must not cut.
_PIECE = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")
_CONTROL = re.compile(r"[\x0b\x0c\x1c-\x1f\x85]")


class Vocabulary:
    """Words by number, and the tokeniser they make.

    Args:
        words: one a number.
        lower: lower the case and strip accents before looking up.
    """

    def __init__(self, words: Sequence[str], lower: bool) -> None:
        self.words, self.lower = list(words), lower
        number = {word: index for index, word in enumerate(self.words)}
        self.pad, self.unk, self.cls, self.sep, self.mask = (number[word] for word in SPECIAL)
        self._tokenizer = Tokenizer(models.WordPiece(number, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD))
        # None added as special, so that a text that says [SEP] is three ordinary tokens.
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._known: dict[str, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentences: Sequence[str]) -> list[array[int]]:
        """Return the numbers of each sentence's tokens, without [CLS] and [SEP]."""
        if len(self._known) > _TABLE:
            self._known.clear()
        cut = [[sentence] if _CONTROL.search(sentence) else _PIECE.findall(sentence) for sentence in sentences]
        self._learn(set(chain.from_iterable(cut)) - self._known.keys())
        known = self._known
        return [array("i", chain.from_iterable([known[piece] for piece in pieces])) for pieces in cut]

    def _learn(self, pieces: Iterable[str]) -> None:
        new = list(pieces)
        encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        self._known.update((piece, tuple(encoding.ids)) for piece, encoding in zip(new, encoded, strict=True))


def read_vocabulary(path: Path, lower: bool) -> Vocabulary:
    """Read vocab.txt: a word a line, its number the line's."""
    words = [word.rstrip("\r") for word in read_text(path, f"--vocab_file {path}").split("\n")]
    while words and not words[-1]:
        words.pop()
    if missing := [word for word in SPECIAL if word not in words]:
        raise DataError(
            f"--vocab_file {path} is no WordPiece vocabulary of BERT: {len(words):,} lines, none of them "
            f"{' or '.join(missing)}"
        )
    if len(set(words)) < len(words):
        twice = next(word for index, word in enumerate(words) if word in words[:index])
        raise DataError(f"--vocab_file {path} has {twice!r} twice")
    if words[0] != "[PAD]":
        raise DataError(f"--vocab_file {path}: padding is written as 0, but number 0 is {words[0]!r} and not [PAD]")
    capital = sum(word != word.lower() for word in words if word not in SPECIAL) / len(words)
    if lower and capital > 0.05:
        raise DataError(
            f"--vocab_file {path} is cased ({capital:.0%} of its words have capitals), but text would be lowered: "
            "give --do_lower_case 0, or an uncased vocabulary"
        )
    if not lower and capital == 0:
        raise DataError(
            f"--vocab_file {path} is uncased (no word has a capital), but case would be kept: "
            "give --do_lower_case 1, or a cased vocabulary"
        )
    return Vocabulary(words, lower)
