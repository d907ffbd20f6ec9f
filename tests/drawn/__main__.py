"""Random programs beside an oracle: `python -m tests.drawn --kind calls --seed 1 --count 200`.

Each kind draws its cases from families. A case is right, has no oracle because eager PyTorch or stock onnxruntime
fails, is refused, or is wrong. Refused and wrong cases are printed with the command that draws the case again; the
table counts all. Exit code: 1 if a case is wrong or refused without a reason in tests/drawn/known.py.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence

from tests.drawn.judge import Outcome
from tests.drawn.kinds import KINDS
from tests.drawn.runs import run, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if no case ended badly."""
    options = _parser().parse_args(arguments)
    outcomes = [outcome for kind in options.kind or KINDS for outcome in _outcomes(kind, options)]
    print(table(outcomes))
    return 1 if any(outcome.bad for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drawn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="kinds:\n" + "\n".join(f"  {name:10} {kind.text}" for name, kind in KINDS.items()),
    )  # fmt: skip
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="may be repeated; all, if left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="cases of each kind")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N", help="number of the first case")
    parser.add_argument("--family", action="append", default=[], metavar="NAME", help="only these; may be repeated")
    parser.add_argument("--workers", type=int, default=1, help="processes; several are of one thread each")
    return parser


def _outcomes(kind: str, options: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes of a kind, in the order of their numbers; refused and wrong ones are printed as they come."""
    families, _ = KINDS[kind].loaded()
    unknown = set(options.family) - set(families)
    if unknown:
        sys.exit(f"{kind} has no family {sorted(unknown)}, but {', '.join(families)}")
    numbers = range(options.first, options.first + options.count)
    for outcome in run(kind, options.seed, numbers, options.family, options.workers):
        if outcome.verdict in ("refused", "wrong"):
            print(outcome.line(), flush=True)
        yield outcome


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # what is drawn on purpose warns
    sys.exit(main())
