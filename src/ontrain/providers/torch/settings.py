"""What a user may choose about how graphs are lowered."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ontrain.errors import OptionError
from ontrain.providers.torch.neighbours import VARIABLE
from ontrain.providers.torch.tuning import Choices, Forced, formulations, open_tuning

__all__ = ["GPU_LOGITS_BYTES", "LOGITS_BYTES", "Settings"]

LOGITS_BYTES = 64 << 20
"""Four chunks for 1,024 rows of a vocabulary of 50,000: as fast as all rows at once, and a quarter of the memory."""
GPU_LOGITS_BYTES = 512 << 20
"""On a GPU: each chunk adds to the whole gradient of the weights, and small products leave units idle."""


@dataclass(frozen=True)
class Settings:
    """Choices of one provider.

    Attributes:
        logits_bytes: what the scores of a classifier may take at once where its loss is made in chunks of rows.
        tuning: chooses the formulation of each product; None takes eager PyTorch's, and of other kernels those that ask
            the allocator for nothing.
        cuda_graphs: whether plans on a GPU are recorded and played.
        joins: whether small nodes of a graph that serves run in rows.
    """

    logits_bytes: int = LOGITS_BYTES
    tuning: Choices | None = None
    cuda_graphs: bool = True
    joins: bool = True

    @classmethod
    def chosen(
        cls, logits_bytes: int | None, tune: bool | str | None, cuda_graphs: bool | None = None,
        join: bool | None = None, device: str = "cpu",
    ) -> Settings:  # fmt: skip
        """Return the options given, for those left out what the environment says, then the defaults.

        Raises:
            OptionError: a value is malformed.
        """
        size = _from_environment(
            "ONTRAIN_LOGITS_BYTES", "logits_bytes", logits_bytes, GPU_LOGITS_BYTES if device == "cuda" else LOGITS_BYTES
        )
        if size < 1:
            raise OptionError(f"logits_bytes is {size}", way_out="give a whole number of bytes from 1")
        graphs = _switch("cuda_graphs", cuda_graphs, "1 records a plan's kernels and launches them as one, 0 does not")
        joins = _switch("join", join, "1 runs small nodes in a row as one call, 0 each by itself")
        if (said := os.environ.get(VARIABLE, "")) not in ("", "0", "1"):
            raise OptionError(f"{VARIABLE} is {said!r}", way_out="1 has threads sleep beside other work, 0 spin")
        return cls(size, _tuning(tune), graphs, joins)


def _tuning(tune: bool | str | None) -> Choices | None:
    said = os.environ.get("ONTRAIN_TUNE", "") if tune is None else str(int(tune) if isinstance(tune, bool) else tune)
    if said in formulations():
        return Forced(said)
    if said not in ("", "0", "1"):
        raise OptionError(
            f"{'ONTRAIN_TUNE' if tune is None else 'tune'} is {said!r}",
            way_out="1 takes each product's fastest formulation, 0 eager PyTorch's products and kernels, and "
            f"{', '.join(map(repr, formulations()))} one formulation for all products",
        )
    return None if said == "0" else open_tuning()


def _switch(option: str, wish: bool | None, ways: str) -> bool:
    """An option that is on unless it, or else the environment, says otherwise."""
    number = _from_environment(f"ONTRAIN_{option.upper()}", option, wish, 1)
    if number not in (0, 1):
        raise OptionError(f"{option} is {number}", way_out=ways)
    return bool(number)


def _from_environment(variable: str, option: str, wish: int | None, default: int) -> int:
    text = os.environ.get(variable, "") if wish is None else str(int(wish))
    if not text:
        return default
    if not text.isdecimal():
        name = variable if wish is None else option
        raise OptionError(f"{name} is {text!r}", way_out="give a whole number" + " of bytes from 1" * (default > 1))
    return int(text)
