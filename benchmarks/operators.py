"""Latency of TorchExecutionProvider on models of one operator, beside stock onnxruntime.

    python -m benchmarks.operators [OPERATOR…] [--sizes 1 4 16] [--seconds 0.2] [--dry]

Each model runs in a session of each on one thread, called in turns; the ratio is that of the fastest rounds. A size
multiplies the lengths of images and of rows, so that the numbers of an operand grow with its square. The records'
`ahead_from` follow from such runs. Rows go to benchmarks/results/operators.jsonl.
"""

from __future__ import annotations

import math

from benchmarks.commands import Command
from benchmarks.rows import append_row


def main() -> None:
    """Print the table with the geometric mean of the ratios, and append a row for each model."""
    parser = Command(__doc__)
    parser.add_argument("operators", nargs="*", help="parts of their names; by default all")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 4, 16], help="of operands")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each model")
    parser.add_argument("--dry", action="store_true", help="print, and append no rows")
    arguments = parser.parse_args()
    import onnxruntime
    import torch

    from benchmarks.operator_nodes import NODES
    from benchmarks.package_files import measure

    onnxruntime.set_default_logger_severity(4)
    torch.set_num_threads(1)
    ratios = []
    chosen = [name for name in NODES if not arguments.operators or any(part in name for part in arguments.operators)]
    for name, size in ((name, size) for name in chosen for size in arguments.sizes):
        model, feeds = NODES[name].model(name.split()[0], size)
        stock, own = measure(model, feeds, arguments.seconds)
        ratios.append(own / stock)
        print(f"{name:>28} {size:3} {stock:11.1f} µs {own:11.1f} µs {own / stock:7.2f}", flush=True)
        if not arguments.dry:
            append_row("operators", {"operator": name, "size": size, "onnxruntime_us": stock, "ontrain_us": own,
                                     "ratio": own / stock})  # fmt: skip
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(ratios)} models, geometric mean {mean:.2f}, largest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
