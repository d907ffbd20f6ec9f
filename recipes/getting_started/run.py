"""One run of train.py: training, evaluation, export, comparison and report."""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import shlex
import shutil
import signal
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import data
import numpy as np
import onnx_ir
import torch
import typer
from eager import EagerTrainer
from engines import Engine
from model import TransformerModel
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ontrain import InferenceSession
from ontrain.errors import NonFiniteLossError, OntrainError
from ontrain.session.report import write_report

BPTT, BATCH_SIZE, EVAL_BATCH_SIZE = 35, 20, 10
EMSIZE, NHID, NLAYERS, NHEAD = 200, 200, 2, 2
CHECKPOINT_EVERY = 100  # steps
TIMED_PAIRS = 30
TOLERANCE = 1e-4  # between the trainer's and onnxruntime's test loss


# --- the engine -------------------------------------------------------------------------------------------------


def ort_trainer(model: nn.Module, ntokens: int, lr: float, seed: int, verbose: bool) -> Any:
    """The whole use of ontrain: what goes in, what comes out, which optimizer, which loss."""
    from ontrain.training import ORTTrainer, ORTTrainerOptions, optim

    model_desc = {
        # Names are dimensions that may vary: the last batch of an epoch is shorter, evaluation takes 10 at a time.
        "inputs": [("src", ["bptt", "batch_size"]), ("label", ["bptt_x_batch_size"])],
        "outputs": [("loss", [], True), ("output", ["bptt", "batch_size", ntokens])],
    }

    def loss_fn(output: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.view(-1, ntokens), label)

    # The seed is dropout's.
    options = ORTTrainerOptions({"device": {"id": "cpu"}, "utils": {"seed": seed}, "debug": {"verbose": verbose}})
    return ORTTrainer(model, model_desc, optim.AdamConfig(lr=lr), loss_fn=loss_fn, options=options)


# --- evaluation and comparison ---------------------------------------------------------------------------------------


def evaluate(trainer: Any, columns: Tensor) -> float:
    """Mean loss a word: each batch weighs as much as it has rows, and only the last has fewer than BPTT."""
    total = sum(len(src) * trainer.eval_step(src, label)[0].item() for src, label in data.batches(columns, BPTT))
    return total / (len(columns) - 1)


def evaluate_onnx(path: Path, columns: Tensor) -> float:
    """The same mean, from the exported file's logits in stock onnxruntime; the softmax is taken in double precision."""
    session = InferenceSession(str(path))
    total = 0.0
    for src, label in data.batches(columns, BPTT):
        (logits,) = session.run(["output"], {"src": src.numpy()})
        logits = np.asarray(logits, np.float64).reshape(len(label), -1)
        logits -= logits.max(axis=1, keepdims=True)
        picked = logits[np.arange(len(label)), label.numpy()]
        total += len(src) * float((np.log(np.exp(logits).sum(axis=1)) - picked).mean())
    return total / (len(columns) - 1)


def alternate(trainers: list[Any], batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Median milliseconds a step of each trainer, all stepping on the same batches in turn.

    What else the machine does then slows all of them alike. Who goes first changes from batch to batch, and the first
    three batches only warm up.
    """
    times: list[list[float]] = [[] for _ in trainers]
    for i, (src, label) in enumerate(itertools.islice(itertools.cycle(batches), 3 + TIMED_PAIRS)):
        order = list(zip(trainers, times, strict=True))
        for trainer, spent in order if i % 2 else order[::-1]:
            start = time.perf_counter()
            trainer.train_step(src, label)
            spent.append(1000 * (time.perf_counter() - start))
    return [statistics.median(spent[3:]) for spent in times]


# --- what the run writes ---------------------------------------------------------------------------------------------


class Journal:
    """metrics.jsonl and TensorBoard's events: a row a step and a row an evaluation."""

    def __init__(self, output: Path, upto_step: int) -> None:
        """Go on behind the rows up to `upto_step`; a run that died may have left later ones than its checkpoint."""
        self.path = output / "metrics.jsonl"
        kept = [row for row in self.rows() if row["step"] <= upto_step]
        self.path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        self._file = self.path.open("a", buffering=1)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._events = None
            print("no TensorBoard events: pip install tensorboard")
        else:
            self._events = SummaryWriter(str(output), purge_step=upto_step + 1 if kept else None)

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def add(self, step: int, epoch: int, split: str, loss: float, **more: float) -> None:
        row = {"step": step, "epoch": epoch, "split": split, "loss": loss, "ppl": ppl(loss), **more}
        self._file.write(json.dumps(row) + "\n")
        if self._events is not None:
            for key in row.keys() - {"step", "epoch", "split"}:
                self._events.add_scalar(f"{key}/{split}", row[key], step)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def ppl(loss: float) -> float:
    """Perplexity: among how many equally likely words the model hesitates. Above e^700 a float ends."""
    return math.exp(min(loss, 700.0))


def writable(folder: Path) -> None:
    """Find out now whether results can be written, not after the training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        fail(f"--output {folder} cannot be written: {error.strerror}", 2)


def older_run(folder: Path) -> bool:
    """Whether a folder holds a run's steps, or its checkpoints."""
    metrics = folder / "metrics.jsonl"
    return (metrics.exists() and metrics.stat().st_size > 0) or any(
        (folder / n).exists() for n in ("checkpoint", "best")
    )


def clear(folder: Path) -> None:
    """Remove what an older run left, so that its checkpoint or events are not taken for this one's."""
    for kept in ("checkpoint", "best"):
        shutil.rmtree(folder / kept, ignore_errors=True)
    for old in (*folder.glob("events.out.*"), folder / "metrics.jsonl", folder / "model.onnx", folder / "report.html"):
        old.unlink(missing_ok=True)


def fail(message: str, code: int) -> NoReturn:
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"error: {message}")
    raise typer.Exit(code)


def process_peak() -> dict[str, int]:
    """The most memory that this process ever had resident, in bytes, where the system counts it."""
    if sys.platform == "win32":
        return {}
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return {"whole process, resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


# --- the recipe ------------------------------------------------------------------------------------------------------


def run(
    engine: Engine, data_folder: Path | None, epochs: int, dropout: float, lr: float, seed: int, output: Path,
    log_interval: int, max_steps: int | None, resume: bool, overwrite: bool, verbose: bool,
) -> None:  # fmt: skip
    """Train, evaluate, export and report; the options are train.py's.

    Raises:
        typer.Exit: with the exit codes that train.py's manual lists.
    """
    console = Console(soft_wrap=True, markup=False, highlight=False)
    started = time.perf_counter()
    writable(output)
    if resume and overwrite:
        fail("--resume goes on and --overwrite begins anew: give one of them", 2)
    if older_run(output) and not (resume or overwrite):
        fail(
            f"{output} holds a run: --resume goes on with it, --overwrite begins anew, --output names another folder", 2
        )
    try:
        corpus = data.load(data_folder)
    except data.DataError as error:
        fail(str(error), 2)
    ntokens = len(corpus.words)
    train_batches = list(data.batches(data.batchify(corpus.train, BATCH_SIZE), BPTT))
    valid_columns = data.batchify(corpus.valid, EVAL_BATCH_SIZE)
    test_columns = data.batchify(corpus.test, EVAL_BATCH_SIZE)
    if not train_batches or len(valid_columns) < 2 or len(test_columns) < 2:
        fail(f"too little text: {len(corpus.train)}, {len(corpus.valid)} and {len(corpus.test)} words", 2)
    last_step = min(epochs * len(train_batches), max_steps or sys.maxsize)

    torch.manual_seed(seed)
    model = TransformerModel(ntokens, EMSIZE, NHEAD, NHID, NLAYERS, dropout)
    ours = engine is Engine.ontrain
    trainer: Any = ort_trainer(model, ntokens, lr, seed, verbose) if ours else EagerTrainer(model, ntokens, lr)
    console.print(f"text: {corpus.note}: {len(corpus.train):,} words train, {len(corpus.valid):,} validate,", end=" ")
    console.print(f"{len(corpus.test):,} test; vocabulary of {ntokens:,}")
    parameters = sum(p.numel() for p in model.parameters())
    console.print(f"model: {parameters:,} parameters; engine: {engine}")

    step, best_loss = 0, math.inf
    setting = {"engine": engine.value, "batches": len(train_batches), "words": ntokens}
    if resume:
        try:
            position = trainer.load_checkpoint(str(output / "checkpoint"))
        except OntrainError as error:
            fail(f"--resume: {error}", 2)
        if {key: position.get(key) for key in setting} != setting:
            fail(f"--resume: the checkpoint was made with {position}, this run has {setting}", 2)
        step, best_loss = position["step"], position["best_loss"] or math.inf
        console.print(f"resumed after step {step}")
    else:
        clear(output)
    journal = Journal(output, upto_step=step)

    def save(folder: str) -> None:
        best = best_loss if best_loss < math.inf else None  # JSON has no infinity
        trainer.save_checkpoint(str(output / folder), user_dict={**setting, "step": step, "best_loss": best})

    def diverged(problem: str) -> NoReturn:
        journal.close()
        folder = output / "checkpoint"
        kept = f"the last good checkpoint stays in {folder}" if folder.exists() else "there is no checkpoint yet"
        fail(f"{problem}\n{kept}; try a learning rate below {lr:g}", 1)

    interrupted = False

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C stops at once

    signal.signal(signal.SIGINT, interrupt)
    live = console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ
    bar_columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    first_step, first_ms = step, 0.0
    with Progress(*bar_columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("", total=last_step, completed=step, epoch=1)
        while step < last_step and not (interrupted and step > first_step):
            epochs_done, batches_done = divmod(step, len(train_batches))
            epoch, epoch_start = epochs_done + 1, time.perf_counter()
            losses, times = [], []
            for src, label in train_batches[batches_done : batches_done + last_step - step]:
                if interrupted and step > first_step:
                    break
                start = time.perf_counter()
                try:
                    loss = trainer.train_step(src, label)[0].item()
                except NonFiniteLossError as error:
                    diverged(str(error))
                ms = 1000 * (time.perf_counter() - start)
                first_ms = first_ms or ms
                step, batches_done = step + 1, batches_done + 1
                losses.append(loss)
                times.append(ms)
                journal.add(step, epoch, "train", loss, lr=lr, ms=ms)
                bar.update(task, completed=step, epoch=epoch)
                if batches_done % log_interval == 0:
                    # The median, because the first step captures and plans, and so does the short one at the end.
                    mean, ms = statistics.fmean(losses), statistics.median(times)
                    console.print(
                        f"| epoch {epoch:3d} | {batches_done:5d}/{len(train_batches):5d} batches | lr {lr:.5f} "
                        f"| ms/batch {ms:5.2f} | loss {mean:5.2f} | ppl {ppl(mean):8.2f}"
                    )
                    losses, times = [], []
                if step % CHECKPOINT_EVERY == 0:
                    save("checkpoint")
            else:
                loss = evaluate(trainer, valid_columns)
                if not math.isfinite(loss):
                    diverged(f"the validation loss is {loss} after step {step}")
                journal.add(step, epoch, "valid", loss)
                console.print(
                    f"| end of epoch {epoch:3d} | time: {time.perf_counter() - epoch_start:5.2f}s "
                    f"| valid loss {loss:5.2f} | valid ppl {ppl(loss):8.2f}"
                )
                if loss < best_loss:
                    best_loss = loss
                    save("best")
            save("checkpoint")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if step < last_step:
        journal.close()
        command = shlex.join(["python", *(a for a in sys.argv if a != "--resume"), "--resume"])
        console.print(f"interrupted after step {step}; go on with\n  {command}")
        raise typer.Exit(130)

    trainer.load_checkpoint(str(output / "best"))
    test_loss = evaluate(trainer, test_columns)
    journal.add(step, epochs, "test", test_loss)
    journal.close()
    test_labels = (label for _, label in data.batches(test_columns, BPTT))
    unigram_ppl = ppl(data.unigram_loss(corpus.train, test_labels, ntokens))
    console.print(f"test loss {test_loss:.4f}, ppl {ppl(test_loss):.2f} (unigram ppl {unigram_ppl:.2f})")

    onnx_path = output / "model.onnx"
    trainer.save_as_onnx(str(onnx_path))
    onnx_loss = evaluate_onnx(onnx_path, test_columns)
    agree = abs(onnx_loss - test_loss) <= TOLERANCE
    console.print(f"test loss in the trainer {test_loss:.6f}, of {onnx_path} in onnxruntime {onnx_loss:.6f}")

    full_batches = [batch for batch in train_batches if len(batch[0]) == BPTT] or train_batches
    if ours:
        eager = EagerTrainer(TransformerModel(ntokens, EMSIZE, NHEAD, NHID, NLAYERS, dropout), ntokens, lr)
        ms, eager_ms = alternate([trainer, eager], full_batches)
        graph, memory = trainer.step_model(), trainer.peak_memory() | process_peak()
        speed = f"step: ontrain {ms:.1f} ms, eager PyTorch {eager_ms:.1f} ms ({eager_ms / ms:.2f}x), alternating"
    else:
        graph, memory = onnx_ir.load(onnx_path), process_peak()
        speed = f"step: eager PyTorch {alternate([trainer], full_batches)[0]:.1f} ms,"
    write_report(
        output / "report.html",
        title="Getting started: a transformer language model",
        metrics=journal.rows(),
        operators=trainer.profile(*full_batches[0]),
        peak_memory=memory,
        graph=graph,
        facts={
            "test loss, perplexity": f"{test_loss:.4f}, {ppl(test_loss):.2f}",
            "unigram perplexity": f"{unigram_ppl:.2f}",
            "test loss in onnxruntime": f"{onnx_loss:.6f} ({'agrees' if agree else 'DIFFERS'})",
            "speed": f"{speed} medians over {TIMED_PAIRS} batches",
            "first step": f"{first_ms / 1000:.1f} s, capture and plan included",
            "text": f"{corpus.note}; {len(corpus.train):,} words, vocabulary of {ntokens:,}",
            "model": f"{NLAYERS} layers, {NHEAD} heads, {EMSIZE} wide; {parameters:,} parameters",
            "run": f"{engine}, {epochs} epochs, {step} steps, dropout {dropout}, lr {lr}, seed {seed}",
            "command": shlex.join(["python", *sys.argv]),
            "versions": f"ontrain {version('ontrain')}, torch {torch.__version__}, "
            f"onnxruntime {version('onnxruntime')}, Python {platform.python_version()}",
            "machine": f"{cpu_name()}, {torch.get_num_threads()} threads, {platform.system()}",
        },
    )
    console.print(f"report: {output / 'report.html'}; whole run {time.perf_counter() - started:.1f} s")
    console.print(f"{speed} medians over {TIMED_PAIRS} batches")
    if not agree:
        fail(f"onnxruntime's test loss differs from the trainer's by {abs(onnx_loss - test_loss):.2g}", 1)
