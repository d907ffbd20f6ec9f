"""What an ORTModule writes and says when asked."""

import logging

import onnx
import pytest
import torch

from ontrain import OptionError
from ontrain.training.ortmodule import DebugOptions, LogLevel, ORTModule
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


def test_captures_are_logged(caplog):
    with caplog.at_level(logging.INFO):
        ours = ORTModule(Perceptron(), DebugOptions(log_level=LogLevel.INFO))
        ours(torch.randn(4, 6))
    assert "captured Perceptron in training mode" in caplog.text


@pytest.mark.parametrize("options", [dict(save_onnx=True), dict(log_level="loud")])
def test_wrong_options(options):
    with pytest.raises(OptionError):
        DebugOptions(**options)
