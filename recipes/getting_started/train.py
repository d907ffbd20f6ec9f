"""Train a two-layer transformer language model as one ONNX graph, and check the result in stock onnxruntime.

This is the getting-started sample of ONNX Runtime Training on ontrain: model.py and the loss below are plain PyTorch,
`ORTTrainer` turns them, the gradients, the clipping and Adam into one graph, and one call of `train_step` runs it.

    $ python recipes/getting_started/train.py

trains three epochs on text that comes with every Python (the prose of `help()`), in about half a minute on two cores.
Each Python has a text of its own; with 3.11.7:

    | epoch   1 |    20/   79 batches | lr 0.00100 | ms/batch 44.47 | loss  6.43 | ppl   620.74
    ...
    test loss 4.6579, ppl 105.41 (unigram ppl 246.83)

A unigram model, which knows only how often each word occurs, is what a language model has to beat. WikiText-2 or
WikiText-103, unpacked by you, train with `--data`; the files are called wiki.train.tokens and so on:

    $ python recipes/getting_started/train.py --data ~/wikitext-2 --log-interval 200

The same recipe in eager PyTorch, with the same initial weights, batches, clipping and Adam, is

    $ python recipes/getting_started/train.py --engine pytorch --output runs/getting-started-pytorch

Without dropout, whose random generators differ, the two draw the same curve: with `--dropout 0`, and ONTRAIN_TUNE=0 in
the environment for the matrix products that PyTorch takes, two runs on one machine are equal to the last bit.

What a run leaves in --output (runs/getting-started):

    metrics.jsonl   a row a step: step, epoch, split, loss, ppl, lr, ms; and a row an evaluation
    report.html     curves, time per operator, peak memory and the searchable graph of the whole step; needs no network
    model.onnx      the model with the best validation loss, without loss and optimizer; input src, output `output`
    checkpoint/     where `--resume` goes on: weights, optimizer, random state, position; written every 100 steps
    best/           the checkpoint with the best validation loss
    events.out.*    for `tensorboard --logdir runs`

A folder that holds a run is left alone: --resume goes on with it, --overwrite begins anew, another --output leaves it.
Ctrl-C finishes the step, writes the checkpoint and says how to go on. A resumed run prints what the uninterrupted one
would have printed.

Exit codes: 0 done; 1 the loss became NaN or infinite (the last checkpoint stays), or onnxruntime computes another test
loss than the trainer (beyond 1e-4); 2 an option, the text or the output folder is at fault; 130 interrupted.

The numbers are the sample's: 2 layers of 2 heads, 200 wide, 200 wide inside, sequences of 35 words, 20 at a time (10 in
evaluation), dropout 0.2. Adam, as in the sample, at a constant 0.001; gradients are clipped at norm 1, which is what
ORTTrainer does unless told otherwise. On the text of Python 3.11.7 that is

    parameters   2437·200 embedding + 2437·200 + 2437 decoder + 2·242,000 layers = 1,461,237
    a step       35·20 = 700 words
    an epoch     55,285 // 20 = 2,764 words a column, the last without a successor: ⌈2,763 / 35⌉ = 79 steps
    the run      3·79 = 237 steps
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich")

from dataclasses import dataclass
from typing import Annotated, Any

from harness.files import DataError
from harness.options import Engine, execute, flag, parse
from harness.terminal import fail, progress, speaker, stopping


@dataclass(frozen=True)
class Options:
    """The flags; the top of this file is their manual."""

    engine: Annotated[Engine, flag("What runs the steps.")] = Engine.ontrain
    data_folder: Annotated[
        Path | None, flag("Folder of WikiText's token files.", "--data", metavar="DIR", missing="no such folder")
    ] = None
    epochs: Annotated[int, flag("Passes over the text.", min=1)] = 3
    dropout: Annotated[float, flag("Share of the values that are dropped.", min=0.0, max=0.99)] = 0.2
    lr: Annotated[float, flag("Adam's constant learning rate.", min=0.0)] = 1e-3
    seed: Annotated[int, flag("Of the initial weights and of dropout.")] = 1111
    output: Annotated[Path, flag("Folder for everything the run writes.")] = Path("runs/getting-started")
    log_interval: Annotated[int, flag("Steps from line to line.", "--log-interval", min=1)] = 20
    max_steps: Annotated[int | None, flag("Stop after this step at the latest.", "--max-steps", min=1)] = None
    resume: Annotated[bool, flag("Go on from the checkpoint in --output.")] = False
    overwrite: Annotated[bool, flag("Begin anew where --output holds a run.")] = False
    verbose: Annotated[bool, flag("Say what the phases before the first step take.")] = False


if __name__ == "__main__":
    OPTIONS = parse(Options)  # before torch, for which --help need not wait

import statistics
import time

import torch
from comparison import compare, evaluate_onnx
from data import batches, batchify, load, unigram_loss
from harness.eager import EagerTrainer
from harness.export import export
from harness.meter import perplexity
from model import TransformerModel
from record import Run
from torch import Tensor, nn

from ontrain.errors import NonFiniteLossError
from ontrain.training import ORTTrainer, ORTTrainerOptions, optim

BPTT, BATCH_SIZE, EVAL_BATCH_SIZE = 35, 20, 10
EMSIZE, NHID, NLAYERS, NHEAD = 200, 200, 2, 2
CHECKPOINT_EVERY = 100  # steps
TOLERANCE = 1e-4  # between the trainer's and onnxruntime's test loss


def make_trainer(options: Options, engine: Engine, model: nn.Module, ntokens: int) -> Any:
    """The whole use of ontrain: what goes in, what comes out, which optimizer, which loss; and the twin without it."""
    model_desc = {
        # Names are dimensions that may vary: the last batch of an epoch is shorter, evaluation takes 10 at a time.
        "inputs": [("src", ["bptt", "batch_size"]), ("label", ["bptt_x_batch_size"])],
        "outputs": [("loss", [], True), ("output", ["bptt", "batch_size", ntokens])],
    }

    def loss_fn(output: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.view(-1, ntokens), label)

    if engine is Engine.ontrain:
        # The seed is dropout's.
        about = {"device": {"id": "cpu"}, "utils": {"seed": options.seed}, "debug": {"verbose": options.verbose}}
        adam = optim.AdamConfig(lr=options.lr)
        return ORTTrainer(model, model_desc, adam, loss_fn=loss_fn, options=ORTTrainerOptions(about))

    def compute(src: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        output = model(src)
        return loss_fn(output, label), output

    # One fused kernel for all parameters: the fastest Adam that eager PyTorch has.
    adam = torch.optim.Adam(model.parameters(), lr=options.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)
    return EagerTrainer(model, compute, adam, max_norm=1.0)  # ORTTrainer's own norm, under utils.grad_norm_clip


def evaluate(trainer: Any, columns: Tensor) -> float:
    """Mean loss a word: each batch weighs as much as it has rows, and only the last has fewer than BPTT."""
    total = sum(len(src) * trainer.eval_step(src, label)[0].item() for src, label in batches(columns, BPTT))
    return total / (len(columns) - 1)


def train(options: Options) -> None:
    """Train, evaluate, export, compare."""
    console, started, output = speaker(), time.perf_counter(), options.output
    run = Run(output, resume=options.resume, overwrite=options.overwrite)

    # Data: a stream of words in columns, each label the word after.
    corpus = load(options.data_folder)
    ntokens = len(corpus.words)
    train_batches = list(batches(batchify(corpus.train, BATCH_SIZE), BPTT))
    valid_columns, test_columns = (batchify(stream, EVAL_BATCH_SIZE) for stream in (corpus.valid, corpus.test))
    if not train_batches or len(valid_columns) < 2 or len(test_columns) < 2:
        raise DataError(f"too little text: {len(corpus.train)}, {len(corpus.valid)} and {len(corpus.test)} words")
    last_step = min(options.epochs * len(train_batches), options.max_steps or sys.maxsize)

    # Model, loss and step.
    torch.manual_seed(options.seed)
    model = TransformerModel(ntokens, EMSIZE, NHEAD, NHID, NLAYERS, options.dropout)
    trainer = make_trainer(options, options.engine, model, ntokens)
    parameters = sum(p.numel() for p in model.parameters())
    console.print(
        f"text: {corpus.note}: {len(corpus.train):,} words train, {len(corpus.valid):,} validate, "
        f"{len(corpus.test):,} test; vocabulary of {ntokens:,}\n"
        f"model: {parameters:,} parameters; engine: {options.engine}"
    )

    if run.begin(trainer, {"engine": options.engine.value, "batches": len(train_batches), "words": ntokens}):
        console.print(f"resumed after step {run.step}")
    first_step, first_ms = run.step, 0.0
    losses, times, epoch_start = [], [], time.perf_counter()
    with stopping() as asked, progress(console, "training", last_step, run.step) as advance:
        while run.step < last_step and not (asked() and run.step > first_step):
            epochs_done, batches_done = divmod(run.step, len(train_batches))
            start, (src, label) = time.perf_counter(), train_batches[batches_done]
            try:
                losses.append(trainer.train_step(src, label)[0].item())
            except NonFiniteLossError as error:
                run.diverged(str(error), options.lr)
            times.append(1000 * (time.perf_counter() - start))
            first_ms = first_ms or times[-1]
            run.epoch, run.step, batches_done = epochs_done + 1, run.step + 1, batches_done + 1
            run.log("train", losses[-1], lr=options.lr, ms=times[-1])
            advance(run.step)
            if batches_done % options.log_interval == 0:
                # The median, because the first step captures and plans, and so does the short one at the end.
                loss, ms = statistics.fmean(losses), statistics.median(times)
                console.print(
                    f"| epoch {run.epoch:3d} | {batches_done:5d}/{len(train_batches):5d} batches "
                    f"| lr {options.lr:.5f} | ms/batch {ms:5.2f} | loss {loss:5.2f} | ppl {perplexity(loss):8.2f}"
                )
                losses, times = [], []
            if run.step % CHECKPOINT_EVERY == 0:
                run.save()
            if batches_done == len(train_batches) or run.step == last_step:
                loss = evaluate(trainer, valid_columns)
                run.validated(loss, options.lr)
                console.print(
                    f"| end of epoch {run.epoch:3d} | time: {time.perf_counter() - epoch_start:5.2f}s "
                    f"| valid loss {loss:5.2f} | valid ppl {perplexity(loss):8.2f}"
                )
                run.save()
                losses, times, epoch_start = [], [], time.perf_counter()
    if run.step < last_step:
        run.save()
        run.interrupted()

    # Evaluation: the best weights in the trainer, and exported in onnxruntime.
    trainer.load_checkpoint(output / "best")
    run.epoch, test_loss = options.epochs, evaluate(trainer, test_columns)
    run.log("test", test_loss)
    run.journal.close()
    unigram_ppl = perplexity(unigram_loss(corpus.train, (label for _, label in batches(test_columns, BPTT)), ntokens))
    console.print(f"test loss {test_loss:.4f}, ppl {perplexity(test_loss):.2f} (unigram ppl {unigram_ppl:.2f})")
    path, twin = output / "model.onnx", None
    if options.engine is Engine.ontrain:
        trainer.save_as_onnx(str(path))
        again = TransformerModel(ntokens, EMSIZE, NHEAD, NHID, NLAYERS, options.dropout)
        twin = make_trainer(options, Engine.pytorch, again, ntokens)
    else:
        export(model, {"src": torch.zeros(2, 2, dtype=torch.int64)}, ("bptt", "batch_size"), ["output"], path)
    onnx_loss = evaluate_onnx(path, list(batches(test_columns, BPTT)))
    apart = abs(onnx_loss - test_loss)
    console.print(f"test loss in the trainer {test_loss:.6f}, of {path} in onnxruntime {onnx_loss:.6f}")
    full_batches = [batch for batch in train_batches if len(batch[0]) == BPTT] or train_batches
    speed = compare(trainer, twin, full_batches, output, run.journal.rows(), {
        "test loss, perplexity": f"{test_loss:.4f}, {perplexity(test_loss):.2f}",
        "unigram perplexity": f"{unigram_ppl:.2f}",
        "test loss in onnxruntime": f"{onnx_loss:.6f} ({'agrees' if apart <= TOLERANCE else 'DIFFERS'})",
        "first step": f"{first_ms / 1000:.1f} s, capture and plan included",
        "text": f"{corpus.note}; {len(corpus.train):,} words, vocabulary of {ntokens:,}",
        "model": f"{NLAYERS} layers, {NHEAD} heads, {EMSIZE} wide; {parameters:,} parameters",
        "run": f"{options.engine}, {options.epochs} epochs, {run.step} steps, dropout {options.dropout}, "
        f"lr {options.lr}, seed {options.seed}",
    })  # fmt: skip
    console.print(f"report: {output / 'report.html'}; whole run {time.perf_counter() - started:.1f} s")
    console.print(speed)
    if apart > TOLERANCE:
        fail(f"onnxruntime's test loss differs from the trainer's by {apart:.2g}", 1)


if __name__ == "__main__":
    execute(train, OPTIONS)
