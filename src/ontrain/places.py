"""What a user names and what has to be there: a model's file, a module with a function, a run's folder.

Outside of the rooms: the command `ontrain` looks here first, so that a wrong name is told before anything is imported
that takes seconds.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from ontrain.errors import InputError, OptionError

__all__ = [
    "STEP",
    "check_module_exists",
    "function_name",
    "missing_module",
    "model_file",
    "step_number",
    "steps_of_run",
]

STEP = "step_"
"""What the folder of a step begins with in a run's statistics."""


def model_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a model's file.

    Raises:
        InputError: there is no such file.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(
            f"there is no model file {os.fspath(path)!r}",
            reason="it is a folder" if file.is_dir() else None,
            way_out="give the path of an ONNX file",
        )
    return file


def function_name(target: str) -> tuple[str, str]:
    """Return module and function of "package.module:function".

    Raises:
        OptionError: the text has another form.
    """
    module, _, name = target.partition(":")
    if not module or not name.isidentifier():
        raise OptionError(f"{target!r} names no function", way_out="write package.module:function")
    return module, name


def check_module_exists(module: str) -> None:
    """Look for a module, and for the packages that it lies in, without importing any of them.

    Raises:
        OptionError: there is none of this name.
    """
    places: list[str] | None = None  # sys.path
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:count]), places)
        if spec is None:
            raise missing_module(module)
        if spec.submodule_search_locations is None:
            return  # a module; whether it puts others beside itself, as os does with os.path, its import shows
        places = list(spec.submodule_search_locations)


def _spec(module: str, places: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(module, places)
        if spec is not None:
            return spec
    return None


def missing_module(module: str) -> OptionError:
    """Return the error that there is no module of this name."""
    return OptionError(
        f"there is no module {module!r}",
        reason=f"looked in {', '.join(place or os.getcwd() for place in sys.path[:3])}, …",
        way_out="run in the folder that holds it, or install it",
    )


def step_number(folder: Path) -> int | None:
    """Return the step whose statistics a folder holds; None for any other folder or file."""
    number = folder.name.removeprefix(STEP)
    return int(number) if folder.name.startswith(STEP) and number.isdecimal() and folder.is_dir() else None


def steps_of_run(run: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the folders of a run's steps, by number.

    Raises:
        InputError: there is no such folder, or no step in it.
    """
    folder = Path(run)
    entries = list(folder.iterdir()) if folder.is_dir() else []
    steps = {number: entry for entry in entries if (number := step_number(entry)) is not None}
    if not steps:
        raise InputError(
            f"{folder} holds no run" if folder.is_dir() else f"there is no folder {folder}",
            way_out=f"give the output_dir of a StatisticsSubscriber, which has folders {STEP}0, {STEP}1, …",
        )
    return steps
