"""Lists of execution providers: who gets the model first, and who gets it where that one cannot run it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ontrain.errors import OptionError, nearest
from ontrain.providers import available_providers
from ontrain.stock import stock, stock_module

__all__ = ["Candidate", "Providers", "candidates", "check_known", "stock_providers"]

Providers = Sequence[str | tuple[str, Mapping[str, object]]] | None


@dataclass(frozen=True)
class Candidate:
    """Who may run a whole model.

    Attributes:
        own: name of one of ontrain's providers; None for onnxruntime.
        providers, provider_options: as its session takes them. onnxruntime's share a model.
    """

    own: str | None
    providers: Any
    provider_options: Any


def stock_providers() -> list[str]:
    """Return the names of the providers that the installed onnxruntime has."""
    return list(stock().get_available_providers())


def check_known(providers: Providers, strict: bool) -> None:
    """Warn of a provider that neither onnxruntime nor ontrain knows, with names that come near.

    onnxruntime itself warns of one that it knows and this build of it lacks, and leaves it out.

    Raises:
        OptionError: `strict`, and a provider is not there.
    """
    here = stock_providers()
    names = [name for name in _names(providers) if name not in here]
    if not names:
        return
    known = [*here, *available_providers()]
    heard_of = {*known, *stock().get_all_providers()}
    for name in names:
        if strict and name not in known:
            raise OptionError(
                f"there is no execution provider {name!r} here",
                reason="it is neither in this build of onnxruntime nor one of ontrain's",
                way_out=f"installed: {nearest(name, known)}",
            )
        if name not in heard_of:
            warnings.warn(f"No execution provider is called {name!r}; nearest: {nearest(name, known)}.", stacklevel=4)


def candidates(providers: Providers, provider_options: Sequence[Mapping[str, object]] | None) -> list[Candidate]:
    """Return who may run a model, in the order of the list.

    A list without ontrain's providers is one candidate, and reaches onnxruntime as it is. Neighbours in a list that are
    onnxruntime's are one candidate, too.

    Raises:
        OptionError: options in two places, too many of them, or something that is neither a name nor a pair.
    """
    here = stock_providers()
    own = [] if all(name in here for name in _names(providers)) else available_providers()
    if not any(name in own for name in _names(providers)):
        return [Candidate(None, providers, provider_options)]
    checked = stock_module("onnxruntime.capi.onnxruntime_inference_collection").check_and_normalize_provider_args
    try:
        names, options = checked(providers, provider_options, [*here, *own])
    except ValueError as error:
        raise OptionError(
            "the list of providers cannot be read", reason=str(error),
            way_out="write a name, or (name, {'option': value}), and the options of all providers in one place",
        ) from error  # fmt: skip
    runs: list[Candidate] = []
    for name, told in zip(names, options, strict=True):
        if name in own:
            runs.append(Candidate(name, [name], told))
        elif name not in here:
            continue  # warned of above
        elif runs and runs[-1].own is None:
            runs[-1] = Candidate(None, [*runs[-1].providers, name], [*runs[-1].provider_options, told])
        else:
            runs.append(Candidate(None, [name], [told]))
    return runs


def _names(entries: Any) -> list[str]:
    """The names in a list that may have other things in it."""
    if not isinstance(entries, Sequence):
        return []
    firsts = [entry[0] if isinstance(entry, tuple) and entry else entry for entry in entries]
    return [first for first in firsts if isinstance(first, str)]
