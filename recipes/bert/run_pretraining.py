"""Pre-train BERT on masked words and next sentences; the flags of onnxruntime's run_pretraining_ort.py, each working.

    $ python run_pretraining.py --do_train --input_dir PHASE1_HDF5 --output_dir RUN --config_file bert_config.json \\
          --max_seq_length 128 --max_predictions_per_seq 20 --train_batch_size 8192 --gradient_accumulation_steps 64 \\
          --learning_rate 6e-3 --warmup_proportion 0.2843 --max_steps 7038 --fp16
    $ python run_pretraining.py --do_train --input_dir PHASE2_HDF5 --output_dir RUN --phase2 --resume_from_checkpoint
    $ torchrun --nproc_per_node 8 run_pretraining.py --do_train --input_dir PHASE1_HDF5 --output_dir RUN

run_pretraining.sh has the published numbers of both phases. Data are HDF5 files of prepare.py with "training" in their
names. mpirun and srun start several processes, too.

What a run leaves in --output_dir:

    ckpt_100 …            weights, moments, counters, random state, position in the data; the newest three
    phase1_bert.onnx      the model after phase 1, final_bert.onnx after phase 2: inputs input_ids, segment_ids,
                          input_mask, outputs prediction_scores, seq_relationship_score
    dllogger.json         a JSON line every --log_freq steps, with upstream's keys (--json-summary names another file)
    events.out.*          for tensorboard --logdir RUN
    report.html           curves, time per operator, memory, the searchable graph of a step; needs no network

Ctrl-C or SIGTERM finishes the step, writes a checkpoint and says how to go on. A run that goes on equals one that was
never stopped, to the bit, wherever in a data file it was.

Loss is that of masked words, a mean over the labels of a whole update in all processes, plus that of next sentences.
LAMB: averages 0.9 and 0.999, ε 1e-6, weight decay 0.01 but for biases and layer norms.

Exit codes: 0 done; 1 the loss is NaN or infinite; 2 a flag, the data, a checkpoint or disk is wrong; 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers")

import time

from harness.options import Engine, execute, parse
from pretraining.flags import Options

if __name__ == "__main__":
    OPTIONS, BEGAN = parse(Options), time.perf_counter()  # --help and a wrong flag do not wait for torch

from collections.abc import Sequence

import torch
import typer
from dataset import IGNORED, Micro, PretrainingData, gather
from harness.files import DataError, writable
from harness.processes import Team
from harness.provenance import command_line
from harness.terminal import ended, progress, stopping
from pretraining.eager import eager_twin
from pretraining.flags import limit_by_its_flag
from pretraining.record import Outcome, Run, checkpoint, finish, report
from pretraining.start import begin, check_folder, identity, join
from pretraining.weights import padded_size, read_config
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from ontrain.ort_supplement import SCHEDULES
from ontrain.training import ORTTrainer, ORTTrainerOptions, amp, optim

# --- the model and its loss -----------------------------------------------------------------------------------------


class PretrainingBert(BertForPreTraining):
    """BertForPreTraining that returns its losses; parameters have the names of the class that it is."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, segment_ids: Tensor, input_mask: Tensor, masked_lm_labels: Tensor,
        next_sentence_labels: Tensor, share: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return (loss, loss of masked words, loss of next sentence), 0-d each, for a `dataset.Batch`.

        `share`, 0-d float32, is the labels of this micro-batch divided by those of a mean one. Means over micro-batches
        and processes are then the means over all labels, however unevenly these are spread.
        """
        out = super().forward(input_ids, attention_mask=input_mask, token_type_ids=segment_ids)
        scores = out.prediction_logits.flatten(0, 1)
        words = nn.functional.cross_entropy(scores, masked_lm_labels.flatten(), ignore_index=IGNORED)
        follows = nn.functional.cross_entropy(out.seq_relationship_logits, next_sentence_labels)
        if share is not None:
            words = words * share
        return words + follows, words, follows


def make_model(config: BertConfig, seed: int) -> PretrainingBert:
    """Return a model with initial weights that the seed decides, its vocabulary padded."""
    torch.manual_seed(seed)
    return PretrainingBert(BertConfig.from_dict({**config.to_dict(), "vocab_size": padded_size(config.vocab_size)}))


# --- the step -------------------------------------------------------------------------------------------------------


class PretrainingStep:
    """Forward, both losses, backward, accumulation, clipping and LAMB: one graph of `ORTTrainer`, or its eager twin."""

    def __init__(self, options: Options, model: PretrainingBert, team: Team) -> None:
        self.device, self.scaler = team.device, None
        self.weighted = options.gradient_accumulation_steps * team.size > 1
        if options.fp16 and options.loss_scale:
            self.scaler = amp.DynamicLossScaler(automatic_update=False, loss_scale=max(options.loss_scale, 1.0))
        elif options.fp16:
            self.scaler = amp.DynamicLossScaler()
        names = [name for name, _ in model.named_parameters()]
        spared = [name for name in names if any(part in name for part in ("bias", "gamma", "beta", "LayerNorm"))]
        if options.engine is Engine.ontrain:
            self.trainer = self._as_one_graph(options, model, team, spared)
        else:
            self.trainer = eager_twin(options, model, team, self.scaler, spared)

    def _as_one_graph(self, options: Options, model: PretrainingBert, team: Team, spared: list[str]) -> ORTTrainer:
        tokens = ["batch", options.max_seq_length]
        inputs = [(name, tokens) for name in ("input_ids", "segment_ids", "input_mask", "masked_lm_labels")]
        inputs += [("next_sentence_labels", ["batch"]), *([("share", [])] if self.weighted else [])]
        outputs = [("loss", [], True), ("masked_lm_loss", []), ("next_sentence_loss", [])]
        lamb = optim.LambConfig(
            lr=options.learning_rate, alpha=0.9, beta=0.999, lambda_coef=0.01, epsilon=1e-6, do_bias_correction=True,
            params=[{"params": spared, "lambda_coef": 0.0}],
        )  # fmt: skip
        settings = {
            "batch": {"gradient_accumulation_steps": options.gradient_accumulation_steps},
            "device": {"id": str(team.device), "mem_limit": int((options.gpu_memory_limit_gb or 0) * (1 << 30))},
            "distributed": {
                **team.processes.options(),
                "allreduce_post_accumulation": options.allreduce_post_accumulation,
                "deepspeed_zero_optimization": {"stage": int(options.deepspeed_zero_stage)},
            },
            # Masks of dropout differ from process to process.
            "utils": {"seed": options.seed + team.rank, "grad_norm_clip": options.max_grad_norm > 0},
            "graph_transformer": {"transformer_layer_recompute": options.checkpoint_activations},
        }
        if options.max_grad_norm > 0:
            settings["utils"]["max_grad_norm"] = options.max_grad_norm
        if options.bf16:
            settings["mixed_precision"] = {"enabled": True, "dtype": "bfloat16"}
        if options.fp16:
            settings["mixed_precision"] = {"enabled": True, "dtype": "float16", "loss_scaler": self.scaler}
        described = {"inputs": inputs, "outputs": outputs}
        return ORTTrainer(model, described, lamb, options=ORTTrainerOptions(settings))

    def feeds(self, micro: Micro) -> list[Tensor]:
        """Return the arguments of the model for a micro-batch."""
        tensors = [tensor.to(self.device, non_blocking=True) for tensor in micro.batch]
        return [*tensors, torch.tensor(micro.share, device=self.device)] if self.weighted else tensors

    def update(self, micros: Sequence[Micro], rate: float) -> Outcome:
        """Add up the gradients of some micro-batches and update the weights."""
        self.trainer.optim_config.lr = rate
        scale = 1.0 if self.scaler is None else float(self.scaler.loss_scale)
        total, norm, names = torch.zeros(3), torch.zeros(()), ["loss", "masked_lm_loss", "next_sentence_loss"]
        for number, micro in enumerate(micros, 1):
            last = number == len(micros)
            losses = self.trainer.train_step(*self.feeds(micro), fetches=[*names, "grad_norm"] if last else names)
            *losses, norm = losses if last else (*losses, norm)
            total = total.to(losses[0].device) + torch.stack([loss.float().reshape(()) for loss in losses])
        return Outcome(total / len(micros), norm, self.trainer.train_step_info.all_finite, scale)


def learning_rate(options: Options, step: int) -> float:
    """Return the rate of the update after `step` others."""
    return options.learning_rate * SCHEDULES[options.schedule](step / options.steps, options.warmup_proportion)


# --- the loop -------------------------------------------------------------------------------------------------------


def train(run: Run) -> bool:
    """Train to the end of the phase; return False if a signal ended it early, after a checkpoint."""
    options, meter, batches = run.options, run.meter, iter(run.data)
    window, updates, skipped = torch.zeros(3, dtype=torch.float64), 0, 0
    shown, label = not options.disable_progress_bar, f"phase {options.phase}"
    with stopping() as asked, progress(run.console, label, options.steps, shown=shown) as advance:
        while not run.finished and not run.team.sum(asked()):  # all processes stop at the same step
            try:
                micros, sequences, tokens = gather(batches, options.gradient_accumulation_steps, run.team)
            except DataError:  # of any process: all end together, and what was trained is kept
                checkpoint(run)
                raise
            rate = learning_rate(options, run.step)
            outcome = run.engine.update(micros, rate)
            run.step, run.position, run.sample = run.step + 1, run.data.position, micros[0]
            window, updates = window + outcome.losses.cpu().double(), updates + 1
            skipped += not outcome.finite
            meter.add(sequences, tokens)
            if run.step % int(options.log_freq) == 0 or run.finished:
                report(run, window / updates, outcome, rate, skipped)
                window, updates = torch.zeros(3, dtype=torch.float64), 0
            advance(run.step)
            if run.step % options.num_steps_per_checkpoint == 0:
                checkpoint(run)
        checkpoint(run)
    return run.finished


# --- a phase --------------------------------------------------------------------------------------------------------


def pretrain(options: Options, began: float) -> bool:
    """Run one phase; return whether it reached its end. The program began at `began`, by `time.perf_counter()`."""
    team = join(options)
    check_folder(options)
    writable(options.output_dir)
    config = read_config(options.config_file, options.bert_model, options.max_seq_length)

    def read_data(position: dict[str, int] | None) -> PretrainingData:
        return PretrainingData(
            options.input_dir, batch_size=options.micro_batch, seed=options.seed, rank=team.rank,
            world_size=team.size, max_seq_length=options.max_seq_length,
            max_predictions_per_seq=options.max_predictions_per_seq, vocab_size=config.vocab_size, position=position,
        )  # fmt: skip

    read_data(None)  # what is wrong with the files is said before the model is made
    model = make_model(config, options.seed)
    engine = PretrainingStep(options, model, team)
    start = begin(options, engine.trainer, model, config, lambda text: print(text, file=sys.stderr))
    run = Run(options, team, engine, read_data(start.position), identity(options, config), start.step)
    try:
        run.introduce(model, start.note)
        with limit_by_its_flag(), run.saying_what_stays():
            complete = train(run)
            if complete:
                run.sample = run.sample or Micro(next(iter(run.data)))
                finish(run, config, began, time.perf_counter())
    finally:
        run.journal.close()
    return complete


def main(options: Options) -> None:
    """Run a phase from the command line."""
    lower = "\nthe last checkpoint stays; a lower --learning_rate or a longer warmup may help"
    with ended(lower, again="--resume_from_checkpoint goes on from the newest checkpoint"):
        complete = pretrain(options, BEGAN)
    if not complete:
        print(f"interrupted; go on with\n  {command_line(resume='--resume_from_checkpoint')}", file=sys.stderr)
        raise typer.Exit(130)


if __name__ == "__main__":
    execute(main, OPTIONS)
