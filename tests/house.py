"""Measures of the sources: circles, imports past a face, bare Any, names that say nothing, lines by room.

    python -m tests.house                    this tree
    python -m tests.house ../before          another tree, to compare with
    python -m tests.house | grep recipes     a single measure

`python -m tests.own_tests` measures how long a changed file waits for its own tests.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
VAGUE = ("one", "found", "made", "given", "kept")
"""Names of variables that say nothing of what they hold."""


@cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """What a file imports, inside functions and for types too, in the order of `ast.walk`."""
    return [node for node in _nodes(path) if isinstance(node, ast.Import | ast.ImportFrom)]


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def modules(source: Path) -> dict[str, Path]:
    """The sources by the name under which they are imported."""
    return {
        ".".join(("ontrain", *path.relative_to(source).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(source.rglob("*.py"))
    }


def _imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that a file imports."""
    names: set[str] = set()
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name if name in known else name.rpartition(".")[0] for name in names if name.startswith("ontrain")}


def circles(source: Path) -> list[list[str]]:
    """Groups of files that import one another, inside of functions and for types too; not through rooms' faces."""
    known = modules(source)
    imports = {
        name: {other for other in _imported(path, known) if other in known and other != name}
        for name, path in known.items() if path.name != "__init__.py"
    }  # fmt: skip
    groups: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in imports.get(name, ()):
            if other in imports and other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                groups.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for name in imports:
        if name not in index:
            visit(name)
    return groups


def past_faces(source: Path) -> list[str]:
    """Imports of another room's names from behind its face, though the face has them."""
    known, lines = modules(source), []
    faces = {
        name: {
            alias.asname or alias.name
            for node in import_nodes(path)
            if isinstance(node, ast.ImportFrom) and node.col_offset == 0  # in no function
            for alias in node.names
        }
        for name, path in known.items() if path.name == "__init__.py"
    }  # fmt: skip
    for name, path in known.items():
        room = name.split(".")[1] if "." in name else ""
        for node in import_nodes(path):
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ontrain.")):
                continue
            parts = (node.module or "").split(".")
            if parts[1] == room or len(parts) < 3:
                continue
            face = faces.get(f"ontrain.{parts[1]}", set())
            lines += [f"{name} takes {alias.name} from {node.module}" for alias in node.names if alias.name in face]
    return lines


def behind_faces(source: Path) -> int:
    """Imports from a file inside another room, whether its face has the names or not."""
    count = 0
    for name, path in modules(source).items():
        room = name.split(".")[1] if "." in name else ""
        for node in import_nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ontrain."):
                parts = (node.module or "").split(".")
                count += len(parts) > 2 and parts[1] != room
    return count


def annotations(source: Path) -> tuple[int, int]:
    """Annotations that are Any and nothing else, and all of them."""
    bare = total = 0
    for path in source.rglob("*.py"):
        for node in _nodes(path):
            notes = []
            if isinstance(node, ast.FunctionDef):
                every = [
                    *node.args.posonlyargs,
                    *node.args.args,
                    *node.args.kwonlyargs,
                    node.args.vararg,
                    node.args.kwarg,
                ]
                notes = [*(a.annotation for a in every if a is not None), node.returns]
            elif isinstance(node, ast.AnnAssign):
                notes = [node.annotation]
            total += sum(note is not None for note in notes)
            bare += sum(isinstance(note, ast.Name) and note.id == "Any" for note in notes)
    return bare, total


def vague_names(source: Path) -> Counter[str]:
    """How often a variable with a vague name is bound, by file."""
    counts: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        for node in _nodes(path):
            bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
            if bound or (isinstance(node, ast.arg) and node.arg in VAGUE):
                counts[path.relative_to(source).as_posix()] += 1
    return counts


def same_names(source: Path) -> dict[str, int]:
    """Names that several files have, except for faces."""
    counts = Counter(path.name for path in source.rglob("*.py"))
    return {name: count for name, count in counts.most_common() if count > 2 and not name.startswith("__")}


def ignores(source: Path) -> int:
    """Lines at which the type checker looks away."""
    return sum(len(re.findall(r"type: ignore", path.read_text())) for path in source.rglob("*.py"))


def lines_by_room(source: Path) -> dict[str, int]:
    """Lines of each folder."""
    counts: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).parts
        counts[parts[0] if len(parts) > 1 else "."] += len(path.read_text().splitlines())
    return dict(sorted(counts.items()))


def main() -> None:
    """Print the measures of the sources in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT, help="a tree of ontrain [default: this one]")
    root: Path = parser.parse_args().folder
    source = root / "src" / "ontrain"
    if not source.is_dir():
        parser.error(f"{root} is no tree of ontrain: it has no src/ontrain")
    bare, total = annotations(source)
    rooms = lines_by_room(source)
    groups = circles(source)
    print(f"circles: {len(groups)} {groups}")
    print(f"imports past a face that has the name: {len(past_faces(source))}; of files: {behind_faces(source)}")
    print(f"bare Any: {bare} of {total} annotations, {bare / total:.1%}")
    print(f"type: ignore: {ignores(source)}")
    vague = {name: vague_names(root / name).total() for name in ("src", "tests", "benchmarks", "recipes")}
    print(f"variables named {', '.join(VAGUE)}: {', '.join(f'{name} {count}' for name, count in vague.items())}")
    print(f"file names used more than twice: {same_names(source)}")
    print(f"lines: {sum(rooms.values())}; {', '.join(f'{room} {count}' for room, count in rooms.items())}")
    recipes = lines_by_room(root / "recipes")
    by_recipe = ", ".join(f"{recipe} {count}" for recipe, count in recipes.items())
    print(f"lines of recipes: {sum(recipes.values())}; {by_recipe}")


if __name__ == "__main__":
    main()
