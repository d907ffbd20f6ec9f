"""What an ORTModule writes and says when asked."""

import re
import subprocess
import sys

import onnx
import pytest
import torch

from ontrain import OptionError, training
from ontrain.capi import _pybind_state
from ontrain.training.ortmodule import DebugOptions, LogLevel, ORTModule
from tests.processes import run_file
from tests.training.ortmodule.networks import Perceptron


def test_graphs_are_written_under_upstreams_names(tmp_path):
    ours = ORTModule(Perceptron(), DebugOptions(save_onnx=True, onnx_prefix="net", save_path=str(tmp_path)))
    ours(torch.randn(4, 6)).sum().backward()
    ours.eval()
    with torch.no_grad():
        ours(torch.randn(4, 6))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "net_execution_model_training.onnx", "net_optimized_inference.onnx", "net_optimized_training.onnx",
        "net_torch_exported_inference.onnx", "net_torch_exported_training.onnx",
    ]  # fmt: skip
    for name in names:
        onnx.checker.check_model(onnx.load(tmp_path / name))
    outputs = {v.name for v in onnx.load(tmp_path / "net_execution_model_training.onnx").graph.output}
    assert {"first.weight.grad", "second.bias.grad"} <= outputs


def test_phases_are_said(caplog, monkeypatch):
    monkeypatch.delenv("ONTRAIN_CACHE_DIR", raising=False)  # an earlier run's captures would be taken
    ours = ORTModule(Perceptron(), DebugOptions(log_level=LogLevel.INFO))
    for _ in range(2):
        ours(torch.randn(4, 6))
    said = [record.getMessage() for record in caplog.records if record.name == "ontrain.phases"]
    assert [re.sub(r"\d+\.\d\d", "…", line) for line in said] == [
        "captured Perceptron in training mode in … s (cache …, export …, translate …)",
        "planned a step for x [4, 6] in … s "
        "(specialise …, forward passes …, differentiate …, step passes …, compile …)",
        "ran the first forward in … s (run …)",
    ]


def test_a_program_that_logs_its_own_lines_sees_no_phases(tmp_path):
    (tmp_path / "loop.py").write_text("""if True:
        import logging
        import torch
        from ontrain.training.ortmodule import ORTModule
        logging.basicConfig(level=logging.INFO)
        model = ORTModule(torch.nn.Linear(2, 1))
        model(torch.randn(3, 2))
        logging.info("one epoch")
        logging.getLogger("ontrain").setLevel(logging.INFO)
        model(torch.randn(4, 2))
    """)
    done = run_file(tmp_path / "loop.py", tmp_path, timeout=300)
    assert done.stderr.splitlines()[0] == "INFO:root:one epoch" and "INFO:ontrain.phases:planned" in done.stderr


def test_phases_go_to_standard_error_where_nothing_logs(tmp_path):
    (tmp_path / "verbose.py").write_text("""if True:
        import torch
        from ontrain.training import ORTTrainer, optim
        description = {"inputs": [("x", ["batch", 2])], "outputs": [("loss", [], True)]}
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(2, 1)
            def forward(self, x):
                return self.linear(x).square().mean()
        trainer = ORTTrainer(Net(), description, optim.SGDConfig(), options={"debug": {"verbose": True}})
        trainer.train_step(torch.ones(3, 2))
    """)
    done = run_file(tmp_path / "verbose.py", tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    starts = [" ".join(line.split()[:3]) for line in done.stderr.splitlines()]
    assert starts == ["ontrain: captured Net", "ontrain: planned a", "ontrain: ran the"]


@pytest.mark.parametrize("options", [dict(save_onnx=True), dict(log_level="loud"), dict(config={"a": 1})])
def test_wrong_options(options):
    with pytest.raises(OptionError):
        DebugOptions(**options)


def test_debug_options_of_another_kind_are_refused():
    with pytest.raises(OptionError, match="debug_options is a int"):
        ORTModule(Perceptron(), 3)


def test_config_may_be_said_and_is_nothing():
    assert DebugOptions(LogLevel.WARNING, False, "", "", None) == DebugOptions(config=None) == DebugOptions()


@pytest.mark.parametrize("said", ["", "stated"])
def test_the_environments_folder_goes_before_the_stated_one(said, tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path / "environment"))
    (tmp_path / "environment").mkdir()
    path = str(tmp_path / said) if said else ""
    ours = ORTModule(Perceptron(), DebugOptions(save_onnx=True, onnx_prefix="net", save_path=path))
    ours(torch.randn(4, 6)).sum().backward()
    assert len(list((tmp_path / "environment").iterdir())) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["environment"]


def test_ortmodule_is_available_where_torch_is():
    assert training.is_ortmodule_available() and _pybind_state.is_ortmodule_available()
    script = """if True:
        import importlib.util, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
        from ontrain.training import is_ortmodule_available
        print(is_ortmodule_available(), "torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["False", "False"], done.stderr
