"""A run of fine-tuning: its processes, where it speaks, the folder of its model, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from harness.files import writable
from harness.finetuning.evaluation import finish
from harness.finetuning.examples import Examples
from harness.finetuning.flags import Flags
from harness.finetuning.model_folder import ModelFolder
from harness.finetuning.training import train
from harness.processes import Team
from harness.terminal import speaker


@dataclass(frozen=True)
class Run:
    """What the parts of a script work with; `results` become eval_results.json."""

    flags: Flags
    team: Team
    console: Console
    folder: ModelFolder
    results: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, flags: Flags, max_seq_length: int) -> Run:
        """Meet the other processes, and refuse at once what cannot be read or written."""
        team = Team.join("cpu" if flags.no_cuda else None)
        if team.first:
            writable(flags.output_dir)
        return cls(flags, team, speaker(quiet=not team.first), ModelFolder.open(flags, max_seq_length))

    @property
    def onnx(self) -> Path:
        """The exported model."""
        return self.flags.output_dir / "model.onnx"

    def say(self, text: str) -> None:
        """Print a line, in one of the processes."""
        self.console.print(text)

    def train(self, model: nn.Module, examples: Examples) -> None:
        """Train a model in place, write its folder, and note what that took."""
        flags, team = self.flags, self.team
        done = train(model, examples, flags.settings(team.size), flags, flags.output_dir, self.console, team)
        if team.first:
            self.folder.save(model, flags.output_dir)
        self.results["training"] = done.figures(len(examples), team.size)

    def finish(self, apart: float) -> None:
        """Write the results; exit with 1 where the two engines' logits are too far apart."""
        finish(self.flags.output_dir, self.results, apart)
