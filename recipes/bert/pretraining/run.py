"""A run from its flags to its last file."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from pathlib import Path

from corpus.workspace import DataError
from dataset import PretrainingData

from ontrain.distributed import Processes, World
from ontrain.errors import CheckpointError
from pretraining.checkpoints import existing
from pretraining.eager import EagerEngine
from pretraining.engine import Engine, Micro, OntrainEngine
from pretraining.finish import finish
from pretraining.journal import Journal
from pretraining.loop import Run, train
from pretraining.model import make_model, read_config
from pretraining.options import Engine as EngineName
from pretraining.options import Options
from pretraining.processes import join
from pretraining.start import begin, check_folder, identity

__all__ = ["pretrain"]


def pretrain(options: Options, began: float) -> bool:
    """Run one phase; return whether it reached its end.

    Args:
        options: the flags.
        began: `time.perf_counter()` when the program began.

    Raises:
        DataError, OntrainError, OSError: a flag, the data, a checkpoint or the disk is at fault.
    """
    return _pretrain(options, *join(options), began)


def _pretrain(options: Options, processes: Processes, device: str, world: World | None, began: float) -> bool:
    check_folder(options)
    _writable(options.output_dir)
    config = read_config(options.config_file, options.bert_model, options.max_seq_length)
    _data(options, processes, config.vocab_size, None)  # what is wrong with the files is said before the model is made
    model = make_model(config, options.seed)
    kind = OntrainEngine if options.engine is EngineName.ontrain else EagerEngine
    engine: Engine = kind(model, options, processes, device)
    start = begin(options, engine, model, config, lambda text: print(text, file=sys.stderr))
    data = _data(options, processes, config.vocab_size, start.position)
    journal = Journal(options, start.step, processes.rank)
    try:
        journal.parameters(
            Config=options.plain(), SEED=options.seed, batch_size_per_gpu=options.micro_batch,
            learning_rate=options.learning_rate, processes=processes.world_size, train_start=True,
        )  # fmt: skip
        size = f"{sum(p.numel() for p in model.parameters()):,} parameters"
        journal.say(
            f"{options.engine} on {device}, {processes.world_size} processes; {size}; "
            f"{len(data.files)} files of sequences of {options.max_seq_length}"
        )
        if start.note:
            journal.say(start.note)
        run = Run(options, processes, world, engine, data, journal, identity(options, config), start.step)
        try:
            complete = train(run)
        except (DataError, CheckpointError, OSError):
            if kept := existing(options.output_dir):
                newest = list(kept.values())[-1].name
                journal.say(f"{newest} stays; what stops the run mended, --resume_from_checkpoint goes on from it")
            raise
        if complete:
            run.sample = run.sample or Micro(next(itertools.islice(data, 1)))
            finish(run, config, began, time.perf_counter())
    finally:
        journal.close()
    return complete


def _data(options: Options, processes: Processes, vocab_size: int, position: dict[str, int] | None) -> PretrainingData:
    return PretrainingData(
        options.input_dir, batch_size=options.micro_batch, seed=options.seed, rank=processes.rank,
        world_size=processes.world_size, max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq, vocab_size=vocab_size, position=position,
    )  # fmt: skip


def _writable(folder: Path) -> None:
    """Find out now whether results can be written, not after the training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"\0")
        with contextlib.suppress(OSError):
            probe.unlink()
    except OSError as error:
        raise DataError(f"--output_dir {folder} cannot be written: {error.strerror}") from None
