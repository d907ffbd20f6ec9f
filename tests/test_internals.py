"""What torch does not promise: each row of the table holds on this torch, and what hangs on one is refused by name."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ontrain.capture import capture
from ontrain.errors import OntrainError
from ontrain.internals import LIBRARY_FUNCTIONS, MODULE_HOOKS, MODULE_STATE, TABLE, TALKATIVE_LOGGERS, access, check_all
from ontrain.internals.row import Finding

SOURCE = Path(__file__).parent.parent / "src" / "ontrain"
ROWS = {row.name: row for row in TABLE}


def test_every_row_holds_on_this_torch():
    failing = [
        (outcome.row.name, outcome.state, outcome.reason)
        for outcome in check_all()
        if outcome.state in ("gone", "changed")
    ]
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


@pytest.mark.sampled(2)
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


def test_a_newer_torch_captures_a_forward_that_leaves_something_out_for_compilers():
    program = """
        import torch
        torch.__version__ = "99.0.0"
        from ontrain.training.ortmodule import ORTModule

        class Leaving(torch.nn.Linear):
            def forward(self, x):
                return super().forward(x) + (None if torch.compiler.is_compiling() else x.mean())

        module, x = Leaving(2, 2), torch.ones(1, 2)
        print(torch.equal(ORTModule(module)(x), module(x)))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


@pytest.fixture
def lose(monkeypatch):
    """lose(names…): have these rows fail their trials, and no other."""

    def lose(*names: str) -> None:
        def finding(name: str) -> Finding:
            return Finding(ROWS[name], "changed", "tried") if name in names else access._presence(ROWS[name])

        monkeypatch.setattr(access, "_finding", finding)
        monkeypatch.setattr(access, "_objects", {})

    return lose


class Net(nn.Module):
    """A forward of two layers, or of something else that is done with them."""

    def __init__(self, forward=lambda self, x: self.second(torch.tanh(self.first(x)))):
        super().__init__()
        self.first, self.second, self._forward = nn.Linear(3, 3), nn.Linear(3, 2), forward

    def forward(self, x):
        return self._forward(self, x)


def its_gradient(self, x):
    (gradient,) = torch.autograd.grad(self.first(x).sum(), self.first.weight, create_graph=True)
    return x @ gradient


def hooked(self, x):
    y = self.first(x)
    y.register_hook(lambda gradient: gradient * 5)
    return y


GENERATOR = "torch.utils.checkpoint._checkpoint_without_reentrant_generator"


@pytest.mark.parametrize(
    ("forward", "lost"),
    [
        (its_gradient, ["torch.autograd._engine_run_backward"]),
        (hooked, ["torch.Tensor.register_hook"]),
        (
            lambda self, x: checkpoint(self.first, x, use_reentrant=True),
            ["torch.utils.checkpoint.CheckpointFunction.apply"],
        ),
        (lambda self, x: checkpoint(self.first, x, use_reentrant=False), [GENERATOR, f"{GENERATOR}_impl"]),
    ],
    ids=["gradient", "hook", "reentrant", "checkpoint"],
)
def test_a_forward_that_needs_a_lost_guard_is_refused_by_name_and_no_other(lose, forward, lost):
    x = torch.ones(2, 3, requires_grad=True)
    lose(*lost)
    capture(Net(), (x,))
    with pytest.raises(OntrainError, match=re.escape(lost[0])) as refused:
        capture(Net(forward), (x,))
    assert any(ROWS[name].refuses in str(refused.value) for name in lost)


def test_a_plain_module_is_captured_without_all_that_does_not_concern_it(lose):
    lost = [row.name for row in TABLE if not row.refuses.startswith("capturing a module")]
    assert len(lost) > len(TABLE) / 2
    lose(*lost)
    assert len(capture(Net(), (torch.ones(2, 3),)).parameters) == 4


def test_names_that_are_only_compared_have_rows():
    compared = {
        *LIBRARY_FUNCTIONS,
        *TALKATIVE_LOGGERS,
        *(f"torch.nn.Module.{attribute}" for attribute in (*MODULE_STATE, *MODULE_HOOKS)),
    }
    assert compared <= set(ROWS)


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


def test_the_rows_are_tried_without_a_warning():
    """In a process of its own: torch gives many of its warnings once."""
    code = "from ontrain.internals import check_all; check_all()"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "UserWarning" not in ended.stderr


def test_what_wraps_a_name_within_another_wraps_that():
    name = "torch.export.exported_program._collect_all_valid_cia_ops"

    def more(by):
        return lambda own: lambda: own() + by

    with (
        access.wrapped({name: lambda own: lambda: 1}),
        access.wrapped({name: more(2)}),
        access.wrapped({name: more(3)}),
    ):
        assert torch.export.exported_program._collect_all_valid_cia_ops() == 6
    assert torch.ops.aten.linear.default in torch.export.exported_program._collect_all_valid_cia_ops()
