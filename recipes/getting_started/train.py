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
from typing import Annotated

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from needs import need

need("ontrain", "torch", "numpy", "typer", "rich")

import typer
from engines import Engine


def main(
    engine: Annotated[Engine, typer.Option(help="What runs the steps.")] = Engine.ontrain,
    data_folder: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="WikiText token files.")] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.99)] = 0.2,
    lr: Annotated[float, typer.Option(min=0.0, help="Adam's constant learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Of the initial weights and of dropout.")] = 1111,
    output: Annotated[Path, typer.Option(help="Folder for everything the run writes.")] = Path("runs/getting-started"),
    log_interval: Annotated[int, typer.Option(min=1, help="Steps from line to line.")] = 20,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after this step at the latest.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --output.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew where --output holds a run.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what the phases before the first step take.")] = False,
) -> None:
    """Train a two-layer transformer language model as one ONNX graph. The top of this file is the manual."""
    from run import run  # torch and the rest, which --help need not wait for

    run(engine, data_folder, epochs, dropout, lr, seed, output, log_interval, max_steps, resume, overwrite, verbose)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
