"""The walk in docs/architecture.md: each function that it names is there, and leads on as it says."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

from ontrain.training import ORTTrainer, optim

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALK = PAGE[PAGE.index("## A walk through the house") : PAGE.index("## One model through all rooms")]
BATCH = WALK[: WALK.index("**One operator**")]
STOPS = re.findall(r"^\| `([\w/]+\.py)` `([\w.]+)` \|[^|]*\| `([^`]+)` \|$", WALK, re.MULTILINE)


def source_of(file: str, name: str) -> str:
    """The text of a function, as ast writes it."""
    body: list[ast.stmt] = ast.parse((ROOT / "src" / "ontrain" / file).read_text()).body
    *outer, last = name.split(".")
    for part in outer:
        (body,) = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part]
    return "\n".join(ast.unparse(node) for node in body if isinstance(node, ast.FunctionDef) and node.name == last)


@pytest.mark.parametrize(("file", "name", "leads_on"), STOPS)
def test_each_stop_of_the_walk_leads_on_as_the_page_says(file, name, leads_on):
    assert leads_on in source_of(file, name)


def test_every_line_of_the_walk_is_a_stop():
    lines = [line for line in WALK.splitlines() if line.startswith("| `")]
    assert len(lines) == len(STOPS) > 30


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", PAGE))))
def test_files_that_the_page_names_are_there(file):
    assert [*(ROOT / "src").rglob(file), *(ROOT / "tests").rglob(Path(file).name)]


@contextmanager
def calls() -> Iterator[list[tuple[str, str]]]:
    """File and name of each function of ontrain that is called inside, in order."""
    seen: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        _, inside, file = frame.f_code.co_filename.partition("/src/ontrain/")
        if event == "call" and inside:
            seen.append((file, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def steps() -> list[list[tuple[str, str]]]:
    """What two steps of one plan call."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, length, 16]
            return self.head(x).mean(1)

    description = {
        "inputs": [("x", ["batch", "length", 16]), ("label", ["batch"])],
        "outputs": [("loss", [], True), ("logits", ["batch", 4])],
    }
    trainer = ORTTrainer(
        Classifier(), description, optim.AdamConfig(), nn.functional.cross_entropy, {"device": {"id": "cpu"}}
    )
    seen = []
    for _ in range(2):
        with calls() as of_step:
            trainer.train_step(torch.randn(2, 5, 16), torch.tensor([1, 3]))
        seen.append(of_step)
    return seen


def test_a_step_calls_every_stop_of_the_walk(steps):
    """But for the body of the optimizer, which the torch provider need not run."""
    assert {(file, name) for file, name, _ in STOPS} - set(steps[0]) == {("functions/optimizer.py", "adamw")}


def test_a_batch_with_a_plan_goes_from_the_fourth_stop_to_the_last_two(steps):
    of_batch = [(file, name) for file, name, _ in STOPS[: BATCH.count("\n| `")]]
    assert [stop for stop in of_batch if stop in steps[1]] == [*of_batch[:4], *of_batch[-2:]]
