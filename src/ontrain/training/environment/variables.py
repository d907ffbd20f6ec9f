"""The environment variables that have a meaning here, and those of onnxruntime's ORTModule that have none any more."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from ontrain.errors import OptionError, nearest

__all__ = ["VARIABLES", "Variable", "is_on", "unknown_variables", "warn_of_ignored"]

_OURS, _UPSTREAM = "ONTRAIN_", "ORTMODULE_"


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        meaning: what it says; None if it says nothing here.
        instead: for one without meaning, why, or what to do.
        default: what holds where it is not set.
    """

    name: str
    meaning: str | None = None
    instead: str = ""
    default: str = ""


def _reads(name: str, meaning: str, default: str = "") -> Variable:
    return Variable(name, meaning, default=default)


def _ignores(name: str, instead: str) -> Variable:
    return Variable(_UPSTREAM + name, instead=instead)


_ALWAYS_ATEN = "ATen's kernels are used"
_TRITON = "no kernels are generated; the passes fuse what ATen has kernels for"
_ALL = (
    _reads("ONTRAIN_CACHE", "1 keeps captured graphs on disk in the user's cache folder, 0 keeps none", "0"),
    _reads("ONTRAIN_CACHE_DIR", "folder of captured graphs and of what tuning measured"),
    _reads("ONTRAIN_CUDA_GRAPHS", "0 launches each kernel on its own on a GPU, 1 a plan's as one", "1"),
    _reads("ONTRAIN_DISABLE_PASSES", "names of graph passes to leave out, with commas"),
    _reads("ONTRAIN_DUMP", "folder to which every plan's graph is written after each stage"),
    _reads("ONTRAIN_JOIN", "0 runs each small node of a model that serves by itself, 1 rows of them as one call", "1"),
    _reads("ONTRAIN_LAZY_OUTPUTS", "1 computes outputs beside a loss when they are looked at, 0 always", "1"),
    _reads("ONTRAIN_LOGITS_BYTES", "memory that a classifier's scores may take at once, in bytes", "67108864"),
    _reads("ONTRAIN_LOOP_LIMIT", "rounds that a Loop of a file may run, those of loops inside it included", "100000"),
    _reads("ONTRAIN_MEMORY_BUDGET", "working memory of an ORTModule: bytes, '2GiB', or a fraction"),
    _reads("ONTRAIN_NODE_LIMIT", "nodes that the functions of a file may come to", "20000, or twice the file's own"),
    _reads("ONTRAIN_PASS_LIMIT", "n stops after the n-th pass of each plan, n:k after its k-th rewrite"),
    _reads(
        "ONTRAIN_TUNE",
        "matrix products: 0 eager PyTorch's, 1 the fastest; aten, packed or linear: all that one",
        "1",
    ),
    _reads("ONTRAIN_VERIFY", "1 checks the graph after each pass", "0"),
    _reads("ONTRAIN_YIELD", "1 has threads sleep, not spin, while other processes want the cores; 0 spin", "1"),
    _reads("ORTMODULE_CACHE_DIR", "as ONTRAIN_CACHE_DIR, of captured graphs"),
    _reads("ORTMODULE_ENABLE_COMPUTE_OPTIMIZER", "0 computes all rows, also those that no result needs", "1"),
    _reads("ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER", "0 computes rows that are padding", "1"),
    _reads("ORTMODULE_ENABLE_SPARSE_OPTIMIZER", "0 computes rows whose label is ignored, and padding", "1"),
    _reads("ORTMODULE_ENABLE_TUNING", "as ONTRAIN_TUNE", "1"),
    _reads("ORTMODULE_FALLBACK_POLICY", "which refusals PyTorch answers, names with commas", "FALLBACK_DISABLE"),
    _reads("ORTMODULE_FALLBACK_RETRY", "1 tries the graph anew at each call after a fallback", "0"),
    _reads("ORTMODULE_LOG_LEVEL", "VERBOSE, DEVINFO, INFO, WARNING, ERROR or FATAL, before DebugOptions", "WARNING"),
    _reads("ORTMODULE_MEMORY_OPT_CONFIG", "what backward computes again: cluster:strategy:count, with commas"),
    _reads("ORTMODULE_MEMORY_OPT_LEVEL", "0 follows the config, 1 computes layers again, 2 all that saves memory", "0"),
    _reads("ORTMODULE_SAVE_ONNX_PATH", "folder for the graphs of DebugOptions(save_onnx=True)", "."),
    _ignores("ALLOW_AUTOGRAD_CHECKPOINT", "torch.utils.checkpoint is always allowed"),
    _ignores("CONV_ALGO_SEARCH", "set torch.backends.cudnn.benchmark"),
    _ignores("DEEPCOPY_BEFORE_MODEL_EXPORT", "a capture leaves the module as it was"),
    _ignores("ENABLE_CUSTOM_AUTOGRAD", "a Function is captured where its backward is a derivative or a factor"),
    _ignores("ENABLE_MEM_EFFICIENT_GRAD_MGMT", "gradients are computed where they are handed out"),
    _ignores("ENABLE_ZERO_STAGE3", "parameters are not spread over processes"),
    _ignores("MAX_TUNING_DURATION_MS", "ONTRAIN_TUNE measures each product once"),
    _ignores("MEMORY_OPT_PROBE_RECOMPUTE_LEVEL", "`ontrain plan --clusters` lists what can be computed again"),
    _ignores("ONNX_OPSET_VERSION", "graphs have one opset inside; exports choose theirs"),
    _ignores("PRINT_INPUT_DENSITY", "rows are counted at each step; ORTMODULE_LOG_LEVEL=INFO says what is planned"),
    _ignores("PRINT_MEMORY_STATS", "`ontrain plan` prints what a step takes"),
    _ignores("SKIPCHECK_POLICY", "the checks of a call cost microseconds"),
    _ignores("TRITON_CONFIG_FILE", _TRITON),
    _ignores("TRITON_DEBUG", _TRITON),
    _ignores("TUNING_RESULTS_PATH", "set ONTRAIN_CACHE_DIR"),
    _ignores("USE_EFFICIENT_ATTENTION", _ALWAYS_ATEN),
    _ignores("USE_FLASH_ATTENTION", _ALWAYS_ATEN),
    _ignores("USE_TRITON", _TRITON),
)
VARIABLES: Mapping[str, Variable] = {variable.name: variable for variable in _ALL}
"""By name; those with a meaning first."""

_said: set[str] = set()


def is_on(name: str, default: bool = False) -> bool:
    """Return what a variable that is 0 or 1 says; true and false, yes and no are understood, too.

    Raises:
        OptionError: it is none of these.
    """
    value = os.environ.get(name, "").lower()
    if value in ("1", "true", "yes"):
        return True
    if value in ("0", "false", "no"):
        return False
    if value:
        raise OptionError(f"{name} is {os.environ[name]!r}", way_out="set it to 0 or 1")
    return default


def unknown_variables() -> dict[str, str]:
    """Return variables that look like ours or ORTModule's and are none: for each name what may be meant."""
    names = [name for name in os.environ if name.startswith((_OURS, _UPSTREAM)) and name not in VARIABLES]
    return {name: nearest(name, VARIABLES) for name in sorted(names)}


def warn_of_ignored() -> None:
    """Say once in a process of each variable of ORTModule's that it is set and means nothing.

    Warns:
        UserWarning: for each of them.
    """
    for name in sorted(set(os.environ) - _said):
        if not name.startswith(_UPSTREAM):
            continue
        known = VARIABLES.get(name)
        if known is None:
            text = f"no such variable; nearest: {nearest(name, VARIABLES)}"
        elif known.meaning is None:
            text = known.instead
        else:
            continue
        _said.add(name)
        warnings.warn(f"{name}={os.environ[name]} is set and means nothing to ontrain: {text}", stacklevel=3)
