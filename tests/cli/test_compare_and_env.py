"""The commands `ontrain compare` and `ontrain env`: one real process each, further forms in this one."""

from __future__ import annotations

import json

import pytest
import torch

from ontrain.cli import main
from ontrain.internals import TABLE
from ontrain.training.utils.hooks import StatisticsSubscriber
from tests.cli.test_command import run


@pytest.fixture
def here(monkeypatch, capsys):
    """Runs the command in this process; gives exit code, output and errors."""

    def run_here(*args):
        monkeypatch.setattr("sys.argv", ["ontrain", *args])
        with pytest.raises(SystemExit) as done:
            main()
        return done.value.code, *capsys.readouterr()

    return run_here


def test_compare_names_the_first_difference_and_says_so_by_its_exit_code(tmp_path, here, monkeypatch):
    for name, last in (("a", 4.0), ("b", 4.1)):
        subscriber = StatisticsSubscriber(str(tmp_path / name))
        for step in (0, 1):
            subscriber.activation("Linear_1_0th_output", 1, step, torch.tensor([1.0, 2.0]))
            subscriber.gradient("Linear_1_0th_output", 1, step, torch.tensor([3.0, last if step else 3.5]))
    code, out, err = run("compare", "a", "b", cwd=tmp_path)
    assert code == 1, err
    assert "first difference: step 1: Linear_1_0th_output_backward: max is 4 and 4.1" in out
    assert "1 of 4 values in 2 steps differ" in out
    monkeypatch.chdir(tmp_path)
    code, out, _ = here("compare", "a", "b", "--rtol", "0.1", "--json")
    report = json.loads(out)
    assert code == 0 and report["schema"] == 1 and report["differences"] == [] and report["steps"] == [0, 1]
    for wrong in (("nothing",), ("b", "--rtol=-1")):
        code, _, err = here("compare", "a", *wrong)
        assert code == 2 and ("there is no folder nothing" in err or "--rtol is -1.0" in err)


def test_env_prints_versions_and_variables(tmp_path, here, monkeypatch):
    monkeypatch.setenv("ORTMODULE_USE_FLASH_ATTENTION", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, out, err = run("env", cwd=tmp_path)
    assert code == 0, err
    assert f"  torch: {torch.__version__}" in out and "  OMP_NUM_THREADS: 1" in out
    line = next(line for line in out.splitlines() if line.startswith("ORTMODULE_USE_FLASH_ATTENTION"))
    assert " ".join(line.split()) == "ORTMODULE_USE_FLASH_ATTENTION 1 not read: ATen's kernels are used"
    code, out, _ = here("env", "--json")
    report = json.loads(out)
    assert code == 0 and report["schema"] == 1 and report["threads"]["OMP_NUM_THREADS"] == "1"
    assert set(report) == {"schema", "versions", "system", "devices", "cuda", "providers", "threads", "cache",
                          "variables", "canaries"}  # fmt: skip


def test_env_prints_what_torch_does_not_promise(here):
    _, out, _ = here("env")
    _, printed, _ = here("env", "--json")
    canaries = json.loads(printed)["canaries"]
    assert [canary["name"] for canary in canaries] == [row.name for row in TABLE]
    assert all(canary["passed"] and canary["refused"] is None for canary in canaries)
    assert all({"name", "purpose", "state", "passed", "reason", "refused"} == set(canary) for canary in canaries)
    assert f"what torch does not promise: {len(TABLE)} passed, 0 failed" in out
    lines = [line.split() for line in out.splitlines() if line.startswith("torch._fused_adam_ ")]
    assert [line[1] for line in lines] == ["works"]


def test_env_says_what_is_refused_where_a_canary_fails(here, monkeypatch):
    monkeypatch.setattr(torch, "_fused_adam_", lambda *args, **named: None)
    monkeypatch.delattr(torch, "_amp_foreach_non_finite_check_and_unscale_")
    code, out, _ = here("env")
    assert code == 0 and f"{len(TABLE) - 2} passed, 2 failed" in out
    said = " ".join(out.split())
    assert "torch._fused_adam_ FAILED: changed" in said and "FAILED: gone" in said
    _, printed, _ = here("env", "--json")
    failed = {canary["name"]: canary for canary in json.loads(printed)["canaries"] if not canary["passed"]}
    assert set(failed) == {"torch._fused_adam_", "torch._amp_foreach_non_finite_check_and_unscale_"}
    assert "FusedAdam" in failed["torch._fused_adam_"]["refused"] and failed["torch._fused_adam_"]["reason"]
