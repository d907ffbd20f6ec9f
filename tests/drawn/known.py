"""Differences that are known, each with the reason why it stays."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["KNOWN", "reason_for"]


@dataclass(frozen=True)
class Known:
    """A difference that is no mistake of ours.

    Attributes:
        kind: of the case.
        verdict: "refused" or "wrong".
        pattern: a regular expression in the text of the case.
        reason: why it may be so.
        family: of the case, if it belongs to a single one.
    """

    kind: str
    verdict: str
    pattern: str
    reason: str
    family: str = ""


KNOWN = [
    Known(
        "calls", "refused", r"does not require grad.*'p': 0,", family="norm",
        reason="the number of elements that are not 0 has no gradient here, and in eager one of zeros",
    ),
    Known(
        "nodes", "wrong", "tf_crop_and_resize", family="resize",
        reason="where a size stays, stock ignores the crop, which the standard does not",
    ),
    Known(
        "nodes", "wrong", "half_pixel_symmetric.*nearest_mode", family="resize",
        reason="a pixel halfway between two: stock takes the other in single precision",
    ),
    Known(
        "nodes", "wrong", "QLinearAveragePool.*'count_include_pad': 1, 'ceil_mode': 1", family="whole_elements",
        reason="stock divides by other numbers than its own AveragePool, which we agree with",
    ),
    Known(
        "precisions", "wrong", r"is torch.float32 \(\d+, 1, \d+\), not torch.(bfloat16|float16) .*inside=True",
        family="packed",
        reason="inside autocast eager gives halves for one packed sequence, and single precision for several",
    ),
    Known(
        "modules", "refused", "embedding bag scales its gradient by frequency", family="bag",
        reason="torch's kernel takes the counts of other rows",
    ),
    Known(
        "precisions", "refused", "embedding bag scales its gradient by frequency", family="bag",
        reason="torch's kernel takes the counts of other rows",
    ),
    Known("trainers", "refused", "memory_budget .* cannot be reached", reason="a step needs more than the budget"),
]  # fmt: skip


def reason_for(kind: str, family: str, verdict: str, text: str) -> str:
    """The reason of a known difference, or ""."""
    for known in KNOWN:
        concerns = (known.kind, known.verdict) == (kind, verdict) and known.family in ("", family)
        if concerns and re.search(known.pattern, text):
            return known.reason
    return ""
