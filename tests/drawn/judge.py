"""What a case comes to: right, eager fails, refused or wrong; and the comparisons that say so.

A judge of a kind runs the oracle under `oracle()` and what is tested outside of it, and compares. Whatever the tested
side raises is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.drawn.known import reason_for

__all__ = [
    "OracleFails", "Outcome", "Tolerance", "WrongResult", "compare", "compare_buffers", "compare_gradients", "judge",
    "oracle",
]  # fmt: skip

VERDICTS = ("right", "eager fails", "refused", "wrong")
Tensors = Mapping[str, torch.Tensor | None]


class OracleFails(Exception):
    """There is nothing to compare with."""


class WrongResult(Exception):
    """Another result than the oracle's, without a word."""


@dataclass(frozen=True)
class Tolerance:
    """Bounds of a difference, as `torch.allclose` takes them."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    """What a case came to.

    Attributes:
        kind, family, seed, number: by which the case is drawn again.
        verdict: of VERDICTS.
        text: what was drawn, and what went wrong.
        known: the reason why it may be so, or "".
    """

    kind: str
    family: str
    seed: int
    number: int
    verdict: str
    text: str = ""
    known: str = ""

    @property
    def bad(self) -> bool:
        """Whether it should not have been so."""
        return self.verdict in ("refused", "wrong") and not self.known

    def line(self) -> str:
        """The verdict, the command that draws the case again, and the text."""
        again = f"--kind {self.kind} --family {self.family} --seed {self.seed} --from {self.number} --count 1"
        known = f" (known: {self.known})" if self.known else ""
        return f"{self.verdict}{known}: python -m tests.drawn {again} | {self.text}"


@contextmanager
def oracle() -> Iterator[None]:
    """Around what the oracle computes: an error there says nothing of us."""
    try:
        yield
    except Exception as error:  # eager PyTorch and onnxruntime raise what they like
        raise OracleFails(_said(error)) from error


def judge(kind: str, family: str, seed: int, number: int, case: Callable[[list[str]], None]) -> Outcome:
    """The outcome of a case, which puts what it has drawn into the list that it is handed."""
    drawn: list[str] = []
    verdict, said = "right", ""
    try:
        case(drawn)
    except OracleFails as error:
        verdict, said = "eager fails", str(error)
    except WrongResult as error:
        verdict, said = "wrong", str(error)
    except Exception as error:  # noqa: BLE001  # that one comes out is what is looked for
        verdict, said = "refused", _said(error)
    text = " | ".join([*filter(None, [said]), *drawn])
    known = reason_for(kind, family, verdict, text) if verdict in ("refused", "wrong") else ""
    return Outcome(kind, family, seed, number, verdict, text, known)


def compare(what: str, expected: Any, actual: Any, tolerance: Tolerance) -> None:
    """Compare shape, type and values of tensors or arrays.

    Raises:
        WrongResult: they differ.
    """
    expected, actual = torch.as_tensor(np.asarray(expected)), torch.as_tensor(np.asarray(actual))
    if expected.shape != actual.shape:
        raise WrongResult(f"{what} has shape {tuple(actual.shape)}, not {tuple(expected.shape)}")
    if expected.dtype != actual.dtype:
        raise WrongResult(f"{what} has type {actual.dtype}, not {expected.dtype}")
    if not torch.allclose(expected, actual, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True):
        raise WrongResult(f"{what} is off by up to {_largest_difference(expected, actual):.3g}")


def compare_gradients(
    expected: Tensors, actual: Tensors, tolerance: Tolerance, absent_is_zero: bool = False, what: str = "gradient"
) -> None:
    """Compare gradients by name.

    Args:
        absent_is_zero: whether it is right to say zero where the oracle says nothing, and the other way round.

    Raises:
        WrongResult: one is missing, superfluous or off.
    """
    if expected.keys() != actual.keys():
        raise WrongResult(f"{what}s of {sorted(actual)}, not of {sorted(expected)}")
    for name, reference in expected.items():
        gradient = actual[name]
        if reference is None and gradient is None:
            continue
        if not absent_is_zero and (reference is None or gradient is None):
            raise WrongResult(f"{what} of {name} is {'missing' if gradient is None else 'there, and none in eager'}")
        compare(f"{what} of {name}", _or_zero(reference, gradient), _or_zero(gradient, reference), tolerance)


def compare_buffers(expected: torch.nn.Module, actual: torch.nn.Module, tolerance: Tolerance) -> None:
    """Compare the buffers of two modules.

    Raises:
        WrongResult: one is off.
    """
    for (name, reference), buffer in zip(expected.named_buffers(), actual.buffers(), strict=True):
        compare(f"buffer {name}", reference, buffer, tolerance)


def _or_zero(gradient: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor:
    if gradient is not None:
        return gradient
    assert other is not None
    return torch.zeros_like(other)


def _largest_difference(expected: torch.Tensor, actual: torch.Tensor) -> float:
    if expected.dtype == torch.bool:
        return 1.0
    difference = (expected.double() - actual.double()).abs()
    return float(difference[~difference.isnan()].max()) if (~difference.isnan()).any() else float("nan")


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]
