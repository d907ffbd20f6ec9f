"""`DebugOptions`: what an ORTModule says and writes, under onnxruntime.training.ortmodule's names."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from ontrain.capture.phases import show_phases
from ontrain.errors import OptionError
from ontrain.passes import Journal

__all__ = ["DebugOptions", "LogLevel"]


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
            standard error where logging has no handler.
        save_onnx: whether to write graphs.
        onnx_prefix: how the files' names begin; not empty if `save_onnx`.
        save_path: the folder; "" is the environment's ORTMODULE_SAVE_ONNX_PATH, or the current one.

    Raises:
        OptionError: `save_onnx` without a prefix, or `log_level` is none.
    """

    log_level: LogLevel = LogLevel.WARNING
    save_onnx: bool = False
    onnx_prefix: str = ""
    save_path: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.log_level, LogLevel):
            raise OptionError(f"log_level is {self.log_level!r}", way_out=f"one of {', '.join(LogLevel.__members__)}")
        if self.save_onnx and not self.onnx_prefix:
            raise OptionError("save_onnx needs an onnx_prefix", way_out="give the files' names a beginning")
        if self.log_level <= LogLevel.INFO:
            show_phases()

    def journal(self, training: bool) -> Journal:
        """Return what writes the stages of a plan."""
        mode = "training" if training else "inference"
        if not self.save_onnx:
            return Journal(f"module-{mode}")
        folder = Path(self.save_path or os.environ.get("ORTMODULE_SAVE_ONNX_PATH", ""))
        files = {
            "captured_path": "torch_exported",
            "model_after_graph_transforms_path": "optimized",
            "model_with_training_graph_after_optimization_path": "execution_model",
        }
        save = {key: str(folder / f"{self.onnx_prefix}_{name}_{mode}.onnx") for key, name in files.items()}
        return Journal(f"module-{mode}", save=save)
