"""Who uses a provider knows it by its contract: what it can do is declared, and asked by name and type."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import onnx_ir as ir
import pytest

import ontrain
from ontrain.errors import ProviderError
from ontrain.graph import Builder, new_model
from ontrain.providers import available_providers, get_provider
from tests.providers.graphs import float_input

SOURCE = Path(ontrain.__file__).parent
OUTSIDE = [path for path in sorted(SOURCE.rglob("*.py")) if "providers" not in path.relative_to(SOURCE).parts]
PROVIDERS_OWN = r"(^|[._])(provider|runner|native|executable|memory|state)s?(\[.*\])?$"
"""What variables that hold a provider, or something that it made, are called."""
OTHER_STATES = {"capture/generators.py", "passes/rows/section.py", "training/state.py", "training/source.py"}
"""Here a state is that of a generator, of rows, or what a user loads; or the array in a state is looked at."""


def looks(path: str, source: str) -> list[str]:
    """Where a file looks a provider's parts up instead of asking for them, or forgets its type."""
    tree = ast.parse(source)
    contract = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and re.match(r"ontrain\.providers(\.|$)", node.module or "")
        for alias in node.names
    }
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "isinstance", "issubclass"):
            subject, kind = (ast.unparse(argument) for argument in node.args[:2])
            own = (
                path not in OTHER_STATES and kind != "str" and re.search(PROVIDERS_OWN, subject)
            )  # a name is no provider
            if own or contract & set(re.findall(r"\w+", kind)):
                lines.append(f"{path}:{node.lineno} {ast.unparse(node)}")
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            name = ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else node.arg
            value = ast.unparse(node.value) if isinstance(node, ast.AnnAssign) and node.value is not None else ""
            hidden = re.search(r"provider$", name) or re.search(r"provider$", value)
            if hidden and "Any" in ast.unparse(node.annotation):
                lines.append(f"{path}:{node.lineno} {name}: {ast.unparse(node.annotation)}")
    return lines


def test_nobody_looks_a_providers_parts_up():
    files = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in OUTSIDE}
    assert [line for path, text in files.items() for line in looks(path, text)] == []


@pytest.mark.parametrize(
    "line",
    [
        'getattr(self._provider, attribute, False)',
        'hasattr(native, "compile_module")',
        "isinstance(session.state, FlatState)",
        "from ontrain.providers import FlatState\nisinstance(flat, FlatState)",
        "native: Any = provider",
        "def check_provider(provider: Any): ...",
    ],
)  # fmt: skip
def test_a_look_is_found(line):
    assert looks("session/plans.py", line)


def test_processes_and_passes_import_no_provider():
    for path in OUTSIDE:
        if path.relative_to(SOURCE).parts[0] in ("distributed", "passes", "functions", "optim", "autodiff"):
            assert not re.search(r"ontrain\.providers\.\w", path.read_text()), path


@pytest.mark.parametrize("name", available_providers())
def test_what_is_declared_is_there(name):
    provider = get_provider(name)
    assert provider.name == name and provider.device == "cpu"
    able = provider.capabilities
    assert (able.memory_of is None) == (name != "TorchExecutionProvider")
    state = provider.create_state([])
    assert list(state) == [] and state.nbytes() == 0
    if able.flat_state is not None:
        assert able.flat_state([]).flat == {}


@pytest.mark.parametrize("name", ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider"])
def test_a_state_of_another_provider_is_refused_by_name(name):
    model = ir.Model(Builder(new_model([float_input("x", (2,))], "graph").graph).graph, ir_version=10)
    other = get_provider("ReferenceExecutionProvider").create_state([])
    with pytest.raises(ProviderError, match=rf"{name} cannot use a _NumpyState"):
        get_provider(name).compile(model, other)
