"""Small models on TorchExecutionProvider beside stock onnxruntime: a run, a new combination of sizes, and loading.

    python -m benchmarks.small_models [MODEL…] [--seconds 2] [--dry]

Exports of seven modules, of 10 to 200 nodes, and of three models of scikit-learn, which are fed ten rows. Each runs in
a session of each on one thread, called in turns; printed are the microseconds of the fastest round and the median of
the rounds' ratios. Then the milliseconds of loading, of the first run, and of a run with another batch size, each the
least of five sessions. Rows go to benchmarks/results/small_models.jsonl.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ontrain
from benchmarks.commands import Command
from benchmarks.rows import append_row

NAMES = (
    "perceptron", "convolutions", "signal", "transformer", "LSTM", "GRU", "mobile", "logistic regression", "forest",
    "support vectors",
)  # fmt: skip
Feeds = dict[str, np.ndarray[Any, Any]]


def _seconds(session: Any, feeds: Feeds, runs: int) -> float:
    before = time.perf_counter()
    for _ in range(runs):
        session.run(None, feeds)
    return (time.perf_counter() - before) / runs


def latency(sessions: tuple[Any, Any], feeds: Feeds, seconds: float) -> tuple[float, float, float]:
    """Return the seconds of a run of each, and the median ratio."""
    for session in sessions:
        _seconds(session, feeds, 50)
    runs = max(20, int(0.02 / _seconds(sessions[0], feeds, 20)))
    end, rounds = time.monotonic() + seconds, list[list[float]]()
    while time.monotonic() < end or len(rounds) < 5:
        rounds.append([_seconds(session, feeds, runs) for session in sessions])
    theirs, ours = map(min, zip(*rounds, strict=True))
    return theirs, ours, statistics.median(ours / theirs for theirs, ours in rounds)


def starts(opened: Callable[[], Any], feeds: Feeds) -> list[float]:
    """Return the seconds of loading, of the first run, and of a run with another batch size."""
    more = {name: np.concatenate([array] * 3) for name, array in feeds.items()}
    tries = []
    for _ in range(5):
        marks = [time.perf_counter()]
        session = opened()
        marks.append(time.perf_counter())
        for fed in (feeds, more):
            session.run(None, fed)
            marks.append(time.perf_counter())
        tries.append([after - before for before, after in zip(marks, marks[1:], strict=False)])
    return [min(times) for times in zip(*tries, strict=True)]


def main() -> None:
    """Print the table, and append a row for each model."""
    parser = Command(__doc__)
    parser.add_argument("models", nargs="*", choices=[*NAMES, []], metavar="MODEL", help="by default all")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed runs for each model")
    parser.add_argument("--dry", action="store_true", help="print, and append no rows")
    arguments = parser.parse_args()
    import onnxruntime
    import torch

    from benchmarks.small_files import exported

    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    print(
        f"{'model':>20} {'stock':>11} {'ontrain':>11} {'ratio':>6}   loading, first run, other size, ms: stock's; ours"
    )
    ratios = []
    for name in arguments.models or NAMES:
        content, feeds = exported(name)

        def theirs(content: bytes = content) -> Any:
            return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

        def ours(content: bytes = content) -> Any:
            return ontrain.InferenceSession(content, options, providers=["TorchExecutionProvider"])

        stock, own, ratio = latency((theirs(), ours()), feeds, arguments.seconds)
        ratios.append(ratio)
        begun = [starts(opened, feeds) for opened in (theirs, ours)]
        told = "; ".join(" ".join(f"{seconds * 1e3:6.1f}" for seconds in each) for each in begun)
        print(f"{name:>20} {stock * 1e6:8.1f} µs {own * 1e6:8.1f} µs {ratio:6.2f}   {told}", flush=True)
        if not arguments.dry:
            append_row("small_models", {"model": name, "onnxruntime_us": stock * 1e6, "ontrain_us": own * 1e6,
                                        "ratio": ratio, "onnxruntime_starts_ms": [s * 1e3 for s in begun[0]],
                                        "ontrain_starts_ms": [s * 1e3 for s in begun[1]]})  # fmt: skip
    print(f"{len(ratios)} models, geometric mean {statistics.geometric_mean(ratios):.2f}, largest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
