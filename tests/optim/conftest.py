"""Composites and step graphs run by onnx's evaluator after inlining, their state fed back from outputs to inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ontrain.functions import inline_all
from ontrain.graph import Builder, Role, by_role, new_model, set_role, updates_of, verify

Array = np.ndarray[Any, Any]


def as_input(name: str, array: Array, role: Role = Role.INPUT) -> ir.Value:
    dtype = ir.DataType.from_numpy(array.dtype)
    return set_role(ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype)), role)


def evaluator(model: ir.Model) -> ReferenceEvaluator:
    plain = inline_all(model)
    verify(plain, after="inlining")
    return ReferenceEvaluator(ir.to_proto(plain))


class StepRunner:
    """Keeps parameters and state as a session does, and runs step graphs on them.

    Args:
        values: parameters by name; state starts at zero when a graph first asks for it.
    """

    def __init__(self, values: Mapping[str, Array]) -> None:
        self.values = {name: np.array(value) for name, value in values.items()}
        self._ready: dict[int, tuple[ir.Model, ReferenceEvaluator]] = {}

    def __call__(
        self, model: ir.Model, feeds: Mapping[str, Array], *, step: int = 1, lr: float = 0.01,
        loss_scale: float = 1.0,
    ) -> dict[str, Array]:  # fmt: skip
        if id(model) not in self._ready:
            verify(model)
            self._ready[id(model)] = model, evaluator(model)
        for value in by_role(model.graph, Role.STATE):
            zero = np.zeros(value.shape.numpy(), value.dtype.numpy())
            self.values.setdefault(value.name, zero)
        hyper = {"learning_rate": lr, "step": step, "loss_scale": loss_scale}
        fed = {**self.values, **feeds, **{name: np.array(value, np.float32) for name, value in hyper.items()}}
        wanted = {v.name for v in model.graph.inputs}
        names = [v.name for v in model.graph.outputs]
        results = self._ready[id(model)][1].run(names, {name: fed[name] for name in wanted})
        outputs = dict(zip(names, map(np.asarray, results), strict=True))
        for value in model.graph.outputs:
            target = updates_of(value)
            if target is not None:
                self.values[target] = outputs.pop(value.name)
        return outputs

    def reset_accumulators(self) -> None:
        for name in [name for name in self.values if name.endswith((".grad_acc", "loss_weight_acc"))]:
            del self.values[name]


@pytest.fixture
def step_runner() -> type[StepRunner]:
    return StepRunner


@pytest.fixture
def run_composite() -> Callable[..., list[Array]]:
    """run_composite(name, *arrays, outputs=3, **attributes): the outputs of one composite's body; None is absent."""

    def run(name: str, *arrays: Array | None, outputs: int = 3, **attributes: Any) -> list[Array]:
        inputs = [None if a is None else as_input(f"i{i}", a) for i, a in enumerate(arrays)]
        model = new_model([v for v in inputs if v is not None], name)
        results = Builder(model.graph).composite(name, *inputs, outputs=outputs, **attributes)
        model.graph.outputs.extend(results if isinstance(results, tuple) else (results,))
        feeds = {f"i{i}": a for i, a in enumerate(arrays) if a is not None}
        return [np.asarray(array) for array in evaluator(model).run(None, feeds)]

    return run


@pytest.fixture
def evaluate() -> Callable[[Callable[[Builder, dict[str, ir.Value]], ir.Value], Mapping[str, Array]], Array]:
    """evaluate(build, feeds): the value of what `build(op, inputs)` appends to a graph with these inputs."""

    def run(build: Callable[[Builder, dict[str, ir.Value]], ir.Value], feeds: Mapping[str, Array]) -> Array:
        inputs = {name: as_input(name, array) for name, array in feeds.items()}
        model = new_model(list(inputs.values()), "built")
        op = Builder(model.graph)
        model.graph.outputs.append(op.Identity(build(op, inputs)))
        return np.asarray(evaluator(model).run(None, dict(feeds))[0])

    return run
