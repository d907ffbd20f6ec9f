"""One run of run_lm.py: what its options ask for, in order."""

from __future__ import annotations

import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lm import checkpoints
from lm.arguments import Arguments
from lm.batching import Batches, training_batches
from lm.engines import make_trainer
from lm.evaluation import TOLERANCE, Evaluation
from lm.journal import Journal
from lm.model import make_model, read_vocabulary, sequence_length
from lm.report import plan_text, write_results
from lm.text import Ids, read_text
from lm.training import Training
from ontrain.distributed import find_processes
from ontrain.errors import InputError, NonFiniteLossError, OptionError


class Run:
    """One run of the script: what its options ask for, in order.

    Raises:
        OntrainError: an option, a file or the output folder is at fault.
    """

    def __init__(self, arguments: Arguments, command: Sequence[str]) -> None:
        self.arguments, self.command, self.started = arguments, list(command), time.perf_counter()
        self.processes = find_processes()
        self.writes = self.processes.rank == 0
        self.device = "cpu"
        if torch.cuda.is_available() and not arguments.no_cuda:
            self.device = f"cuda:{self.processes.local_rank}"
            torch.cuda.set_device(self.device)
        self.output = Path(arguments.output_dir)
        self.vocabulary = read_vocabulary(arguments)
        torch.manual_seed(arguments.seed)
        self.model = make_model(arguments, self.vocabulary).to(self.device)
        self.size = sequence_length(arguments, self.model)
        self.code = 0
        self.facts: dict[str, Any] = {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "vocabulary": self.vocabulary.size,
            "tokens a block": self.size,
        }
        self.say(
            f"model: {self.facts['parameters']:,} parameters, {self.vocabulary.size:,} tokens; "
            f"blocks of {self.size:,}; {arguments.engine} on {self.device}"
        )

    def __call__(self) -> int:
        """Return the exit code."""
        arguments = self.arguments
        if arguments.plan_only:
            self.say(plan_text(arguments, self.model, self.size, self.device))
            return 0
        self._claim_output()
        train_ids = self._text(arguments.train_data_file, "train on") if arguments.do_train else None
        evaluates = arguments.do_eval or arguments.do_eval_in_torch or arguments.evaluate_during_training
        eval_ids = self._text(arguments.eval_data_file, "evaluate on") if evaluates else None
        evaluation = None
        if eval_ids is not None:
            evaluation = Evaluation(arguments, self.model, self.vocabulary, eval_ids, self.size, self.output)
        step = 0
        if train_ids is not None:
            training, journal = self._train(train_ids, evaluation)
            step = training.step
            if training.interrupted:
                journal.close()
                return 130
        else:
            journal = Journal(self.output, sys.maxsize, self.writes)
        if evaluation is not None and self.writes and (arguments.do_eval or arguments.do_eval_in_torch):
            unigram = None if train_ids is None else evaluation.unigram(train_ids)
            self._evaluate(evaluation, journal, step, unigram)
        journal.close()
        if self.writes:
            self.facts["seconds"] = round(time.perf_counter() - self.started, 1)
            write_results(self.output, self.command, arguments, self.facts, self.device, self.processes)
        return self.code

    def say(self, text: str) -> None:
        """Print a line, in one of the processes."""
        if self.writes:
            print(text, flush=True)

    def _claim_output(self) -> None:
        arguments, output = self.arguments, self.output
        try:
            output.mkdir(parents=True, exist_ok=True)
            probe = output / f".probe-{self.processes.rank}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OptionError(f"--output_dir {output} cannot be written", reason=error.strerror) from error
        if not self._begins() or arguments.overwrite_output_dir:
            return
        if any(not one.name.startswith(".probe-") for one in output.iterdir()):
            raise OptionError(
                f"--output_dir {output} is not empty",
                way_out="name another folder, or give --overwrite_output_dir or --resume_from_checkpoint",
            )

    def _begins(self) -> bool:
        """Whether this process is to make a new run's folder."""
        return self.arguments.do_train and not self.arguments.resume_from_checkpoint and self.writes

    def _clear_output(self) -> None:
        """Remove what an older run left, so that it is not taken for this one's."""
        for folder in checkpoints.all_checkpoints(self.output):
            shutil.rmtree(folder)
        names = ("metrics.jsonl", "model.onnx", "model.onnx.data", "results.json", "eval_results_lm.txt")
        for old in (*self.output.glob("events.out.*"), *(self.output / name for name in names)):
            old.unlink(missing_ok=True)

    def _text(self, file: str | None, purpose: str) -> Ids:
        assert file is not None, "checked with the options"
        ids = read_text(Path(file), self.vocabulary)
        if len(ids) < 2:
            raise InputError(f"{file} has a single token", way_out="name a file with more text")
        self.say(f"text to {purpose}: {file}, {len(ids):,} tokens")
        self.facts[f"tokens to {purpose}"] = len(ids)
        return ids

    def _train(self, ids: Ids, evaluation: Evaluation | None) -> tuple[Training, Journal]:
        arguments = self.arguments
        data = training_batches(arguments, ids, self.size, self.processes)
        trainer, step = make_trainer(arguments, self.model, data.total, self.device, self.processes), 0
        sample = next(data.of_update(0)).to(self.device)
        _, phases = trainer.prepare(sample, sample)
        self.facts["seconds to capture"] = round(sum(phases.values()), 2)
        setting = self._setting(data)
        if self._begins():
            self._clear_output()
        if arguments.resume_from_checkpoint:
            step, refused = checkpoints.resume(trainer, self.output, arguments.resume_from_checkpoint, setting)
            for one in refused:
                print(f"warning: passed over: {one}", file=sys.stderr)
            self.say(f"resumed after update {step:,}")
        self.say(f"{data.total:,} updates of {data.tokens_an_update:,} tokens, {data.updates_an_epoch:,} an epoch")
        journal = Journal(self.output, step, self.writes)
        training = Training(arguments, trainer, data, journal, self.output, setting, self.device, self.processes, step)
        try:
            if evaluation is not None and self.writes:
                training.run(lambda step: self._evaluate(evaluation, journal, step))
            else:
                training.run(None)
        except NonFiniteLossError:
            journal.close()
            raise
        if training.interrupted and training.step < data.total:
            self.say(f"interrupted after update {training.step:,}; go on with\n  {self._resuming()}")
        else:
            training.interrupted = False
            self._save_model()
        seconds = [row["seconds"] for row in journal.rows() if row["split"] == "train"]
        if seconds:
            # The median of the intervals' medians, because the first update captures and plans.
            median = statistics.median(seconds)
            self.facts |= {"updates": training.step, "seconds an update": round(median, 4)}
            self.facts["tokens a second"] = round(data.tokens_an_update / median)
        return training, journal

    def _setting(self, data: Batches) -> dict[str, Any]:
        """What decides the updates."""
        optimizer = ("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm", "warmup_steps", "fp16")
        return {name: getattr(self.arguments, name) for name in ("engine", "seed", *optimizer)} | {
            "blocks": len(data.rows),
            "tokens a block": self.size,
            "rows an update": data.rows_an_update,
            "updates": data.total,
            "vocabulary": self.vocabulary.digest,
        }

    def _resuming(self) -> str:
        command = [one for one in self.command if one != "--overwrite_output_dir"]
        if "--resume_from_checkpoint" not in command:
            command.append("--resume_from_checkpoint")
        return shlex.join(["python", *command])

    def _save_model(self) -> None:
        """Write what --model_name_or_path reads."""
        if not self.writes:
            return
        self.model.save_pretrained(self.output)
        for source, name in zip(self.vocabulary.files, ("vocab.json", "merges.txt"), strict=True):
            if source.resolve() != (self.output / name).resolve():
                shutil.copyfile(source, self.output / name)

    def _evaluate(self, evaluation: Evaluation, journal: Journal, step: int, unigram: float | None = None) -> None:
        """Evaluate, say what came out, and remember where onnxruntime and PyTorch differ."""
        found = evaluation(step)
        journal.add(step, "eval", **found)
        beside = "" if unigram is None else f" (unigram {unigram:.2f})"
        in_torch = found.get("perplexity in PyTorch")
        if in_torch is not None and in_torch != found["perplexity"]:
            beside += f"; in PyTorch {in_torch:.5f}"
        self.say(f"| after {step:,} updates: loss {found['loss']:.5f}, perplexity {found['perplexity']:.5f}{beside}")
        for kind in ("greedy", "sampled"):
            if kind in found:
                self.say(f"|   {kind}: {found[kind]!r}")
        self.facts["evaluation"] = found if unigram is None else {**found, "unigram perplexity": unigram}
        if in_torch is not None and not abs(in_torch - found["perplexity"]) <= TOLERANCE * in_torch:
            print(f"error: onnxruntime's perplexity is {found['perplexity']}, PyTorch's {in_torch}", file=sys.stderr)
            self.code = 1
