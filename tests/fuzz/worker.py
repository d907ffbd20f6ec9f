"""Judges cases that it is told on its standard input: a line each, number and way; answers with a line of JSON."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from ontrain import OntrainError
from tests.fuzz.ways import run

SECONDS, BYTES = 20, 6 << 30


def judged(way: str, number: int, seed: int, folder: Path) -> dict[str, str]:
    """The kind of outcome, and what there is to say about it."""
    try:
        return {"kind": "right", "text": run(way, number, seed, folder)}
    except OntrainError as error:
        return {"kind": "refused", "class": type(error).__name__, "text": str(error)}
    except BaseException as error:  # noqa: BLE001  # that one comes out is what is looked for
        text = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-6:])}"
        return {"kind": "bare", "class": type(error).__name__, "text": text}


def main(seed: int) -> None:
    """Serve until the standard input ends."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base = Path(tempfile.mkdtemp(prefix="fuzz-", dir=sys.argv[2] if len(sys.argv) > 2 else None))
    print("ready", flush=True)
    for line in sys.stdin:
        number, _, way = line.strip().partition(" ")
        folder = base / number
        # The default action ends the process, native loops too; the clock is the process's own.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        outcome = judged(way, int(number), seed, folder)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome["peak"] = str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
        shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
