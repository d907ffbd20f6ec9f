"""Templates that stand for words of a sentence: measures, dashes, foreign words. Boxes and notes say nothing.

Names are the English Wikipedia's.
"""

from __future__ import annotations

import re
from calendar import month_name
from collections.abc import Callable, Iterator

_NAMED = re.compile(r"\s*([\w -]+)=(.*)", re.DOTALL)


def words_of(template: re.Match[str]) -> str:
    """Return the words of a template whose body, without braces, is the match's first group; else nothing.

    Templates in its arguments have become words before.
    """
    name, *values = _split(template[1])
    by = _WORDS.get(name.strip().replace("_", " ").lower(), lambda values: "")
    positional = [value.strip() for value in values if not _NAMED.match(value)]
    named = (match.groups() for value in values if (match := _NAMED.match(value)))
    numbered = sorted((key, value.strip()) for key, value in named if key.isdigit())
    return by(positional or [value for _, value in numbered])


def _split(body: str) -> list[str]:
    """Cut a template's body at the bars that stand in no link."""
    parts, depth = [""], 0
    for piece in re.split(r"(\[\[|\]\]|\|)", body):
        depth += (piece == "[[") - (piece == "]]")
        if piece == "|" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _nth(index: int, before: str = "") -> Callable[[list[str]], str]:
    return lambda values: before + "".join(values[index : index + 1])


def _named(text: str, *names: str) -> dict[str, Callable[[list[str]], str]]:
    """Templates that stand for one text."""
    return dict.fromkeys(names, lambda values: text)


_RANGES = {"to": " to ", "and": " and ", "or": " or ", "-": "–", "–": "–", "to(-)": " to ", "x": " × ", "by": " by "}


def _convert(values: list[str]) -> str:
    """{{convert|3|to|5|km|mi}} says "3 to 5 km": the numbers up to the first unit, and that unit."""
    said = ""
    for value in values:
        if value in _RANGES:
            said += _RANGES[value]
        elif re.fullmatch(r"[-+−]?[\d.,/e]+", value):
            said += value
        else:
            return f"{said} {value}" if said else ""
    return said


_FIRST = (
    "nowrap", "nobr", "nobold", "sic", "not a typo", "as written", "small", "abbr", "quote", "blockquote", "bq",
    "cquote", "quotation", "unicode", "script", "em", "strong", "smallcaps", "sc", "mvar", "math", "ill", "sub", "sup",
    "interlanguage link", "linktext", "vanchor", "visible anchor", "vr", "angbr", "chem2", "val", "gaps", "num",
)  # fmt: skip
"""What they say is their first argument."""

_WORDS: dict[str, Callable[[list[str]], str]] = {
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("lang", "transl", "transliteration", "abbrlink", "color", "font color", "ill2"), _nth(1)),
    **dict.fromkeys(_FIRST, _nth(0)),
    **_named("–", "ndash", "en dash", "–"),
    **_named("—", "mdash", "em dash", "—", "emdash"),
    **_named(" – ", "snd", "spnd", "spaced ndash", "spaced en dash", "dash"),
    **_named(" ", "nbsp", "spaces", "space", "thinsp", "hair space"),
    **_named("'", "'", "okina", "hamza", "`"),
    **_named("'s", "'s", "'-s"),
    **_named("=", "="),
    **_named("|", "!"),
    **dict.fromkeys(("circa", "c.", "ca."), lambda v: "c. " + " – ".join(v[:2])),
    **dict.fromkeys(("frac", "fraction", "sfrac"), lambda v: "/".join(v) if len(v) < 3 else f"{v[0]} {v[1]}/{v[2]}"),
    **dict.fromkeys(("us$", "usd"), _nth(0, "US$")),
    **dict.fromkeys(("gbp", "£", "pound sterling"), _nth(0, "£")),
    **dict.fromkeys(("euro", "eur", "€"), _nth(0, "€")),
    "inr": _nth(0, "₹"),
    "as of": lambda v: "As of " + " ".join(_date(v)),
    "e": _nth(0, "×10^"),
    "chem": "".join,
}


def _date(values: list[str]) -> Iterator[str]:
    year, month, day = (*values, "", "", "")[:3]
    yield from (day,) if day else ()
    if month:
        yield month_name[int(month)] if month.isdigit() and 1 <= int(month) <= 12 else month
    yield year
