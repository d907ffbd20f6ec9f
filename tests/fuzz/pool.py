"""Processes that judge cases; one that dies or takes too long is named by its case, and another takes its place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from tests.fuzz.ways import WAYS

__all__ = ["Outcome", "fuzz", "table", "way_of"]

ROOT = Path(__file__).parents[2]
WAIT = 30.0
"""Seconds after which a worker that has computed nothing hangs; the limit of computing is the worker's own."""
# Files of models come in by most ways, and break by most.
_SHARES = {
    "infer on onnxruntime": 4, "infer on torch": 5, "infer on reference": 4, "train a file": 5, "ontrain check": 4,
    "generate_artifacts": 2, "load_onnx": 2, "checkpoint folder": 2, "CheckpointState": 1, ".ort.pt": 3,
    "capture cache": 2, "products file": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What one case came to."""

    number: int
    way: str
    kind: str
    """"right", "refused", "bare", "died" or "hangs"."""
    name: str
    text: str

    @property
    def bad(self) -> bool:
        """Whether it should not have been so."""
        return self.kind not in ("right", "refused")


def way_of(number: int, ways: Sequence[str] | None) -> str:
    """The way by which a case comes in."""
    order = list(ways) if ways else [way for way, share in _SHARES.items() for _ in range(share)]
    return order[number % len(order)]


class _Worker:
    def __init__(self, seed: int, scratch: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(seed), str(scratch)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "ONTRAIN_CACHE": "0"},
        )  # fmt: skip
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        line = self._answer()
        if line is None or not line.startswith("ready"):
            self.end()
            raise RuntimeError("a worker does not start")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self) -> str | None:
        """The next line; "" from a worker that died, None from one that waits for what does not come."""
        before = -1.0
        while True:
            try:
                line = self._lines.get(timeout=WAIT)
            except Empty:
                # On a busy machine a worker that computes is slow; one that hangs neither computes nor asks to.
                ticks, runnable = self._progress()
                if ticks <= before + 10 and not runnable:
                    return None
                before = ticks
                continue
            if line == "" or line.startswith(("{", "ready")):
                return line

    def _progress(self) -> tuple[float, bool]:
        """Hundredths of seconds of processor time so far, and whether it waits only for processor or disk."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0, False
        return float(fields[11]) + float(fields[12]), fields[0] in "RD"

    def judge(self, number: int, way: str) -> Outcome:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number} {way}\n")
        self._process.stdin.flush()
        line = self._answer()
        if line is None:
            self.end()
            return Outcome(number, way, "hangs", "waits", "")
        if line == "":
            code = self._process.wait()
            kind = "hangs" if code == -27 else "died"  # SIGPROF: its processor time is used up
            return Outcome(number, way, kind, f"signal {-code}" if code < 0 else f"exit {code}", "")
        said = json.loads(line)
        return Outcome(number, way, said["kind"], said.get("class", ""), said["text"])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        if self.alive:
            self._process.kill()
        self._process.wait()


def fuzz(
    seed: int, numbers: Iterable[int], workers: int, ways: Sequence[str] | None, keep: Path | None
) -> list[Outcome]:
    """Judge cases, in `workers` processes; files of bad ones are kept in folders of `keep`."""
    todo: SimpleQueue[int] = SimpleQueue()
    for number in numbers:
        todo.put(number)
    scratch = Path(tempfile.mkdtemp(prefix="ontrain-fuzz-"))

    def work(_: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        worker: _Worker | None = None
        while True:
            try:
                number = todo.get_nowait()
            except Empty:
                break
            if worker is None or not worker.alive:
                worker = _Worker(seed, scratch)
            outcome = worker.judge(number, way_of(number, ways))
            if outcome.bad:
                print(
                    f"{outcome.number} {outcome.way}: {outcome.kind} {outcome.name} {outcome.text}",
                    file=sys.stderr,
                    flush=True,
                )
            if outcome.bad and keep is not None:
                _keep(seed, outcome, scratch, keep)
            outcomes.append(outcome)
        if worker is not None:
            worker.end()
        return outcomes

    with ThreadPoolExecutor(workers) as pool:
        outcomes = [outcome for part in pool.map(work, range(workers)) for outcome in part]
    shutil.rmtree(scratch, ignore_errors=True)
    return sorted(outcomes, key=lambda outcome: outcome.number)


def _keep(seed: int, outcome: Outcome, scratch: Path, keep: Path) -> None:
    """What the worker that died left; one that lives has thrown the folder away, so the case's number tells."""
    place = keep / f"{seed}-{outcome.number}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "outcome.txt").write_text(
        f"python -m tests.fuzz --seed {seed} --from {outcome.number} --count 1\n{outcome.way}: {outcome.kind} "
        f"{outcome.name}\n{outcome.text}\n"
    )
    for model in scratch.glob(f"*/{outcome.number}/model.onnx"):
        shutil.copyfile(model, place / "model.onnx")


def table(outcomes: Sequence[Outcome]) -> str:
    """Counts of outcomes by way in, and the bad ones."""
    lines = [f"{'way in':<24}{'runs':>6}{'right':>7}{'refused':>9}{'else':>6}  refused by class"]
    for way in [*WAYS, "all"]:
        of = [outcome for outcome in outcomes if way in ("all", outcome.way)]
        if not of:
            continue
        classes = Counter(outcome.name for outcome in of if outcome.kind == "refused")
        said = ", ".join(f"{name} {count}" for name, count in classes.most_common())
        kinds = Counter(outcome.kind for outcome in of)
        bad = sum(outcome.bad for outcome in of)
        lines.append(f"{way:<24}{len(of):>6}{kinds['right']:>7}{kinds['refused']:>9}{bad:>6}  {said}")
    lines += [
        f"{outcome.number} {outcome.way}: {outcome.kind} {outcome.name} {outcome.text.partition(chr(10))[0]}"
        for outcome in outcomes
        if outcome.bad
    ]
    return "\n".join(lines)
