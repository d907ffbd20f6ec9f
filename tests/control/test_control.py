"""Branches and loops of files run and are differentiated: against onnxruntime, torch and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ontrain.autodiff import differentiate
from ontrain.errors import GradientError
from ontrain.graph import Builder, control, is_float, rebuild, static_dims, verify
from ontrain.graph.evaluator_corrections import CORRECTIONS
from ontrain.passes import FORWARD_PASSES, STEP_PASSES, run_passes
from tests.control.forms import PROVIDERS, nothing, plain_proto, run, session, specialised
from tests.control.models import GROWING, MODELS, ControlModel

# A loop whose shapes change cannot be kept; that it is refused is a test of its own.
FORMS = [(m, form) for form in ("unrolled", "kept") for m in MODELS if (m, form) != (GROWING, "kept")]


every_model = pytest.mark.parametrize(
    ("case", "form"), FORMS, ids=[f"{m.name}-{form}" for m, form in FORMS], indirect=["form"]
)


@pytest.fixture
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Short loops are written out, or all loops are kept."""
    if request.param == "kept":
        monkeypatch.setattr(control, "UNROLL_LIMIT", 0)
    return request.param


@every_model
def test_all_engines_compute_what_onnxruntime_makes_of_the_file(case: ControlModel, form: str) -> None:
    expected = session(onnx.parser.parse_model(case.text)).run(case.outputs, case.inputs)
    model = specialised(case)
    stays = any(node.domain and node.op_type in ("If", "Loop") for node in model.graph)
    assert stays == (case.stays or form == "kept")
    results = {name: run(model, name, case.inputs) for name in PROVIDERS}
    results["onnxruntime"] = dict(
        zip(case.outputs, session(plain_proto(model)).run(case.outputs, case.inputs), strict=True)
    )
    for name, outputs in results.items():
        for output, want in zip(case.outputs, expected, strict=True):
            np.testing.assert_allclose(outputs[output], want, rtol=1e-12, atol=1e-14, err_msg=name)


class Derivatives:
    """A specialised model with adjoints, gradients and gradients of gradients as further inputs and outputs."""

    def __init__(self, case: ControlModel) -> None:
        self.case, rng = case, np.random.default_rng(1)
        self.model = specialised(case)
        graph = self.model.graph
        op = Builder(graph)
        self.feeds: dict[str, Any] = dict(case.inputs)
        self.ys = list(graph.outputs)
        self.wrt = [v for v in graph.inputs if is_float(v) and v.name != "limit"]

        def seeds(values: list[ir.Value], name: str) -> list[ir.Value]:
            adjoints = [
                ir.Value(name=f"{name}{i}", shape=v.shape, type=ir.TensorType(v.dtype)) for i, v in enumerate(values)
            ]
            graph.inputs.extend(adjoints)
            self.feeds.update((v.name, rng.standard_normal(static_dims(v))) for v in adjoints)
            return adjoints

        self.dys = seeds(self.ys, "dy")
        first = differentiate(op, list(zip(self.ys, self.dys, strict=True)), self.wrt)
        assert all(g is not None for g in first)
        self.cotangents = seeds(first, "ddx")
        self.variables = [*self.wrt, *self.dys]
        second = differentiate(op, list(zip(first, self.cotangents, strict=True)), self.variables)
        self.first, self.second = [f"g{i}" for i in range(len(first))], [f"h{i}" for i in range(len(second))]
        self.absent = {name for name, value in zip(self.second, second, strict=True) if value is None}
        for name, value in zip([*self.first, *self.second], [*first, *second], strict=True):
            if value is not None:
                output = op.identity(value)
                output.name = name
                graph.outputs.append(output)
        self.model = rebuild(self.model)
        verify(self.model)

    def by_torch(self) -> dict[str, np.ndarray]:
        floats = {n: torch.tensor(a, requires_grad=np.asarray(a).dtype.kind == "f") for n, a in self.feeds.items()}
        outputs = self.case.twin(**{name: floats[name] for name in self.case.inputs})
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        wrt = [floats[v.name] for v in self.wrt]
        first = torch.autograd.grad(outputs, wrt, [floats[v.name] for v in self.dys], create_graph=True)
        variables = [floats[v.name] for v in self.variables]
        second = torch.autograd.grad(first, variables, [floats[v.name] for v in self.cotangents], allow_unused=True)
        named = zip([*self.first, *self.second], [*first, *second], strict=True)
        return {n: np.zeros(1) if v is None else v.detach().numpy() for n, v in named}


@pytest.mark.sampled(3)
@every_model
def test_first_and_second_derivatives_equal_torch(case: ControlModel, form: str) -> None:
    derivatives = Derivatives(case)
    expected = derivatives.by_torch()
    optimised, _ = run_passes(derivatives.model, [*FORWARD_PASSES, *STEP_PASSES])
    verify(optimised)
    results = {
        "torch": run(derivatives.model, PROVIDERS[0], derivatives.feeds),
        "torch after passes": run(optimised, PROVIDERS[0], derivatives.feeds),
        "reference": run(derivatives.model, PROVIDERS[1], derivatives.feeds),
    }
    proto = plain_proto(derivatives.model)
    names = [o.name for o in proto.graph.output]
    feeds = {i.name: derivatives.feeds[i.name] for i in proto.graph.input}
    results["onnxruntime"] = dict(zip(names, session(proto).run(names, feeds), strict=True))
    for engine, values in results.items():
        for name in [*derivatives.first, *derivatives.second]:
            have = 0.0 if name in derivatives.absent else values[name]
            scale = max(1.0, float(np.abs(expected[name]).max()))
            np.testing.assert_allclose(
                have,
                0 * expected[name] if name in derivatives.absent else np.broadcast_to(expected[name], np.shape(have)),
                rtol=1e-9,
                atol=1e-11 * scale,
                err_msg=f"{engine} {name}",
            )


@every_model
def test_gradients_equal_finite_differences(case: ControlModel, form: str) -> None:
    derivatives = Derivatives(case)
    evaluator = ReferenceEvaluator(plain_proto(derivatives.model), new_ops=CORRECTIONS)
    feeds = {name: np.asarray(a) for name, a in derivatives.feeds.items()}

    def loss(**changes: np.ndarray) -> float:
        ys = evaluator.run(case.outputs, {**feeds, **changes})
        return sum(float((y * feeds[dy.name]).sum()) for y, dy in zip(ys, derivatives.dys, strict=True))

    grads = evaluator.run(derivatives.first, feeds)
    rng, h = np.random.default_rng(2), 1e-6
    for x, grad in zip(derivatives.wrt, grads, strict=True):
        direction = rng.standard_normal(grad.shape)
        ahead, behind = (loss(**{x.name: feeds[x.name] + s * h * direction}) for s in (1, -1))
        np.testing.assert_allclose((grad * direction).sum(), (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-7)


def test_a_gradient_through_random_numbers_in_a_branch_is_refused() -> None:
    text = MODELS[4].text.replace("h = Tanh(m)", "n = RandomNormalLike(m) h = Add(m, n)")
    with pytest.raises(GradientError, match="draws random numbers"):
        Derivatives(ControlModel("random", text, MODELS[4].inputs, nothing))
