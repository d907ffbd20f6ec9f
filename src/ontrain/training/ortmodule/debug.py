"""`DebugOptions`: what an ORTModule says and writes, under onnxruntime.training.ortmodule's names."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from ontrain.arguments import told
from ontrain.capture import show_phases
from ontrain.errors import OptionError, nearest
from ontrain.passes import Journal
from ontrain.training.environment import is_on

__all__ = ["DebugOptions", "LogLevel"]

_LOG_LEVEL = "ORTMODULE_LOG_LEVEL"


class LogLevel(enum.IntEnum):
    """How much is said; from INFO down each capture, each plan and its first run is a line with its seconds."""

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5


@dataclass(frozen=True)
class DebugOptions:
    """What to say and write.

    Graphs are written as `{prefix}_torch_exported_{mode}.onnx`, as captured; `{prefix}_optimized_{mode}.onnx`, after
    the forward passes; and in training `{prefix}_execution_model_{mode}.onnx`, with the backward pass, as it is run.
    The mode is "training" or "inference"; a new plan overwrites them. `ONTRAIN_DUMP` writes the graph after each single
    stage.

    Args:
        log_level: from INFO down, phases are said for the whole process: to the logger "ontrain.phases", or on
            standard error where logging has no handler. The environment's ORTMODULE_LOG_LEVEL goes before it.
        save_onnx: whether to write graphs.
        onnx_prefix: how the files' names begin; not empty if `save_onnx`.
        save_path: the folder; "" is the current one. The environment's ORTMODULE_SAVE_ONNX_PATH goes before it.
        config: None; onnxruntime takes a value and does nothing with it.

    Raises:
        OptionError: `save_onnx` without a prefix, `config` is given, or `log_level` or ORTMODULE_LOG_LEVEL is none.
    """

    log_level: LogLevel = LogLevel.WARNING
    save_onnx: bool = False
    onnx_prefix: str = ""
    save_path: str = ""
    config: None = None

    def __post_init__(self) -> None:
        if self.config is not None:
            raise OptionError(
                f"config is {told(self.config)}",
                reason="onnxruntime never read it, so that there is nothing that it could mean",
                way_out="leave it out",
            )
        if not isinstance(self.log_level, LogLevel):
            raise OptionError(f"log_level is {self.log_level!r}", way_out=f"one of {', '.join(LogLevel.__members__)}")
        named = os.environ.get(_LOG_LEVEL)
        if named:
            if named not in LogLevel.__members__:
                known = nearest(named, LogLevel.__members__)
                raise OptionError(f"{_LOG_LEVEL} is {named!r}", way_out=f"nearest: {known}")
            object.__setattr__(self, "log_level", LogLevel[named])
        if self.save_onnx and not self.onnx_prefix:
            raise OptionError("save_onnx needs an onnx_prefix", way_out="give the files' names a beginning")
        if self.log_level <= LogLevel.INFO:
            show_phases()

    def journal(self, training: bool) -> Journal:
        """Return what says which passes run in a plan, and writes its stages."""
        mode = "training" if training else "inference"
        if not self.save_onnx:
            return Journal(f"module-{mode}", disabled=_left_out())
        folder = Path(os.environ.get("ORTMODULE_SAVE_ONNX_PATH") or self.save_path)
        files = {
            "captured_path": "torch_exported",
            "model_after_graph_transforms_path": "optimized",
            "model_with_training_graph_after_optimization_path": "execution_model",
        }
        save = {key: str(folder / f"{self.onnx_prefix}_{name}_{mode}.onnx") for key, name in files.items()}
        return Journal(f"module-{mode}", disabled=_left_out(), save=save)


def _left_out() -> list[str]:
    """The passes that upstream's variables turn off; each of them turns off those of the next."""
    rows = ["EliminateUnreadRows", "EliminateUnlabelledRows", "EliminatePadding"]
    for place, switch in enumerate(("COMPUTE", "SPARSE", "EMBEDDING_SPARSE")):
        if not is_on(f"ORTMODULE_ENABLE_{switch}_OPTIMIZER", default=True):
            return rows[place:]
    return []
