"""What torch does not promise: each row of the table holds on this torch, and what hangs on one is refused by name."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ontrain.internals import TABLE, check_all

SOURCE = Path(__file__).parent.parent / "src" / "ontrain"


def test_every_row_holds_on_this_torch():
    failing = [(one.row.name, one.state, one.reason) for one in check_all() if one.state in ("gone", "changed")]
    assert not failing


def test_every_row_says_what_hangs_on_it_and_stands_once():
    assert all(row.purpose and row.refuses for row in TABLE)
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_names_that_are_asked_for_are_in_the_table():
    names = {row.name for row in TABLE}
    asked = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"\b(?:private|available|of)\(\s*\"(torch\.[^\"]+)\"", path.read_text())
    }
    assert asked and asked <= names


@pytest.mark.parametrize(
    ("breaking", "state"),
    [("del torch._fused_adam_", "has no"), ("torch._fused_adam_ = lambda *a, **b: None", "does something else with")],
)
def test_what_hangs_on_a_broken_name_is_refused_and_all_else_goes_on(breaking, state):
    program = f"""
        import warnings
        import torch
        {breaking}
        torch.__version__ = "99.0.0"
        warnings.simplefilter("always")
        with warnings.catch_warnings(record=True) as warned:
            from ontrain.errors import OntrainError
            from ontrain.training.optim import FusedAdam
            from ontrain.training.ortmodule import ORTModule

            module = ORTModule(torch.nn.Linear(2, 2))
            optimizer = FusedAdam(module.parameters())
            module(torch.ones(1, 2)).sum().backward()
            assert module.weight.grad.abs().sum() > 0
            try:
                optimizer.step()
            except OntrainError as error:
                print(error.problem)
        print(sum("newer than any" in str(one.message) for one in warned))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    problem, warnings = ran.stdout.splitlines()
    assert problem.startswith(f"torch 99.0.0 {state} torch._fused_adam_, so this does not work:")
    assert "FusedAdam" in problem
    assert warnings == "1"


def test_a_backward_pass_outlives_the_thread_that_captured_first():
    program = """
        import threading
        import torch
        from ontrain.capture import capture

        thread = threading.Thread(target=capture, args=(torch.nn.Linear(2, 2), (torch.ones(1, 2),)))
        thread.start()
        thread.join()
        x = torch.ones(2, requires_grad=True)
        print(torch.autograd.grad(torch.softmax(x, -1)[0], x)[0].tolist())
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[0.25, -0.25]\n"
