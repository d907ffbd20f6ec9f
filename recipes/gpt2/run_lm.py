"""Train GPT-2 as one ONNX graph a step; measure perplexity and write text with the exported file in onnxruntime.

The options are those of Hugging Face's run_language_modeling.py as the GPT-2 example of ONNX Runtime Training patched
it; run_lm.sh has the example's own. A small GPT-2 from scratch, on two files of text:

    $ python recipes/gpt2/run_lm.py --output_dir runs/gpt2 --do_train --do_eval --do_eval_in_torch \\
          --train_data_file wiki.train.tokens --eval_data_file wiki.test.tokens \\
          --vocab_file vocab.json --merges_file merges.txt \\
          --config_overrides n_layer=4,n_embd=128,n_head=4,n_positions=128 \\
          --per_gpu_train_batch_size 16 --learning_rate 1e-3 --weight_decay 0.01 --warmup_steps 50 \\
          --num_train_epochs 3 --logging_steps 50 --evaluate_during_training

gpt2-medium fine-tuned, with the weights and the vocabulary of a folder (or of Hugging Face's hub):

    $ python recipes/gpt2/run_lm.py --model_name_or_path gpt2-medium --output_dir runs/gpt2-medium \\
          --do_train --do_eval --train_data_file wiki.train.tokens --eval_data_file wiki.test.tokens \\
          --block_size 1024 --per_gpu_train_batch_size 1 --gradient_accumulation_steps 16

`--engine pytorch` (or `--use_ort false`) makes the same updates in eager PyTorch: same initial weights, batches,
accumulation, clipping, AdamW and schedule. Without dropout (`--config_overrides
resid_pdrop=0,embd_pdrop=0,attn_pdrop=0`), whose random generators differ, the two draw one curve.

    tokens an update    per_gpu_train_batch_size · block_size · gradient_accumulation_steps · processes
    updates an epoch    text's tokens // tokens an update; the blocks that are left over wait for another epoch's order
    learning rate       from 0 over --warmup_steps to --learning_rate, then linearly to 0 at the last update

What a run leaves in --output_dir:

    checkpoint-N/         after N updates: weights, moments, counters; the newest --save_total_limit of them
    config.json, model.safetensors, vocab.json, merges.txt      what --model_name_or_path reads
    model.onnx            scores and key-value cache: input_ids, past_key_values.* -> logits, present.*
    metrics.jsonl         a row an interval of training, a row an evaluation with what the model wrote
    results.json          options, versions, perplexities, speed, texts
    eval_results_lm.txt   `perplexity = …`, as the example wrote it
    events.out.*          for `tensorboard --logdir runs`

Ctrl-C finishes the update, writes a checkpoint and says how to go on. A run that goes on (--resume_from_checkpoint)
makes the updates that the uninterrupted one would have made, to the last bit.

Exit codes: 0 done; 1 the loss became NaN or infinite (the last checkpoint stays), or onnxruntime's perplexity differs
from PyTorch's by more than a thousandth; 2 an option, a file or the output folder is at fault; 130 interrupted.
"""

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
from lm.arguments import Arguments, parse
from lm.batching import Batches, training_batches
from lm.engines import make_trainer
from lm.evaluation import TOLERANCE, Evaluation
from lm.journal import Journal
from lm.model import make_model, read_vocabulary, sequence_length
from lm.report import plan_text, write_results
from lm.text import Ids, read_text
from lm.training import Training
from transformers.utils.logging import disable_progress_bar

from ontrain.distributed import find_processes
from ontrain.errors import InputError, NonFiniteLossError, OntrainError, OptionError


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    disable_progress_bar()
    try:
        return Run(parse(given), ["recipes/gpt2/run_lm.py", *given])()
    except NonFiniteLossError as error:
        print(f"error: {error}\n  the last checkpoint stays; try a lower --learning_rate", file=sys.stderr)
        return 1
    except OntrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
