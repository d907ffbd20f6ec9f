"""Processes for tests, forked from one that has imported torch and ontrain already: nothing else is in them.

A new interpreter takes seconds to import them, and longer where transformers comes in, which is imported too if the
test's own process has it. The process from which these are forked has imported modules and run nothing; it is a child
of the test's own process, and of no other.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

__all__ = ["Piped", "lines_said", "run_file", "start", "start_and_join", "start_file"]

ROOT = Path(__file__).parent.parent


def start(function: Callable[..., None], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Start a process for each row of arguments, which calls `function(*row)` in this process's environment."""
    context = _context()
    processes = [context.Process(target=_enter, args=(dict(os.environ), function, row)) for row in rows]
    for process in processes:
        process.start()
    return processes


def start_and_join(function: Callable[..., None], rows: Sequence[tuple[Any, ...]]) -> None:
    """Start them, and wait; what one of them raises is raised here."""
    _context()
    arguments = dict(os.environ), function, list(rows)
    mp.start_processes(_enter_numbered, args=arguments, nprocs=len(rows), join=True, start_method="forkserver")


def run_file(file: Path, folder: Path, *, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a file of Python in a folder as `python file` does, and wait for its end."""
    process, *outputs = start_file(file, (), folder, **environment)
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        raise subprocess.TimeoutExpired(["python", str(file)], timeout)
    return subprocess.CompletedProcess(
        ["python", str(file)], process.exitcode, *(output.read_text() for output in outputs)
    )


def start_file(
    file: Path, arguments: Sequence[object], folder: Path, **environment: str
) -> tuple[multiprocessing.Process, Path, Path]:
    """Start a file of Python in a folder as `python file arguments…` does.

    Returns the process, and the files that get its output and its errors: FOLDER.stdout and FOLDER.stderr.
    """
    outputs = folder.with_suffix(".stdout"), folder.with_suffix(".stderr")
    for output in outputs:
        output.write_text("")
    row = file, [str(word) for word in arguments], folder, outputs
    process = _context().Process(target=_enter, args=({**os.environ, **environment}, _run_file, row))
    process.start()
    return process, *outputs


class Piped:
    """A process that runs `python -m module arguments…`, with pipes to its input and from its output.

    Args:
        command: as `subprocess.Popen` takes it.
        env: the process's environment.
        _: what else `Popen` takes.
    """

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **_: object) -> None:
        context = _context()
        (its_input, our_end), (other_end, its_output) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        row = command[2], list(command[3:]), its_input, its_output
        self._process = context.Process(target=_enter, args=(env, _run_module, row))
        self._process.start()
        its_input.close()
        its_output.close()
        self.stdin, self.stdout = (
            os.fdopen(os.dup(end.fileno()), mode) for end, mode in ((our_end, "w"), (other_end, "r"))
        )
        our_end.close()
        other_end.close()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _run_module(module: str, arguments: list[str], its_input: Any, its_output: Any) -> None:
    os.dup2(its_input.fileno(), 0)
    os.dup2(its_output.fileno(), 1)
    its_input.close()
    its_output.close()
    sys.stdin = open(0)  # noqa: SIM115 (as long as the process)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def lines_said(process: multiprocessing.Process, output: Path) -> Iterator[str]:
    """Yield the lines of a process's output as they come, until it has ended."""
    with output.open() as file:
        while True:
            alive = process.is_alive()
            if line := file.readline():
                yield line
            elif not alive:
                return
            else:
                time.sleep(0.005)


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    of_models = ["transformers.models.bert.modeling_bert"] if "transformers" in sys.modules else []
    context.set_forkserver_preload(["tests.preload", *of_models])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        multiprocessing.forkserver.ensure_running()
    return context


def _enter_numbered(
    number: int, environment: dict[str, str], function: Callable[..., None], rows: list[tuple[Any, ...]]
) -> None:
    _enter(environment, function, rows[number])


def _enter(environment: dict[str, str], function: Callable[..., None], row: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*row)


def _run_file(file: Path, arguments: list[str], folder: Path, outputs: tuple[Path, Path]) -> None:
    for descriptor, output in enumerate((Path(os.devnull), *outputs)):
        opened = os.open(output, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
    sys.stdout.reconfigure(line_buffering=True)
    os.chdir(folder)
    sys.argv = [str(file), *arguments]
    sys.path[:] = [str(file.parent), *(path for path in sys.path if path and Path(path) != ROOT)]
    try:
        runpy.run_path(str(file), run_name="__main__")
    finally:
        atexit._run_exitfuncs()
