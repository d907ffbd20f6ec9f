"""Rows of results: one JSON object a line, with what is needed to repeat it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["append_row", "command_line", "hardware"]

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxruntime", "transformers", "numpy")
_SWITCHES = re.compile("(ONTRAIN|BENCH|OMP|MKL|KMP|GOMP)_[A-Z_]+")
_FOLDERS = ("ONTRAIN_CACHE_DIR", "ONTRAIN_DATA", "ONTRAIN_PEERS")
"""Variables that say where something lies, and not what is measured."""


def hardware() -> dict[str, Any]:
    """Return the processor, its vector extensions, the cores in use and the memory."""
    from ontrain.providers.torch import processor

    return {
        "cpu": processor.model_name(),
        "generation": processor.generation(),
        "avx512": "avx512f" in processor.flags(),
        "amx": "amx_tile" in processor.flags(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }


def command_line() -> str:
    """Return the command that this process was started with, and the switches of the environment that it met."""
    switches = [f"{name}={shlex.quote(value)}" for name, value in sorted(os.environ.items())
                if _SWITCHES.fullmatch(name) and name not in _FOLDERS]  # fmt: skip
    module = sys.modules["__main__"].__spec__
    program = ["-m", module.name] if module is not None else [Path(sys.argv[0]).name]
    return " ".join([*switches, shlex.join(["python", *program, *sys.argv[1:]])])


def append_row(table: str, row: dict[str, Any]) -> None:
    """Append a row with date, commit, command, versions and hardware to benchmarks/results/{table}.jsonl."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = ""
    with contextlib.suppress(OSError):  # a machine for measuring need not have git
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS, check=False
        ).stdout.strip()
    full = {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "command": command_line(),
        **row,
        "python": platform.python_version(),
        "versions": versions,
        "hardware": hardware(),
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{table}.jsonl").open("a") as file:
        file.write(json.dumps(full) + "\n")
