"""What it costs that threads may share a session, and whether they may: runs a second, and a hammer.

    python -m benchmarks.threads [--threads 1 2 8] [--runs 300] [--repeats 3]
    python -m benchmarks.threads --seconds 60 [--shapes 99] [--threads 8]

Without `--seconds`: runs a second of one session of each provider by number of threads, on two blocks as wide as
BERT over [4, 32], each provider in a process of its own, the fastest of the repeats; beside it stock onnxruntime
called directly.
To compare one thread with another revision, run its copy of the package: `PYTHONPATH=…/src`. Rows go to
benchmarks/results/threads.jsonl.

With `--seconds`: a hammer. Threads run shapes in random order, more of them than a session keeps plans for; each result
is compared with that of stock onnxruntime in one thread, and the memory of the process is told at the quarters of the
time, which must not grow. The exit status is 1 if a result is another's.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row

DIRECT = "onnxruntime, directly"
PROVIDERS = (
    DIRECT, "CPUExecutionProvider", "TorchExecutionProvider", "OnnxRuntimeExecutionProvider",
    "ReferenceExecutionProvider",
)  # fmt: skip
WIDTH, SEED = 768, 20


def model(width: int) -> bytes:
    """Two blocks of a feed-forward network with a normalisation each, over [batch, length, width]."""
    from onnx import helper, numpy_helper

    values, x, nodes, weights = np.random.default_rng(SEED), "x", [], []
    for layer in range(2):
        for name, shape in (("up", (width, 4 * width)), ("down", (4 * width, width)), ("scale", (width,))):
            array = values.standard_normal(shape, np.float32) / width**0.5
            weights.append(numpy_helper.from_array(array, f"{name}{layer}"))
        nodes += [
            helper.make_node("MatMul", [x, f"up{layer}"], [f"a{layer}"]),
            helper.make_node("Tanh", [f"a{layer}"], [f"b{layer}"]),
            helper.make_node("MatMul", [f"b{layer}", f"down{layer}"], [f"c{layer}"]),
            helper.make_node("Add", [f"c{layer}", x], [f"d{layer}"]),
            helper.make_node("LayerNormalization", [f"d{layer}", f"scale{layer}"], [f"e{layer}"]),
        ]
        x = f"e{layer}"
    ends = [[helper.make_tensor_value_info(name, 1, ["batch", "length", width])] for name in ("x", x)]
    graph = helper.make_graph(nodes, "blocks", *ends, weights)
    serialised: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    return serialised


def session(provider: str, source: bytes) -> Any:
    """A session of ontrain's, or onnxruntime's own."""
    if provider == DIRECT:
        import onnxruntime

        return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    import ontrain

    return ontrain.InferenceSession(source, providers=[provider])


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Run a function of the thread's number in so many threads; return the seconds until the last has ended."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def throughput(provider: str, counts: list[int], runs: int) -> dict[str, float]:
    """Runs a second of one session by number of threads, each number with as many runs in all."""
    shared = session(provider, model(WIDTH))
    x = np.random.default_rng(SEED).standard_normal((4, 32, WIDTH), np.float32)
    rates = {}
    for count in counts:
        in_threads(count, lambda _: shared.run(None, {"x": x}))
        share = max(1, runs // count)

        def work(_: int, share: int = share) -> None:
            for _ in range(share):
                shared.run(None, {"x": x})

        rates[f"threads_{count}"] = count * share / in_threads(count, work)
    return rates


def hammer(provider: str, threads: int, seconds: float, shapes: int) -> dict[str, Any]:
    """Run shapes in random order from many threads, and count the results that are not those of their own feeds."""
    width = 32
    source, values = model(width), np.random.default_rng(SEED)
    alone, shared = session(DIRECT, source), session(provider, source)
    feeds = [values.standard_normal((1 + i % 4, 2 + i, width), np.float32) for i in range(shapes) for _ in range(2)]
    expected = [alone.run(None, {"x": x})[0] for x in feeds]
    end, wrong, errors, runs = time.monotonic() + seconds, [0] * threads, list[str](), [0] * threads

    def work(number: int) -> None:
        order = random.Random(SEED + number)
        while time.monotonic() < end:
            which = order.randrange(len(feeds))
            try:
                (y,) = shared.run(None, {"x": feeds[which]})
            except Exception as error:  # noqa: BLE001 (whatever it is, it is counted)
                errors.append(repr(error))
                continue
            runs[number] += 1
            wrong[number] += not (y.shape == expected[which].shape and np.allclose(y, expected[which], 1e-4, 1e-5))

    memory = []

    def watch() -> None:
        for _ in range(4):
            time.sleep(seconds / 4)
            memory.append(_resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    in_threads(threads, work)
    watcher.join()
    return {"runs": sum(runs), "wrong": sum(wrong), "errors": len(errors), "first": errors[:1], "mib": memory}


def _resident() -> int:
    """MiB that the process has in memory now."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return int(statm.read_text().split()[1]) * resource.getpagesize() >> 20


def main() -> None:
    """Print the table, and append a row for each provider."""
    parser = Command(__doc__)
    parser.add_argument(
        "--threads", type=int, nargs="+", default=None, help="how many at once; by default 1 2 8, with --seconds 8"
    )
    parser.add_argument("--runs", type=int, default=300, help="of each thread")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    parser.add_argument("--seconds", type=float, help="hammer each provider for so long")
    parser.add_argument("--shapes", type=int, default=99, help="with --seconds: sizes of batches that are drawn from")
    parser.add_argument(
        "--providers",
        nargs="+",
        choices=PROVIDERS,
        default=None,
        help="by default all, with --seconds all but the first",
    )
    parser.add_argument("--one", choices=PROVIDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    counts = arguments.threads or ([8] if arguments.seconds else [1, 2, 8])
    if arguments.one is not None:
        hammered = arguments.seconds is not None
        report(hammer(arguments.one, counts[0], arguments.seconds, arguments.shapes) if hammered
               else throughput(arguments.one, counts, arguments.runs))  # fmt: skip
        return
    options = ["--threads", *map(str, counts)]
    failed = False
    for provider in arguments.providers or PROVIDERS[1 if arguments.seconds else 0 :]:
        if arguments.seconds:
            asked = [*options, "--seconds", str(arguments.seconds), "--shapes", str(arguments.shapes)]
            outcome = in_fresh_process("benchmarks.threads", "--one", provider, *asked)
            failed |= bool(outcome["wrong"] or outcome["errors"])
            print(f"{provider:>30}  {outcome}", flush=True)
            continue
        asked = [*options, "--runs", str(arguments.runs)]
        tries = [in_fresh_process("benchmarks.threads", "--one", provider, *asked) for _ in range(arguments.repeats)]
        best = {name: max(repeat[name] for repeat in tries) for name in tries[0]}
        told = "".join(f"{count:>4} threads {best[f'threads_{count}']:8.1f}/s" for count in counts)
        print(f"{provider:>30}{told}", flush=True)
        append_row("threads", {"provider": provider, "runs_per_second": best, "runs": arguments.runs})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
