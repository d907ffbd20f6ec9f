"""Train GPT-2 as one ONNX graph a step; measure perplexity and write text with the exported file in onnxruntime.

The options are those of Hugging Face's run_language_modeling.py as the GPT-2 example of ONNX Runtime Training patched
it; run_lm.sh has the example's own. A small GPT-2 from scratch, on two files of text:

    $ python recipes/gpt2/run_lm.py --output_dir runs/gpt2 --do_train --do_eval --do_eval_in_torch \\
          --train_data_file wiki.train.tokens --eval_data_file wiki.test.tokens --vocab_file vocab.json \\
          --merges_file merges.txt --config_overrides n_layer=4,n_embd=128,n_head=4,n_positions=128 \\
          --per_gpu_train_batch_size 16 --learning_rate 1e-3 --weight_decay 0.01 --warmup_steps 50 \\
          --num_train_epochs 3 --logging_steps 50 --evaluate_during_training

gpt2-medium fine-tuned, with the weights and the vocabulary of a folder (or of Hugging Face's hub):

    $ python recipes/gpt2/run_lm.py --model_name_or_path gpt2-medium --output_dir runs/gpt2-medium \\
          --do_train --do_eval --train_data_file wiki.train.tokens --eval_data_file wiki.test.tokens \\
          --block_size 1024 --per_gpu_train_batch_size 1 --gradient_accumulation_steps 16

What memory a step takes, said without training:

    $ python recipes/gpt2/run_lm.py --plan_only --config_name gpt2 --vocab_file vocab.json --merges_file merges.txt

`--engine pytorch` (or `--use_ort false`) makes the same updates in eager PyTorch. Without dropout (`--config_overrides
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

Ctrl-C finishes the update and writes a checkpoint; --resume_from_checkpoint goes on, equal to the last bit.

Exit codes: 0 done; 1 the loss became NaN or infinite (the last checkpoint stays), or onnxruntime's perplexity differs
from PyTorch's by more than a thousandth; 2 an option, a file or the output folder is at fault; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "tokenizers", "transformers")

from harness.options import execute
from lm.arguments import Arguments, parse

if __name__ == "__main__":
    execute(parse, sys.argv[1:])  # --help and a wrong option do not wait for torch

import statistics
import time

import torch
import typer
from harness.meter import perplexity
from harness.processes import Team
from harness.terminal import ended, stopping
from lm.evaluation import Evaluation
from lm.model import make_model, read_vocabulary, sequence_length
from lm.record import Run
from lm.text import Ids, read_text, training_batches
from lm.twin import Schedule, eager_trainer, undecayed
from torch import nn
from transformers.utils.logging import disable_progress_bar

from ontrain.errors import InputError, OptionError
from ontrain.training import ORTTrainer, amp, optim

RESUMES = "--resume_from_checkpoint goes on from the newest checkpoint"
TOLERANCE = 1e-3
"""Between PyTorch's and onnxruntime's perplexity, as a part of it."""

# --- the step -------------------------------------------------------------------------------------------------------


def ort_trainer(arguments: Arguments, model: nn.Module, total_steps: int, team: Team) -> ORTTrainer:
    """The whole use of ontrain: what goes in and comes out, which optimizer, and what else is done in a step."""
    description = {
        # Dimensions with a name may vary. Only the loss is asked for, so that the scores of all tokens at once, the
        # largest tensor by far, are never made. The loss, cross entropy of the next token, is the model's own.
        "inputs": [("input_ids", ["batch", "length"]), ("labels", ["batch", "length"])],
        "outputs": [("loss", [], True)],
    }
    adam = optim.AdamConfig(
        params=[{"params": undecayed(model), "lambda_coef": 0.0}],
        lr=arguments.learning_rate, lambda_coef=arguments.weight_decay, epsilon=arguments.adam_epsilon,
    )  # fmt: skip
    warmup = arguments.warmup_steps / total_steps
    options: dict[str, Any] = {
        "batch": {"gradient_accumulation_steps": arguments.gradient_accumulation_steps},
        "device": {"id": str(team.device)},
        "lr_scheduler": optim.lr_scheduler.LinearWarmupLRScheduler(total_steps=total_steps, warmup=warmup),
        "utils": {"seed": arguments.seed, "grad_norm_clip": arguments.max_grad_norm > 0},
    }
    if arguments.max_grad_norm > 0:
        options["utils"]["max_grad_norm"] = arguments.max_grad_norm
    if arguments.fp16:
        scaler = amp.DynamicLossScaler(loss_scale=2.0**20, up_scale_window=2000, max_loss_scale=2.0**24)
        options["mixed_precision"] = {"enabled": True, "loss_scaler": scaler}
    if team.size > 1:
        options["distributed"] = {**team.processes.options(), "allreduce_post_accumulation": True}
    return ORTTrainer(model, description, adam, options=options)


# --- the loop -------------------------------------------------------------------------------------------------------


def train(run: Run, ids: Ids, evaluate: Callable[[int], None] | None) -> tuple[int, bool]:
    """Make the updates that are left; return how many are done, and whether a signal ended the run before its end."""
    arguments, team = run.arguments, run.team
    data = training_batches(arguments, ids, run.size, team.processes)
    if arguments.warmup_steps >= data.total:
        raise OptionError(
            f"--warmup_steps is {arguments.warmup_steps:,}, the run has {data.total:,} updates",
            way_out="warm up in fewer",
        )
    schedule = Schedule(arguments.learning_rate, arguments.warmup_steps, data.total)
    if arguments.engine == "ontrain":
        trainer: Any = ort_trainer(arguments, run.model, data.total, team)
        sample = next(data.of_update(0)).to(team.device)
        run.facts["seconds to capture"] = round(sum(trainer.prepare(sample, sample)[1].values()), 2)
    elif arguments.fp16:
        raise OptionError("--fp16 is not for the eager twin", way_out="train with --engine ontrain, or without --fp16")
    else:
        trainer = eager_trainer(arguments, run.model, schedule, team)
    begun = step = run.begin(trainer, data)
    losses, seconds = [], []
    with stopping() as asked:
        while step < data.total and not (asked() and step > begun):
            start, parts = time.perf_counter(), []
            for rows in data.of_update(step):
                batch = rows.to(team.device)
                parts.append(float(trainer.train_step(batch, batch)))
            losses.append(team.sum(statistics.fmean(parts)) / team.size)
            seconds.append(time.perf_counter() - start)
            step += 1
            last = step == data.total
            if step % arguments.logging_steps == 0 or last or (step == 1 and arguments.logging_first_step):
                loss, spent = statistics.fmean(losses), statistics.median(seconds)
                rate, epoch = schedule(step - 1), step / data.updates_an_epoch
                run.log(step, "train", epoch=epoch, loss=loss, learning_rate=rate, seconds=spent)
                run.say(
                    f"| update {step:6,}/{data.total:6,} | epoch {epoch:6.2f} | lr {rate:.2e} | loss {loss:7.4f} "
                    f"| ppl {perplexity(loss):9.2f} | {1000 * spent:8.1f} ms "
                    f"| {data.tokens_an_update / spent:9,.0f} tokens/s |"
                )
                losses, seconds = [], []
            interval = arguments.evaluation_interval
            if evaluate is not None and interval and step % interval == 0 and not last:
                evaluate(step)
            if arguments.save_steps and (step % arguments.save_steps == 0 or last):
                run.save(trainer, step)
        if step < data.total:
            run.save(trainer, step)
    if step < data.total:
        run.say_how_to_go_on(step)
    else:
        run.finish_training(data, step)
    return step, step < data.total


# --- the run: data, model, training, evaluation -----------------------------------------------------------------------


def run_lm(arguments: Arguments, command: Sequence[str]) -> int:
    """Do what the options ask for, in order, and return the exit code."""
    vocabulary = read_vocabulary(arguments)
    if arguments.engine != "ontrain" and arguments.plan_only:
        raise OptionError("--plan_only plans memory", reason="eager PyTorch has no plan", way_out="plan for ontrain")
    team = Team.join("cpu" if arguments.no_cuda else None)
    torch.manual_seed(arguments.seed)
    model = make_model(arguments, vocabulary).to(team.device)
    run = Run(arguments, command, team, vocabulary, model, sequence_length(arguments, model))
    if arguments.plan_only:
        run.say(run.plan_text(ort_trainer(arguments, model, 1 + arguments.warmup_steps, Team(device=team.device))))
        return 0
    run.claim_output()

    def text(file: str, purpose: str) -> Ids:
        ids = read_text(Path(file), vocabulary)
        if len(ids) < 2:
            raise InputError(f"{file} has a single token", way_out="name a file with more text")
        run.say(f"text to {purpose}: {file}, {len(ids):,} tokens")
        run.facts[f"tokens to {purpose}"] = len(ids)
        return ids

    train_ids = text(str(arguments.train_data_file), "train on") if arguments.do_train else None
    evaluation = None
    if arguments.evaluates:
        eval_ids = text(str(arguments.eval_data_file), "evaluate on")
        evaluation = Evaluation(arguments, model, vocabulary, eval_ids, run.size, run.output)

    def evaluate(step: int, unigram: float | None = None) -> None:
        """Evaluate, say what came out, and remember where onnxruntime and PyTorch differ."""
        results = evaluation(step)
        run.log(step, "eval", **results)
        beside = "" if unigram is None else f" (unigram {unigram:.2f})"
        ours, in_torch = results["perplexity"], results.get("perplexity in PyTorch")
        if in_torch is not None and in_torch != ours:
            beside += f"; in PyTorch {in_torch:.5f}"
        run.say(f"| after {step:,} updates: loss {results['loss']:.5f}, perplexity {ours:.5f}{beside}")
        for kind in ("greedy", "sampled"):
            if kind in results:
                run.say(f"|   {kind}: {results[kind]!r}")
        run.facts["evaluation"] = results if unigram is None else {**results, "unigram perplexity": unigram}
        if in_torch is not None and not abs(in_torch - ours) <= TOLERANCE * in_torch:
            print(f"error: onnxruntime's perplexity is {ours}, PyTorch's {in_torch}", file=sys.stderr)
            run.code = 1

    step, interrupted = 0, False
    if train_ids is not None:
        step, interrupted = train(run, train_ids, evaluate if evaluation and team.first else None)
    else:
        run.open_journal()
    if evaluation and not interrupted and team.first and (arguments.do_eval or arguments.do_eval_in_torch):
        evaluate(step, None if train_ids is None else evaluation.unigram(train_ids))
    if interrupted:
        run.journal.close()
        return 130
    run.write_results()
    return run.code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    disable_progress_bar()
    try:
        with ended("\n  the last checkpoint stays; try a lower --learning_rate", again=RESUMES):
            return run_lm(parse(words), ["recipes/gpt2/run_lm.py", *words])
    except typer.Exit as end:
        return end.exit_code


if __name__ == "__main__":
    sys.exit(main())
