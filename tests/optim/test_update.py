"""The update on its own is that of a whole step, and LAMB's two halves are one update."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.optim import OptimizerSpec, Part, build_lamb_directions, build_lamb_moves, build_update
from ontrain.providers import StateSpec, get_provider

HYPER = {"learning_rate": 0.03, "step": 3.0, "loss_scale": 4.0, "norm": 8.0}
SPECS = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"weight_decay": 0.01},
    "AdamW": {"weight_decay": 0.01, "mode": 1},
    "Lamb": {"weight_decay": 0.01, "ratio_max": 2.0},
}


def filled(provider, spec: OptimizerSpec, parts: list[Part], rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """A state of the parts with gradients and moments, which are positive."""
    specs = []
    for part in parts:
        kinds = {"": "parameter", ".grad_acc": "gradient", **{f".{k}": k for k in spec.state_kinds(part.parameter)}}
        specs += [StateSpec(part.name + end, part.shape, part.dtype, kind) for end, kind in kinds.items()]
    state = provider.create_state(specs)
    for name in state:
        state[name] = rng.random(tuple(state[name].shape)) + 0.1
    return state


@pytest.mark.parametrize("algorithm", SPECS)
def test_providers_agree_on_the_update(algorithm, rng):
    spec = OptimizerSpec(algorithm, SPECS[algorithm])
    parts = [Part("a", "a", (3, 2), ir.DataType.DOUBLE), Part("b", "b", (4,), ir.DataType.DOUBLE)]
    model = build_update(parts, spec, max_norm=0.5)
    seen = []
    for name in ("TorchExecutionProvider", "ReferenceExecutionProvider"):
        provider = get_provider(name, "cpu")
        state = filled(provider, spec, parts, np.random.default_rng(4))
        provider.compile(model, state).run(HYPER)
        seen.append({key: torch.as_tensor(state[key]).numpy().copy() for key in state if not key.endswith("grad_acc")})
    for key, value in seen[0].items():
        np.testing.assert_allclose(value, seen[1][key], rtol=1e-7, atol=1e-9)


def test_clipping_sees_the_norm_that_is_given():
    """The scale is that of torch.nn.utils.clip_grad_norm_ for a gradient of norm 8 / 4."""
    spec = OptimizerSpec("SGD")
    parts = [Part("a", "a", (2,), ir.DataType.DOUBLE)]
    provider = get_provider("TorchExecutionProvider", "cpu")
    state = filled(provider, spec, parts, np.random.default_rng(4))
    before, grad = (torch.as_tensor(state[name]).clone() for name in ("a", "a.grad_acc"))
    provider.compile(build_update(parts, spec, max_norm=0.5), state).run(HYPER)
    expected = before - 0.03 * (grad / 4) * (0.5 / (2 + 1e-6))
    torch.testing.assert_close(torch.as_tensor(state["a"]), expected, rtol=1e-6, atol=1e-8)


def test_lamb_in_two_halves_over_parts_is_lamb():
    """Two processes with parts of one tensor, whose squares are added up between the halves."""
    spec = OptimizerSpec("Lamb", SPECS["Lamb"])
    provider = get_provider("TorchExecutionProvider", "cpu")
    whole = [Part("a", "a", (7,), ir.DataType.DOUBLE)]
    state = filled(provider, spec, whole, np.random.default_rng(4))
    before = {name: torch.as_tensor(state[name]).clone() for name in state}
    provider.compile(build_update(whole, spec, max_norm=0.5), state).run(HYPER)
    halves, squares = [], []
    for start, stop in ((0, 3), (3, 7)):
        part = [Part(f"a[{start}:{stop}]", "a", (stop - start,), ir.DataType.DOUBLE)]
        own = filled(provider, spec, part, np.random.default_rng(4))
        for name in own:
            own[name] = before[name.replace(part[0].name, "a")][start:stop]
        squares.append(provider.compile(build_lamb_directions(part, spec, max_norm=0.5), own).run(HYPER))
        halves.append((part, own))
    added = {name: sum(sums[name] for sums in squares) for name in ("param_squares", "update_squares")}
    for part, own in halves:
        provider.compile(build_lamb_moves(part, spec), own).run({**HYPER, **added})
    for kind in ("", ".exp_avg", ".exp_avg_sq"):
        joined = torch.cat([torch.as_tensor(own[part[0].name + kind]) for part, own in halves])
        torch.testing.assert_close(joined, torch.as_tensor(state["a" + kind]), rtol=1e-12, atol=1e-12)
