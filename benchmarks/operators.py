"""Latency of TorchExecutionProvider on models of one operator, beside stock onnxruntime.

    python -m benchmarks.operators [OPERATOR…] [--sizes 1 4 16] [--seconds 0.2] [--dry]

Each model runs in a session of each on one thread, called in turns; the ratio is that of the fastest rounds. A size
multiplies the lengths of images and of rows, so that the numbers of an operand grow with its square. The records'
`ahead_from` follow from such runs. Rows go to benchmarks/results/operators.jsonl.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.beside_stock import Model, compare
from benchmarks.commands import Command


def main() -> None:
    """Print the table with the geometric mean of the ratios, and append a row for each model."""
    parser = Command(__doc__)
    parser.add_argument("operators", nargs="*", help="parts of their names; by default all")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 4, 16], help="of operands")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each model")
    parser.add_argument("--dry", action="store_true", help="print, and append no rows")
    arguments = parser.parse_args()
    compare("operators", _models(arguments.operators, arguments.sizes), arguments.seconds, dry=arguments.dry)


def _models(parts: Sequence[str], sizes: Sequence[int]) -> Iterator[Model]:
    from benchmarks.operator_nodes import NODES

    chosen = [name for name in NODES if not parts or any(part in name for part in parts)]
    for name, size in ((name, size) for name in chosen for size in sizes):
        model, feeds = NODES[name].model(name.split()[0], size)
        yield Model(f"{name:>28} {size:3}", {"operator": name, "size": size}, model, feeds)


if __name__ == "__main__":
    main()
