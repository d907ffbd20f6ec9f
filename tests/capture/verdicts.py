"""The command line of a comparison with torch's own samples, and the table of what is refused."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch


def compare(
    manual: str | None, table: Path, what: str, samples: int, infos: Callable[[], Sequence[tuple[str, Any]]],
    outcome: Callable[[Any, int], tuple[str, str]],
) -> None:  # fmt: skip
    """Compare what the command line names, and print what is not right and the counts.

    Args:
        manual: text of --help.
        table: file that --write renews.
        what: "modules" or "operators".
        samples: of each, by default.
        infos: torch's own, by name.
        outcome: "right", "wrong" or "refused" for so many samples of one, and why.
    """
    parser = argparse.ArgumentParser(description=manual, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"{what}, as torch names them; all by default")
    parser.add_argument("--samples", type=int, default=samples, help=f"of each of the {what}; %(default)s by default")
    parser.add_argument("--write", action="store_true", help=f"renew {table.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    refused = {}
    count = {"right": 0, "wrong": 0, "refused": 0, "failed": 0}
    for name, info in infos():
        if options.names and name not in options.names:
            continue
        try:
            kind, text = outcome(info, options.samples)
        except Exception as error:  # noqa: BLE001 - an error that is no refusal is a finding
            kind, text = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        count[kind] += 1
        if kind == "refused":
            refused[name] = text
        if kind != "right":
            print(f"{kind:8}{name}: {text}", flush=True)
    print(", ".join(f"{n} {kind}" for kind, n in count.items()))
    if options.write:
        versioned = {"torch": torch.__version__.split("+")[0], "refused": dict(sorted(refused.items()))}
        table.write_text(json.dumps(versioned, indent=1) + "\n")
