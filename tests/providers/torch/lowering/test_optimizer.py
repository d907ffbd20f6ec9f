"""The kernels that update parameters, several steps long, against torch.optim and against LAMB as it was published."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.optim import OptimizerSpec, Part, build_update
from ontrain.providers import StateSpec, get_provider

STEPS, RATE = 6, 0.05
# Two parameters lie side by side and are updated as one; the third begins at zero.
SHAPES = {"a": (5, 3), "b": (7,), "zero": (4,)}


class Kernels:
    """The update on the torch provider, its state at hand."""

    def __init__(self, spec: OptimizerSpec, start: dict[str, torch.Tensor], dtype: ir.DataType) -> None:
        parts = [Part(name, name, tuple(tensor.shape), dtype) for name, tensor in start.items()]
        specs = []
        for part in parts:
            kinds = {"": "parameter", ".grad_acc": "gradient", **{f".{k}": k for k in spec.state_kinds(part.name)}}
            specs += [StateSpec(part.name + end, part.shape, dtype, kind) for end, kind in kinds.items()]
        provider = get_provider("TorchExecutionProvider")
        self.state = provider.create_state(specs)
        for name, tensor in start.items():
            self.state[name] = tensor
        self._executable = provider.compile(build_update(parts, spec), self.state)

    def step(self, number: int, grads: dict[str, torch.Tensor], scale: float) -> None:
        """Update with gradients that are `scale` times too large."""
        for name, grad in grads.items():
            self.state[f"{name}.grad_acc"] = grad * scale
        hyper = {"learning_rate": RATE, "step": float(number), "loss_scale": scale}
        self._executable.run({**hyper, "norm": 1.0})

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.as_tensor(self.state[name]).clone()


def drawn(rng: np.random.Generator) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    start = {name: torch.tensor(rng.standard_normal(shape)) for name, shape in SHAPES.items()}
    start["zero"].zero_()
    grads = [{name: torch.tensor(rng.standard_normal(shape)) for name, shape in SHAPES.items()} for _ in range(STEPS)]
    return start, grads


TORCHS = {
    "SGD": (torch.optim.SGD, {}, "SGD", {}),
    "SGD with decay": (torch.optim.SGD, {"weight_decay": 0.1}, "SGD", {"weight_decay": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"momentum": 0.9}, "SGD", {"momentum": 0.9}),
    "SGD dampened": (
        torch.optim.SGD, {"momentum": 0.9, "dampening": 0.4}, "SGD", {"momentum": 0.9, "dampening": 0.4},
    ),
    "SGD of Nesterov": (
        torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}, "SGD",
        {"momentum": 0.8, "nesterov": 1, "weight_decay": 0.1},
    ),
    "Adam": (torch.optim.Adam, {"betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-3}, "Adam",
             {"alpha": 0.8, "beta": 0.95, "weight_decay": 0.1, "epsilon": 1e-3}),
    "AdamW": (torch.optim.AdamW, {"betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-3}, "AdamW",
              {"alpha": 0.8, "beta": 0.95, "weight_decay": 0.1, "epsilon": 1e-3}),
    "Adam without memory": (torch.optim.Adam, {"betas": (0.0, 0.0), "eps": 1e-3}, "Adam",
                            {"alpha": 0.0, "beta": 0.0, "epsilon": 1e-3}),
    "AdamW without momentum": (torch.optim.AdamW, {"betas": (0.0, 0.95), "weight_decay": 0.1, "eps": 1e-3}, "AdamW",
                               {"alpha": 0.0, "beta": 0.95, "weight_decay": 0.1, "epsilon": 1e-3}),
}  # fmt: skip
MOMENTS = {"momentum_buffer": "momentum_buffer", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", TORCHS)
def test_each_step_is_torchs(name, dtype, rng):
    make, options, algorithm, attributes = TORCHS[name]
    start, grads = drawn(rng)
    start = {key: tensor.to(dtype) for key, tensor in start.items()}
    params = {key: torch.nn.Parameter(tensor.clone()) for key, tensor in start.items()}
    optimizer = make(list(params.values()), lr=RATE, **options)
    kinds = ir.DataType.DOUBLE if dtype == torch.float64 else ir.DataType.FLOAT
    kernels = Kernels(OptimizerSpec(algorithm, attributes), start, kinds)
    for number, grad in enumerate(grads, 1):
        for key, param in params.items():
            param.grad = grad[key].to(dtype)
        optimizer.step()
        kernels.step(number, {key: tensor.to(dtype) for key, tensor in grad.items()}, 4.0)
        for key, param in params.items():
            # The learning rate is in single precision.
            torch.testing.assert_close(kernels[key], param.detach(), rtol=1e-5, atol=1e-6)
            for kind, theirs in MOMENTS.items():
                if theirs in optimizer.state[param]:
                    torch.testing.assert_close(
                        kernels[f"{key}.{kind}"], optimizer.state[param][theirs], rtol=1e-5, atol=1e-6
                    )


@pytest.mark.parametrize("alpha", [0.8, 0.0])
@pytest.mark.parametrize("corrected", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
def test_decay_before_and_after_the_update_are_formulas(mode, corrected, alpha, rng):
    """torch.optim has the first of these two, and both with bias correction only."""
    start, grads = drawn(rng)
    settings = {"alpha": alpha, "beta": 0.95, "epsilon": 1e-3, "weight_decay": 0.2}
    spec = OptimizerSpec("AdamW", {**settings, "mode": mode, "bias_correction": corrected})
    kernels = Kernels(spec, start, ir.DataType.DOUBLE)
    p = {key: tensor.clone() for key, tensor in start.items()}
    m, v = ({key: torch.zeros_like(tensor) for key, tensor in start.items()} for _ in range(2))
    for number, grad in enumerate(grads, 1):
        kernels.step(number, grad, 2.0)
        first, second = (1 - alpha**number, 1 - 0.95**number) if corrected else (1.0, 1.0)
        for key, g in grad.items():
            m[key] = alpha * m[key] + (1 - alpha) * g
            v[key] = 0.95 * v[key] + 0.05 * g * g
            if mode == 0:
                p[key] = p[key] * (1 - RATE * 0.2)
                p[key] = p[key] - RATE * (m[key] / first) / ((v[key] / second).sqrt() + 1e-3)
            else:
                p[key] = p[key] - RATE * math.sqrt(second) / first * m[key] / (v[key].sqrt() + 1e-3)
                p[key] = p[key] * (1 - RATE * 0.2)
            torch.testing.assert_close(kernels[key], p[key], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bounds", [{}, {"ratio_min": 0.9}, {"ratio_max": 0.2}], ids=str)
@pytest.mark.parametrize(("decay", "alpha"), [(0.0, 0.8), (0.1, 0.8), (0.1, 0.0)])
def test_lamb_is_the_published_algorithm(decay, alpha, bounds, rng):
    start, grads = drawn(rng)
    attributes = {"alpha": alpha, "beta": 0.95, "epsilon": 1e-3, "weight_decay": decay, **bounds}
    kernels = Kernels(OptimizerSpec("Lamb", attributes), start, ir.DataType.DOUBLE)
    p = {key: tensor.clone() for key, tensor in start.items()}
    m, v = ({key: torch.zeros_like(tensor) for key, tensor in start.items()} for _ in range(2))
    low, high = bounds.get("ratio_min", -math.inf), bounds.get("ratio_max", math.inf)
    for number, grad in enumerate(grads, 1):
        kernels.step(number, grad, 2.0)
        for key, g in grad.items():
            m[key] = alpha * m[key] + (1 - alpha) * g
            v[key] = 0.95 * v[key] + 0.05 * g * g
            u = (m[key] / (1 - alpha**number)) / ((v[key] / (1 - 0.95**number)).sqrt() + 1e-3) + decay * p[key]
            # A weight that is zero moves by the update itself.
            ratio = min(max(float(p[key].norm() / u.norm()), low), high) if p[key].any() else 1.0
            p[key] = p[key] - RATE * ratio * u
            torch.testing.assert_close(kernels[key], p[key], rtol=1e-6, atol=1e-7)
