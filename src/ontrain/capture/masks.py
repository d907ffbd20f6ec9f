"""Masks that transformers draws by numpy over what a speech model hears: SpecAugment's, in a function of their own.

    mask = _compute_mask_indices((2, 49), mask_prob=0.05, …)   →   an input of the graph, which whoever runs it draws
    hidden[torch.tensor(mask)] = embedding                         by the same function before each run

What a run draws are the numbers that forward would draw, from the same generator and in the same order. A run that is
made again, for a second backward, has its masks again.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ontrain.capture.autograd import traced_here
from ontrain.capture.chances import comparable
from ontrain.capture.loaded import files_with
from ontrain.capture.source import current_line
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.internals import substituted
from ontrain.sizes import Size

__all__ = ["DrawnMask", "Masks"]

_NAME, _PACKAGE = "_compute_mask_indices", "transformers"
_PARAMETERS = {"shape", "mask_prob", "mask_length", "attention_mask", "min_masks"}
_WAY_OUT = (
    "train it with ORTModule, which draws them in each call; set the rates to zero (config.mask_time_prob = 0, "
    f"config.mask_feature_prob = 0); or {BROKEN}"
)


@dataclass(frozen=True)
class DrawnMask:
    """One mask, bool, of a graph's inputs, and what draws it.

    Attributes:
        function: transformers' own.
        options: its plain arguments.
        name: of the input.
        shape: of the mask, over symbols of the graph's guards.
        attention: the graph output that is the function's `attention_mask`; None if it is given none.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    name: str = ""
    shape: Sequence[Size] = ()
    attention: str | None = None

    def sizes(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the mask's shape for the sizes that symbols stand for."""
        return tuple([int(size.value(sizes)) for size in self.shape])

    def draw(self, shape: tuple[int, ...], attention: torch.Tensor | None) -> torch.Tensor:
        """Return a mask, drawn from numpy's generator.

        Raises:
            ValueError: what transformers says of these sizes.
        """
        drawn = self.function(shape, attention_mask=attention, **self.options)
        return torch.as_tensor(drawn, dtype=torch.bool, device="cpu")


class Masks:
    """Those that a trace comes by.

    Args:
        allowed: whether the caller draws them in each run.

    Attributes:
        drawn: in the order of the last run of forward.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._start = _numpys_state()
        self.drawn: list[DrawnMask] = []

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Make transformers' function an operator of the trace wherever a file has it under its name.

        Other threads get transformers' own.
        """
        places = [(f, _NAME, self._standing_in(function)) for f, function in files_with(_NAME) if _is_known(function)]
        with substituted(places), warnings.catch_warnings():
            # What is an array in eager is a tensor here; torch warns of `torch.tensor(tensor)`.
            warnings.filterwarnings("ignore", message="To copy construct from a tensor", category=UserWarning)
            yield

    def _standing_in(self, own: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(own)

        def compute_mask_indices(*args: Any, **kwargs: Any) -> Any:
            if not traced_here():
                return own(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            options = dict(bound.arguments)
            shape, attention = options.pop("shape"), options.pop("attention_mask")
            self._check()
            self.drawn.append(DrawnMask(own, options))
            return _mask(attention, [*shape], len(self.drawn) - 1)

        return compute_mask_indices

    def _check(self) -> None:
        problem = "forward draws masks over features from numpy's generator"
        if not self._allowed:
            raise CaptureError(
                problem, source=current_line(), reason="the graph would keep the masks of its capture in all steps",
                way_out=_WAY_OUT,
            )  # fmt: skip
        if _numpys_state() != self._start:
            raise CaptureError(
                f"{problem}, and other numbers before them", source=current_line(),
                reason="a run draws its masks before all other numbers", way_out=_WAY_OUT,
            )  # fmt: skip


def _is_known(function: Any) -> bool:
    if not inspect.isfunction(function) or not function.__module__.startswith(_PACKAGE):
        return False
    return inspect.signature(function).parameters.keys() == _PARAMETERS


def _numpys_state() -> Any:
    return comparable(np.random.get_state(legacy=False))


@torch.library.custom_op("ontrain::mask", mutates_args=())
def _mask(attention: torch.Tensor | None, shape: Sequence[int], index: int) -> torch.Tensor:
    """What stands in a trace for transformers' function: bool, of the shape that is asked for."""
    return torch.zeros([*shape], dtype=torch.bool, device="cpu")


@_mask.register_fake
def _(attention: torch.Tensor | None, shape: Sequence[int], index: int) -> torch.Tensor:
    return torch.empty([*shape], dtype=torch.bool, device="cpu")


# A mask that nobody reads moves the generator, too.
torch.fx.node.has_side_effect(torch.ops.ontrain.mask.default)
