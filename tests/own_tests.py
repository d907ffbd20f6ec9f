"""How long a changed file waits for its own tests.

    python -m tests.own_tests                                     of each room the longest source that has tests
    python -m tests.own_tests src/ontrain/sizes/expression.py     a single source
    python -m tests.own_tests src/ontrain/graph/*.py              a room

CI does not run this.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.house import ROOT

SOURCE, TESTS = ROOT / "src" / "ontrain", ROOT / "tests"


def own_test(source: Path) -> Path | None:
    """The test file that mirrors a source: of src/ontrain/graph/bounds.py it is tests/graph/test_bounds.py."""
    folder = TESTS / source.resolve().relative_to(SOURCE).parent
    mirrored = folder / f"test_{source.stem}.py"
    return mirrored if mirrored.is_file() else None


def longest_by_room() -> Iterator[Path]:
    """The longest source of each room that has tests of its own."""
    for room in sorted(path for path in SOURCE.iterdir() if path.is_dir()):
        if tested := [path for path in sorted(room.rglob("*.py")) if own_test(path)]:
            yield max(tested, key=lambda path: len(path.read_text().splitlines()))


def main() -> None:
    """Run the tests of each source alone, in one process, and print how many passed in what time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sources", type=Path, nargs="*", help="files of src/ontrain [default: the longest of each room]"
    )
    sources: list[Path] = parser.parse_args().sources or list(longest_by_room())
    if strange := [source for source in sources if not source.resolve().is_relative_to(SOURCE)]:
        parser.error(f"{strange[0]} is no file of src/ontrain")
    print(f"{'source':42} {'tests':54} {'seconds':>8} {'processor':>10}  result")
    for source in sources:
        test = own_test(source)
        if test is None:
            print(f"{source}: no file of tests has its name")
            continue
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", str(test)]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        names = source.resolve().relative_to(SOURCE).as_posix(), test.relative_to(ROOT).as_posix()
        result = lines[-1].strip("= ") if lines else "no output"
        print(f"{names[0]:42} {names[1]:54} {seconds:8.1f} {used:10.1f}  {result}", flush=True)


if __name__ == "__main__":
    main()
