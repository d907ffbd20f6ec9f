"""The design's rules that no linter knows: who may import whom, how long files are, what names are not used."""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch.utils._device

from tests.house import annotations, behind_faces, circles, ignores, import_nodes, past_faces, vague_names

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ontrain"
FILES = sorted(SOURCE.rglob("*.py"))

ROOMS = (
    "sizes", "files", "operators", "graph", "functions", "internals", "capture", "autodiff", "optim", "passes",
    "providers", "session", "inference", "backend", "distributed", "checkpoint", "training", "capi", "ort_supplement",
    "cli",
)  # fmt: skip
"""In the order in which a model flows through them."""

HOMES = {
    "torch": (
        "internals",
        "capture",
        "providers/torch",
        "session",
        "inference",
        "backend",
        "distributed",
        "checkpoint",
        "training",
        "capi",
        "ort_supplement",
    ),
    "onnxruntime": ("providers/onnxruntime",),
    "ontrain.stock": (
        "__init__.py",
        "stock_node.py",
        "stock_values.py",
        "providers/onnxruntime",
        "session",
        "inference",
        "backend",
        "training/api",
        "training/artifacts",
        "capi",
    ),
    "onnx.helper": (),
    "pickle": (),
}
"""The only rooms that may import a library. `ontrain.stock` has the onnxruntime that is installed."""

LONGEST, MEDIAN = 600, 250


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def requirements(*, extras: bool) -> list[str]:
    """Names of what pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    if extras:
        wanted += [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    return sorted({re.split(r"[<>=\[ ]", requirement)[0] for requirement in wanted})


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Line and full name of everything that a file imports, inside functions and for typing too."""
    imported = []
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            imported += [(node.lineno, alias.name) for alias in node.names]
        elif node.module and not node.level:
            imported += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return imported


def is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


@pytest.mark.parametrize("path", FILES, ids=named)
def test_imports_point_to_earlier_rooms(path):
    here = path.relative_to(SOURCE).parts[0]
    if here not in ROOMS:
        return  # errors.py, arguments.py, stock.py, units.py, locks.py, disk.py, places.py: outside the rooms
    later = ROOMS[ROOMS.index(here) + 1 :]
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for line, name in imports(path)
        for room in later
        if is_within(name, f"ontrain.{room}")
    ]
    assert not wrong, f"{here} may import only {', '.join(ROOMS[: ROOMS.index(here) + 1])}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_libraries_stay_in_their_rooms(path):
    wrong = [
        f"{named(path)}:{line} imports {name}, allowed in {', '.join(homes) or 'no room'}"
        for line, name in imports(path)
        for library, homes in HOMES.items()
        if is_within(name, library) and not any(f"{named(path)}/".startswith(home + "/") for home in homes)
    ]
    assert not wrong


def of_torch(node: ast.AST) -> str | None:
    """The dotted name of an attribute if it starts at torch, aten or one of torch's modules."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in ("torch", "aten", "nn", "functional", "mkldnn"):
        return None
    return ".".join([node.id, *reversed(parts)])


TENSORS_OWN = {"_version", "_cdata", "_schema", "_overloadname", "_op", "_buffers", "_non_persistent_buffers_set",
               "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks", "_forward_cls",
               "_current_level"}  # fmt: skip
"""Private attributes of torch's objects, whatever the object is called."""


_BY_NAME = ("getattr", "setattr", "hasattr")


def private_uses(path: Path) -> list[str]:
    """What a file takes of torch that is private, or replaces, other than by the room that is for it."""
    uses, file = [], named(path)
    for node in ast.walk(ast.parse(path.read_text())):
        line = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute):
            name = of_torch(node)
            hidden = name is not None and any(re.match("_[a-zA-Z]", part) for part in name.split("."))
            if hidden or (node.attr in TENSORS_OWN and ast.unparse(node.value) != "self"):
                uses.append(f"{line} {name or node.attr}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            full = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
            uses += [
                f"{line} {name}" for name in full
                if (name.startswith("torch.") and re.search(r"\._[a-zA-Z]", name)) or name.startswith("unittest.mock")
            ]  # fmt: skip
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME and (
            of_torch(node.args[0]) and isinstance(node.args[1], ast.Constant) and node.args[1].value.startswith("_")
        ):  # fmt: skip
            uses.append(f"{line} {ast.unparse(node)}")
    return uses


@pytest.mark.parametrize("path", [path for path in FILES if "internals" not in path.parts], ids=named)
def test_what_torch_does_not_promise_is_reached_through_one_room(path):
    assert not private_uses(path)


PLANS = "providers/torch/"
"""Made and run without the caller's default device; see `ontrain.providers.torch.between`."""


@cache
def creating() -> frozenset[str]:
    """Functions of torch whose results are on the default device, unless they are told where."""
    return frozenset(function.__name__ for function in torch.utils._device._device_constructors())


def created_anywhere(path: Path) -> list[str]:
    """What a file creates without naming a device."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [
        f"{named(path)}:{call.lineno} {ast.unparse(call)}" for call in calls
        if (name := of_torch(call.func)) and name.split(".")[0] == "torch" and name.split(".")[-1] in creating()
        and name.count(".") == 1 and not any(keyword.arg in ("device", None) for keyword in call.keywords)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if PLANS not in path.as_posix() and "canar" not in path.name],
    ids=named,
)
def test_what_is_created_is_on_a_device_that_is_named(path):
    """A caller may have set a default device; canaries run in a thread of their own, which has none."""
    assert not created_anywhere(path)


def test_private_names_are_found_wherever_they_stand():
    files = (SOURCE / "internals").glob("*canar*.py")
    names = {use.split()[-1] for file in files for use in private_uses(file)}
    assert {"unittest.mock", "torch._VF", "torch._C._DisableTorchDispatch", "_version", "_forward_cls"} <= names


def test_no_files_import_one_another():
    assert not circles(SOURCE)


def test_what_a_room_shows_is_taken_from_its_face():
    assert not past_faces(SOURCE)


def test_few_imports_go_behind_a_face():
    assert behind_faces(SOURCE) < 30


def test_annotations_name_a_type():
    bare, total = annotations(SOURCE)
    assert bare < 0.06 * total


def test_variables_say_what_they_hold():
    assert vague_names(SOURCE).total() < 20, "but `one` is a good name of the number"
    assert vague_names(ROOT / "tests").total() == vague_names(ROOT / "benchmarks").total() == 0


def test_the_type_checker_looks_away_seldom():
    assert ignores(SOURCE) < 30


def test_every_folder_is_a_room():
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= set(ROOMS), "a new room needs its place in the order"


def test_no_file_is_longer_than_a_concept():
    lengths = {named(path): len(path.read_text().splitlines()) for path in FILES}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
    assert statistics.median(n for n in lengths.values() if n > 5) < MEDIAN


@pytest.mark.parametrize("path", FILES, ids=named)
def test_blind_excepts_say_whose_code_they_are_around(path):
    blind = [line for line in path.read_text().splitlines() if re.search(r"except (Base)?Exception\b", line)]
    silent = [line.strip() for line in blind if "BaseException" not in line and not re.search(r"# .*\w{3}", line)]
    assert not silent


def test_no_module_is_called_after_nothing():
    vague = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc", "base_utils"}
    upstream = SOURCE / "training" / "utils"  # an import path that users have; it holds names, no code
    others = [path for path in FILES if not path.is_relative_to(upstream)]
    parts = {part for path in others for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not parts & vague
    for path in FILES:
        if path.is_relative_to(upstream):
            assert not any(
                isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(ast.parse(path.read_text()))
            )


TESTED = ("sizes", "graph", "passes", "providers/torch/lowering")
"""Rooms in which each file with a function has a test file of its name."""


def test_each_source_file_has_a_test_file_of_its_name():
    untested = []
    for path in FILES:
        folder = path.relative_to(SOURCE).parent.as_posix()
        if path.name == "__init__.py" or not any(folder == room or folder.startswith(f"{room}/") for room in TESTED):
            continue
        computes = any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text())))
        if computes and not (ROOT / "tests" / folder / f"test_{path.name}").exists():
            untested.append(named(path))
    assert not untested


def test_dependencies_are_what_is_imported():
    optional = {"h5py", "tensorboard", "transformers", "triton"}
    roots = {name.split(".")[0] for path in FILES for _, name in imports(path)}
    used = roots - set(sys.stdlib_module_names) - {"ontrain"} - optional
    assert used == {name.replace("-", "_") for name in requirements(extras=False)}


def test_every_dependency_is_explained():
    rows = re.findall(r"^\| `?([\w-]+)`? \|", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert set(requirements(extras=True)) <= set(rows)


def test_every_dependency_is_pinned_and_torch_comes_first():
    lines = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if not x.startswith("#")]
    assert lines[0].startswith("torch==")
    pinned = {x.split("==")[0].lower().replace("_", "-") for x in lines}
    assert set(requirements(extras=True)) <= pinned


def test_files_speak_of_the_project_only():
    # In two halves so that this file does not find itself.
    halves = (("/wo", "rk/"), (r"\bissue", r" #\d"), (r"\bas an", r" AI\b"), ("TO", "DO"), ("FIX", "ME"))
    elsewhere = re.compile("|".join(a + b for a, b in halves))
    shipped = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in (".md", ".toml", ".yaml", ".txt")]
    shipped += [ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in ("src", "tests", "docs", "recipes", "examples", "benchmarks", "docker", "azureml"):
        shipped += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".toml", ".sh", ".yml", ".txt")]
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in shipped
        if "node_modules" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if elsewhere.search(line)
    ]
    assert not lines
