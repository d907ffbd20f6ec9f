"""onnx's own backend suite through `InferenceSession`: `python -m tests.conformance --provider TorchExecutionProvider`.

Each case runs in this process under a limit of time and is compared by its own tolerances. The report lists every
failure, groups failures by reason and by operator, and counts what passed.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import re
import sys
import time
from collections.abc import Iterable

import ontrain
from ontrain.providers.torch.lowering import small_nodes
from tests.conformance.cases import Case, cases
from tests.conformance.table import not_passing, prune
from tests.conformance.verdict import verdict

TORCH = "TorchExecutionProvider"


def main() -> int:
    """Return 0 if every case passed that is to pass on the torch provider."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--provider", action="append", choices=ontrain.get_available_providers(), metavar="NAME",
        help=f"repeat it for a list of providers; default is {TORCH}",
    )  # fmt: skip
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches, by re.search")
    parser.add_argument(
        "--rows", action="store_true", help="run all that may run in rows of small nodes so, however large it is"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and run none")
    parser.add_argument(
        "--prune", action="store_true", help="strike cases that pass from the table of those that do not"
    )
    arguments = parser.parse_args()
    chosen = [case for case in cases().values() if re.search(arguments.only, case.name)]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    providers = arguments.provider or [TORCH]
    if arguments.rows:
        unbounded = small_nodes.Small(*[float("inf")] * len(dataclasses.fields(small_nodes.Small)))
        small_nodes.ALONE = small_nodes.BESIDE = small_nodes.Limits(unbounded, unbounded)
        small_nodes._CALL = 0
    start = time.perf_counter()
    reasons = {case.name: verdict(case, providers) for case in chosen}
    failed = {name: reason for name, reason in reasons.items() if reason is not None}
    _report(chosen, failed)
    print(f"\n{', '.join(providers)}: {len(chosen) - len(failed)} of {len(chosen)} cases pass", end="")
    print(f" ({time.perf_counter() - start:.0f} s)")
    if arguments.prune:
        prune({name for name in reasons if name not in failed})
    return 1 if failed.keys() - not_passing().keys() else 0


def _report(chosen: Iterable[Case], failed: dict[str, str]) -> None:
    for name, reason in failed.items():
        print(f"{name}: {reason}")
    print("\nby operator: failed of all")
    counts = collections.Counter(operator for case in chosen for operator in case.operators)
    bad = collections.Counter(operator for case in chosen if case.name in failed for operator in case.operators)
    print(", ".join(f"{operator} {count}/{counts[operator]}" for operator, count in bad.most_common()))
    print("\nby reason")
    kinds = collections.Counter(re.sub(r"'[^']*'|\d+", "_", reason) for reason in failed.values())
    for kind, count in kinds.most_common():
        print(f"{count:5} {kind[:150]}")


if __name__ == "__main__":
    sys.exit(main())
