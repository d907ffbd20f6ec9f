"""What a run keeps in --output: its rows, its checkpoints, and where it goes on."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, NoReturn

import typer
from harness.files import writable
from harness.journal import Journal
from harness.meter import perplexity
from harness.provenance import command_line
from harness.terminal import fail

from ontrain.errors import OntrainError


class Run:
    """A run's folder; `step` and `epoch` are where it is, `best_loss` the lowest of the validation so far."""

    def __init__(self, output: Path, *, resume: bool, overwrite: bool) -> None:
        self.output, self.resumes = output, resume
        self.step, self.epoch, self.best_loss = 0, 1, math.inf
        writable(output, "--output")
        if resume and overwrite:
            fail("--resume goes on and --overwrite begins anew: give one of them", 2)
        metrics = output / "metrics.jsonl"
        older = [output / name for name in ("checkpoint", "best") if (output / name).exists()]
        if (older or (metrics.exists() and metrics.stat().st_size)) and not (resume or overwrite):
            said = "--resume goes on with it, --overwrite begins anew, --output names another folder"
            fail(f"{output} holds a run: {said}", 2)

    def begin(self, trainer: Any, setting: dict[str, Any]) -> bool:
        """Go on from the checkpoint, if --resume says so, under an equal setting; open the log behind its step."""
        self.trainer, self.setting, output = trainer, setting, self.output
        if self.resumes:
            try:
                position = trainer.load_checkpoint(output / "checkpoint")
            except OntrainError as error:
                fail(f"--resume: {error}", 2)
            if {key: position.get(key) for key in setting} != setting:
                fail(f"--resume: the checkpoint was made with {position}, this run has {setting}", 2)
            self.step, self.best_loss = position["step"], position["best_loss"] or math.inf
        else:
            for name in ("checkpoint", "best"):
                shutil.rmtree(output / name, ignore_errors=True)
            for old in (*output.glob("events.out.*"), output / "model.onnx", output / "report.html"):
                old.unlink(missing_ok=True)
        step = self.step
        self.journal = Journal(
            output / "metrics.jsonl", lambda row: row["step"] <= step, events=output,
            purge_step=step + 1 if step else None,
        )  # fmt: skip
        return self.resumes

    def log(self, split: str, loss: float, **more: float) -> None:
        """Write a row of the present step, its numbers as curves."""
        values = {"loss": loss, "ppl": perplexity(loss), **more}
        self.journal.add({"step": self.step, "epoch": self.epoch, "split": split, **values})
        self.journal.curves(self.step, values, split)

    def save(self, folder: str = "checkpoint") -> None:
        """Write a checkpoint."""
        best = self.best_loss if self.best_loss < math.inf else None  # JSON has no infinity
        user = {**self.setting, "step": self.step, "best_loss": best}
        self.trainer.save_checkpoint(self.output / folder, user_dict=user)

    def validated(self, loss: float, lr: float) -> None:
        """Log a validation's loss; the lowest so far has a checkpoint of its own."""
        if not math.isfinite(loss):
            self.diverged(f"the validation loss is {loss} after step {self.step}", lr)
        self.log("valid", loss)
        if loss < self.best_loss:
            self.best_loss = loss
            self.save("best")

    def diverged(self, problem: str, lr: float) -> NoReturn:
        """End the script; the last checkpoint stays."""
        folder = self.output / "checkpoint"
        stays = f"the last good checkpoint stays in {folder}" if folder.exists() else "there is no checkpoint yet"
        fail(f"{problem}\n{stays}; try a learning rate below {lr:g}", 1)

    def interrupted(self) -> NoReturn:
        """End the script with the command that goes on."""
        self.journal.close()
        print(f"interrupted after step {self.step}; go on with\n  {command_line(resume='--resume')}")
        raise typer.Exit(130)
