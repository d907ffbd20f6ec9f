"""A run that is killed again and again, while it writes too, is the run that nobody touched, to the last bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = [sys.executable, "-m", "tests.training.checkpoint.run"]
LINE = re.compile(r"(\d+) (\S+ \S+)\n")
POLL = 0.0002

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are Unix's"),
    pytest.mark.usefixtures("captured_once"),
]


class Fresh:
    """Starts each run as a program of its own."""

    def start(self, folder: Path, steps: int) -> int:
        self._running = subprocess.Popen([*RUN, str(folder), str(steps)], cwd=ROOT)
        return self._running.pid

    def ended(self) -> bool:
        return self._running.poll() is not None

    def status(self) -> int:
        return self._running.wait()


class Forked:
    """Starts runs from a process that has imported everything."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            RUN, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def _answers(self):
        assert self._server.stdout is not None
        return self._server.stdout

    def start(self, folder: Path, steps: int) -> int:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{folder} {steps}\n")
        self._pid = int(self._answers.readline())
        return self._pid

    def ended(self) -> bool:
        try:  # a process that ended is there until the server has looked
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False

    def status(self) -> int:
        return os.waitstatus_to_exitcode(int(self._answers.readline()))

    def close(self) -> None:
        self._server.communicate()


@pytest.fixture
def starter(request) -> Iterator[Fresh | Forked]:
    launcher = Fresh() if request.param == "fresh" else Forked()
    yield launcher
    if isinstance(launcher, Forked):
        launcher.close()


def lines(folder: Path) -> list[tuple[int, str]]:
    """Number and figures of each micro-step, in the order of writing."""
    text = (folder / "losses").read_text() if (folder / "losses").exists() else ""
    rows = LINE.findall(text)
    assert "".join(f"{step} {figures}\n" for step, figures in rows) == text
    return [(int(step), figures) for step, figures in rows]


def last_step(folder: Path) -> int:
    return max((step for step, _ in lines(folder)), default=0)


def kill(starter: Fresh | Forked, folder: Path, steps: int, after: int, *, writing: bool, pause: float) -> str:
    """Start the run, and kill it after a micro-step, at once or when it writes a checkpoint; say what was left."""
    pid, partial = starter.start(folder, steps), folder / ".ck.partial"
    (folder / "losses").touch()
    while last_step(folder) < after and not starter.ended():
        time.sleep(5 * POLL)
    while writing and not partial.exists() and not starter.ended():
        time.sleep(POLL)
    time.sleep(pause)
    os.kill(pid, signal.SIGKILL)
    assert starter.status() == -signal.SIGKILL, "the run was over before it could be killed"
    if partial.exists():
        return "half a checkpoint" if (folder / "ck").exists() else "none in its place"
    return "whole ones"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starter", "kills"),
    [("forked", 4), pytest.param("fresh", 30, marks=pytest.mark.thorough)],
    indirect=["starter"],
)
def test_a_run_killed_at_random_moments_is_bit_for_bit_the_uninterrupted_one(starter, kills, tmp_path, rng, capsys):
    steps = 9 * (kills + 1)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    whole.mkdir()
    torn.mkdir()
    starter.start(whole, steps)
    assert starter.status() == 0
    wanted = dict(lines(whole))
    assert sorted(wanted) == list(range(1, steps + 1)) and len(set(wanted.values())) == steps

    left: dict[str, int] = {}
    for number in range(kills):
        # Every other one dies while it writes, and in the midst of all the newest checkpoint is damaged as well.
        after = 9 * number + int(rng.integers(1, 9))
        pause = float(rng.uniform(0, 0.008))
        step = kill(starter, torn, steps, after, writing=number % 2 == 1, pause=pause)
        left[step] = left.get(step, 0) + 1
        if number == kills // 2 and (torn / "ck~1").exists() and (torn / "ck").exists():
            content = bytearray((torn / "ck" / "model.safetensors").read_bytes())
            content[int(rng.integers(len(content)))] ^= 4
            (torn / "ck" / "model.safetensors").write_bytes(content)
            left["a flipped bit"] = 1
    starter.start(torn, steps)
    assert starter.status() == 0

    written = lines(torn)
    assert set(dict(written)) == set(wanted)
    assert all(wanted[step] == figures for step, figures in written)
    # The hashes of all files: weights, moments, scale, counters, positions.
    assert (torn / "final" / "manifest.json").read_text() == (whole / "final" / "manifest.json").read_text()
    with capsys.disabled():
        print(f"\n{kills} kills left {left}; {len(written)} micro-steps for {steps}")
