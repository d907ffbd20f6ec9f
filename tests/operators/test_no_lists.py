"""No list of operators is kept by hand: what is known of an operator stands in its record."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ontrain
from ontrain.operators import OPERATORS

SOURCE = Path(ontrain.__file__).parent
FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.is_relative_to(SOURCE / "operators"))
NAMES = {name for _, name in OPERATORS}
DOMAINS = {domain for domain, _ in OPERATORS}
MANY = 3

ALLOWED = {
    "files/demands.py": "which operands end the process of stock onnxruntime, a fact of its kernels",
    "functions/recurrent.py": "what the attribute `activations` of a recurrent layer may say",
}
"""Files that may hold such a list, and why."""


def names_domain(node):
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and node.value in DOMAINS)


def strings(nodes):
    """The strings among nodes; of a domain and a name, such as ("ontrain", "Gelu"), the name."""
    paired = [n for n in nodes if isinstance(n, ast.Tuple) and len(n.elts) == 2 and names_domain(n.elts[0])]
    words = [*(n for n in nodes if n not in paired), *(pair.elts[1] for pair in paired)]
    return [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]


def listed(tree):
    """Line and names of each set, tuple, list, dict, split string or call that lists operators.

    A decorator that registers its function for several operators is no such list, and neither are exported names.
    """
    nodes = list(ast.walk(tree))
    exported = {n.value for n in nodes if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"}
    decorators = {d for n in nodes if isinstance(n, ast.FunctionDef) for d in n.decorator_list}
    for node in nodes:
        if node in exported or node in decorators:
            continue
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            words = strings(node.elts)
        elif isinstance(node, ast.Dict):
            words = strings([key for key in node.keys if key is not None])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            words = [word for text in strings([node.func.value]) for word in text.split()]
        elif isinstance(node, ast.Call):
            words = strings(node.args)
        else:
            continue
        names = [word for word in words if word in NAMES]
        if len(names) >= MANY and 3 * len(names) >= 2 * len(words):
            yield node.lineno, names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_list_of_operators_stands_outside_the_records(path):
    lists = [f"{path}:{line} lists {', '.join(names)}" for line, names in listed(ast.parse(path.read_text()))]
    assert bool(lists) == (path.relative_to(SOURCE).as_posix() in ALLOWED), lists


def test_few_files_are_excepted():
    assert len(ALLOWED) <= 3


@pytest.mark.parametrize(
    "text",
    [
        'X = frozenset({"Add", "Mul", "Relu"})',
        'X = ("Add", "Mul", "Relu", "add")',
        'X = (("", "Add"), ("", "Mul"), (DOMAIN, "Relu"))',
        'def f(node):\n    return node.op_type in ["Add", "Mul", "Relu"]',
        'X = {"Add": 1, "Mul": 2, "Relu": 3, **more}',
        'X = "Add Mul Relu".split()',
        'zero_gradient("Add", "Mul", "Relu")',
    ],
)
def test_a_list_is_found_however_it_is_written(text):
    assert [names for _, names in listed(ast.parse(text))] == [["Add", "Mul", "Relu"]]


@pytest.mark.parametrize(
    "text",
    [
        '__all__ = ["Add", "Mul", "Relu"]',
        '@lowers("Add", "Mul", "Relu")\ndef f(): ...',
        'X = {"Add": 1, "a": 2, "b": 3}',
    ],
)
def test_registrations_exports_and_other_words_are_none(text):
    assert not list(listed(ast.parse(text)))
