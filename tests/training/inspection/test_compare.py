"""Two runs side by side: the first value that differs is named, and rounding is no difference."""

from __future__ import annotations

import copy
import runpy

import pytest
import torch
from torch import nn

from ontrain.errors import InputError, OptionError
from ontrain.training.inspection import merge_runs
from ontrain.training.ortmodule import ORTModule
from ontrain.training.utils.hooks import StatisticsSubscriber, SubscriberManager, compare_runs


class Net(nn.Module):
    def __init__(self, wrong_from: int | None = None):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.wrong_from, self.calls = wrong_from, 0

    def forward(self, x):
        hidden = self.first(x).tanh()
        if self.wrong_from is not None and self.calls >= self.wrong_from:
            hidden = hidden * 1.01
        self.calls += 1
        return self.third(self.second(hidden))


def run(module, folder, steps=3, *, wrap=False):
    manager = SubscriberManager()
    manager.subscribe(module, [StatisticsSubscriber(str(folder), override_output_dir=True)])
    module = ORTModule(module) if wrap else module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(6, 4, generator=data)).square().mean().backward()
        optimizer.step()
    manager.unsubscribe()
    return str(folder)


@pytest.fixture
def runs(tmp_path):
    module = Net()
    wrong = copy.deepcopy(module)
    wrong.wrong_from = 1
    return run(module, tmp_path / "a"), run(wrong, tmp_path / "b")


def test_the_first_step_and_value_that_differ_are_named(runs):
    report = compare_runs(*runs)
    first = report.differences[0]
    assert report.steps == [0, 1, 2] and report.values == 24
    assert (first.step, first.name, first.what) == (1, "Linear_2_0th_output_forward", "min")
    assert not any(
        difference.name == "Linear_1_0th_output_forward" and difference.step == 1 for difference in report.differences
    )
    assert "step 1: Linear_2_0th_output_forward: min is" in str(first)
    assert not compare_runs(*runs, rtol=10).differences
    assert not compare_runs(*runs, rtol=0, atol=10).differences


def test_an_ortmodule_gives_the_run_of_eager(tmp_path):
    module = Net()
    twin = copy.deepcopy(module)
    with pytest.warns(UserWarning, match="attribute 'calls'"):
        folders = run(twin, tmp_path / "eager"), run(module, tmp_path / "ours", wrap=True)
    report = compare_runs(*folders, rtol=1e-6)
    assert report.values == 24 and not report.differences


def test_what_one_run_lacks_is_a_difference(runs):
    a, b = runs
    order = f"{b}/step_0/order.txt"
    with open(order) as file:
        lines = file.read().splitlines()
    with open(order, "w") as file:
        file.write("\n".join(line for line in lines if line != "Linear_3_0th_output_backward"))
    first = compare_runs(a, b, rtol=10).differences[0]
    assert (first.name, first.what, first.second) == ("Linear_3_0th_output_backward", "missing", "missing")


def test_shapes_and_numbers_that_are_none_must_be_equal(tmp_path):
    for name, value in (("a", torch.ones(4)), ("b", torch.ones(2, 2)), ("c", torch.tensor([1.0, 1.0, 1.0, torch.nan]))):
        StatisticsSubscriber(str(tmp_path / name)).activation("x", 0, 0, value)
    assert compare_runs(tmp_path / "a", tmp_path / "b", rtol=9).differences[0].what == "shape"
    assert compare_runs(tmp_path / "a", tmp_path / "c", rtol=9).differences[0].what == "nan"
    assert not compare_runs(tmp_path / "c", tmp_path / "c", rtol=0).differences


def test_the_tolerance_follows_the_dtype(tmp_path):
    for dtype, apart, differs in (
        (torch.float64, 1e-6, True), (torch.float64, 1e-8, False), (torch.float32, 1e-6, False),
        (torch.float32, 1e-3, True), (torch.float16, 1e-3, False), (torch.bfloat16, 1e-2, False),
    ):  # fmt: skip
        for name, value in (("a", 1.0), ("b", 1 + apart)):
            subscriber = StatisticsSubscriber(str(tmp_path / name), override_output_dir=True)
            subscriber.activation("x", 0, 0, torch.tensor([-2.0, value], dtype=torch.float64).to(dtype))
        assert bool(compare_runs(tmp_path / "a", tmp_path / "b").differences) == differs, (dtype, apart)


def test_folders_without_a_run(tmp_path, runs):
    with pytest.raises(InputError, match="holds no run"):
        compare_runs(tmp_path, runs[0])
    with pytest.raises(InputError, match="there is no folder"):
        compare_runs(runs[0], tmp_path / "none")
    late = tmp_path / "late"
    StatisticsSubscriber(str(late)).activation("x", 0, 9, torch.ones(2))
    with pytest.raises(InputError, match="no step in common"):
        compare_runs(runs[0], late)
    with open(f"{late}/step_9/order.txt", "w") as order:
        order.write("../../a/step_0/order.txt\n")
    with pytest.raises(InputError, match="no file there"):
        compare_runs(late, late)


def test_runs_are_merged_as_onnxruntimes_script_does(tmp_path, runs, monkeypatch):
    target = tmp_path / "merged"
    arguments = ["--pt_dir", runs[0], "--ort_dir", runs[1], "--output_dir", str(target)]
    monkeypatch.setattr("sys.argv", ["merge_activation_summary", *arguments])
    runpy.run_module("ontrain.training.utils.hooks.merge_activation_summary", run_name="__main__")
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*.txt"))
    assert files == [f"{side}/step_{n}_.txt" for side in ("merge_ort", "merge_pt") for n in range(3)]
    text = (target / "merge_pt" / "step_2_.txt").read_text()
    assert text.count("=" * 16) == 8 and text.index("Linear_1_0th_output forward") < text.index("Net_0_0th_output")
    with pytest.raises(OptionError, match="exists"):
        merge_runs(*runs, str(target))
