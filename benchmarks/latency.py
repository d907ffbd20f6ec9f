"""What a session of onnxruntime's own provider costs beside onnxruntime itself: a run of small models, and the first.

    python -m benchmarks.latency [--rounds 31] [--runs 2000]

For each model one session of each, on one thread, called in turns; printed are the microseconds of the fastest round
and the median of the rounds' ratios (ours / onnxruntime's). Then processes in turns that import the package, open a
file and run it once. Rows go to benchmarks/results/latency.jsonl.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ontrain
from benchmarks.commands import Command
from benchmarks.rows import append_row

if TYPE_CHECKING:
    import onnx

FIRST = """
import sys, time
before = time.perf_counter()
import {package} as ort
import numpy as np
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {{"x0": np.zeros((2, 8), np.float32)}})
print(time.perf_counter() - before)
"""


def model(inputs: int, width: int) -> onnx.ModelProto:
    """The sum of so many inputs [rows, width], multiplied by a weight, and cut at zero."""
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((width, width), np.float32)
    names = [f"x{i}" for i in range(inputs)]
    nodes = [
        helper.make_node("Sum", names, ["sum"]),
        helper.make_node("MatMul", ["sum", "weight"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]) for name in [*names, "y"]]
    graph = helper.make_graph(nodes, "small", values[:-1], values[-1:], [numpy_helper.from_array(weight, "weight")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def seconds(session: Any, feeds: dict[str, Any], runs: int) -> float:
    """Seconds of one run, the mean over so many."""
    run, before = session.run, time.perf_counter()
    for _ in range(runs):
        run(None, feeds)
    return (time.perf_counter() - before) / runs


def first(package: str, path: Path) -> float:
    """Seconds from before the import until after the first run, in a process of its own."""
    program = FIRST.format(package=package)
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Print the table, and append a row for each model and one for the first run."""
    parser = Command(__doc__)
    parser.add_argument("--rounds", type=int, default=31, help="alternating rounds")
    parser.add_argument("--runs", type=int, default=2000, help="of each session a round")
    arguments = parser.parse_args()
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    print(f"{'model':>24} {'onnxruntime':>12} {'ontrain':>12} {'ratio':>7}")
    for inputs, width, rows in ((1, 8, 2), (4, 8, 2), (12, 64, 8), (1, 256, 64)):
        content, name = model(inputs, width).SerializeToString(), f"{inputs} inputs [{rows}, {width}]"
        feeds = {f"x{i}": np.ones((rows, width), np.float32) for i in range(inputs)}
        sessions = [
            package.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            for package in (onnxruntime, ontrain)
        ]
        for session in sessions:
            seconds(session, feeds, arguments.runs)
        rounds = [[seconds(session, feeds, arguments.runs) for session in sessions] for _ in range(arguments.rounds)]
        theirs, ours = (min(times) * 1e6 for times in zip(*rounds, strict=True))
        ratio = statistics.median(ours / theirs for theirs, ours in rounds)
        print(f"{name:>24} {theirs:9.2f} µs {ours:9.2f} µs {ratio:7.3f}", flush=True)
        append_row("latency", {"model": name, "onnxruntime_us": theirs, "ontrain_us": ours, "ratio": ratio})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model(1, 8), path)
        tries = [[first(package, path) for package in ("onnxruntime", "ontrain")] for _ in range(7)]
    theirs, ours = (statistics.median(times) for times in zip(*tries[1:], strict=True))
    print(f"{'import and first run':>24} {theirs:10.3f} s {ours:10.3f} s {ours / theirs:7.3f}")
    append_row("latency", {"model": "import and first run", "onnxruntime_s": theirs, "ontrain_s": ours,
                           "ratio": ours / theirs})  # fmt: skip


if __name__ == "__main__":
    main()
