"""Small networks as ONNX files, and the same in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x).tanh())


class Convolutional(nn.Module):
    """With batch normalisation, and with both ways to pool.

    No bias before the normalisation: its gradient would be rounding alone, which Adam makes as large as any other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.norm(self.conv1(x)).relu(), 2)
        return self.fc(nn.functional.adaptive_avg_pool2d(self.conv2(x).relu(), 1).flatten(1))


def model_of(
    module: nn.Module, nodes: Sequence[onnx.NodeProto], shape: Sequence[Any], output: Sequence[Any] = ("batch", 5)
) -> onnx.ModelProto:
    """A file with the module's state as initializers; the input is "x", the output "logits"."""
    state = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(t.detach().numpy().copy(), n) for n, t in state.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def perceptron() -> tuple[onnx.ModelProto, Perceptron]:
    module = Perceptron()
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], transB=1),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "fc2.weight", "fc2.bias"], ["logits"], transB=1),
    ]
    return model_of(module, nodes, ["batch", 12]), module


def convolutional() -> tuple[onnx.ModelProto, Convolutional]:
    module = Convolutional()
    norm = [f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
    nodes = [
        helper.make_node("Conv", ["x", "conv1.weight"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", *norm], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "conv2.weight", "conv2.bias"], ["c2"]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["logits"], transB=1),
    ]
    return model_of(module, nodes, ["batch", 1, 8, 8]), module


class FormerAdamW(torch.optim.Optimizer):
    """Hugging Face's former AdamW, which onnxruntime's AdamWOptimizer follows: written down from its formula."""

    def __init__(self, parameters: Any, lr: float, eps: float = 1e-6, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr})
        self.eps, self.weight_decay, self.count = eps, weight_decay, 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.setdefault(p, {"m": torch.zeros_like(p), "v": torch.zeros_like(p)})
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                size = group["lr"] * (1 - 0.999**self.count) ** 0.5 / (1 - 0.9**self.count)
                p -= size * state["m"] / (state["v"].sqrt() + self.eps)
                p -= group["lr"] * self.weight_decay * p


def batches(rng: np.random.Generator, shape: Sequence[int], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of 2, 3, 4, … rows, none of a size that a graph is read off at twice."""
    return [(rng.standard_normal([2 + i, *shape], np.float32), rng.integers(0, 5, 2 + i)) for i in range(count)]
