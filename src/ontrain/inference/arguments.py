"""What a run is called with, checked as onnxruntime's binding checks it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ontrain.errors import InputError, OptionError
from ontrain.inference.options import RunOptions, say_once
from ontrain.inference.upstream_errors import also, upstream
from ontrain.stock import stock

__all__ = ["at_hand", "check_arguments", "heed_run"]

_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_ARENAS = re.compile(r"((cpu|gpu)(:(-?\d+)?(:[^;]*)?)?)?(;((cpu|gpu)(:(-?\d+)?(:[^;]*)?)?)?)*")
"""Devices with their numbers, as onnxruntime reads the entry for arenas to be made smaller."""


def heed_run(run_options: Any, provider: str) -> None:
    """Say of a run's entries that they mean nothing to a provider of ontrain's; refuse what nobody can read.

    Raises:
        OptionError: the entry for arenas lists no devices; also of onnxruntime's class InvalidArgument.
    """
    entries = run_options.config_entries if isinstance(run_options, RunOptions) else {}
    for key, value in entries.items():
        if key == _SHRINKAGE and not _ARENAS.fullmatch(value):
            error = OptionError(f"{key} is {value!r}", way_out="list devices with their numbers, such as 'cpu:0'")
            raise also(error, upstream("InvalidArgument"))
        say_once(f"The run's entry {key} means nothing to {provider}.")


def at_hand(names: Any) -> Any:
    """Return names that can be read more than once; those of a generator cannot."""
    return list(names) if isinstance(names, Iterator) else names


def check_arguments(output_names: Any, feeds: Any, run_options: Any) -> None:
    """Check the kinds of the arguments of `run`.

    Raises:
        InputError: also of the class that onnxruntime raises for it, AttributeError or TypeError.
    """
    if not isinstance(feeds, Mapping):
        error = InputError(f"the feeds are a {type(feeds).__name__}", way_out="feed a dictionary by input name")
        raise also(error, AttributeError)
    names = output_names if output_names is not None else ()
    if isinstance(names, str) or not all(isinstance(name, str) for name in (*names, *feeds)):
        error = InputError(
            "the names of outputs and inputs are no strings in a list and a dictionary",
            reason=f"outputs {output_names!r}, inputs {list(feeds)}", way_out="give names such as ['logits']",
        )  # fmt: skip
        raise also(error, TypeError)
    if run_options is not None and not isinstance(run_options, stock().RunOptions):
        error = InputError(f"the run's options are a {type(run_options).__name__}", way_out="give ontrain.RunOptions")
        raise also(error, TypeError)
