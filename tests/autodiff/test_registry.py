"""The rule set as a whole: closed under differentiation, sampled, and well-formed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from ontrain.autodiff import differentiability
from ontrain.errors import GraphError
from ontrain.functions import adopted, composites
from ontrain.graph import DOMAIN, schema_of
from ontrain.operators import OPERATORS
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Op, find_rule, gradient, rules
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES, Sample

# Sampled through the second derivatives of the operators that emit them.
_EMITTED_ONLY = {(DOMAIN, "EmbeddingGrad")}
# Finite differences do not know of rows without gradient (tests/passes/rows/test_labels.py), nor of a gradient that
# is the user's own (tests/capture/test_autograd.py), nor of one past what was written (tests/capture/test_no_grad.py),
# nor that there is one of zeros (tests/training/ortmodule/test_zero_derivatives.py).
_DETACHED = {(DOMAIN, "SpreadRows"), (DOMAIN, "Through"), (DOMAIN, "Revalued"), (DOMAIN, "ConstantIn")}
# Drawn anew by each evaluation: tests/functions/test_draws.py.
_DRAWN = {(DOMAIN, "Dirichlet"), (DOMAIN, "StandardGamma")}
# Their graphs are more than a sample holds: tests/control/.
_WITH_GRAPHS = {(DOMAIN, "If"), (DOMAIN, "Loop")}


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
@pytest.mark.sampled(2)
def test_whatever_a_rule_emits_can_be_differentiated(sample: Sample, rng: np.random.Generator) -> None:
    graph = SampleGraph(sample, sample.draw(rng))
    grads = graph.gradient(graph.y, graph.seeds(graph.y, rng, "dy"), graph.wrt)
    for node in graph.op.nodes:
        assert differentiability(node).available, f"{node.op_type}: {differentiability(node).reason}"
    assert any(g is not None for g in grads)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_gradients_in_half_precision_are_well_typed(sample: Sample, dtype: str, rng: np.random.Generator) -> None:
    half = np.dtype(getattr(ml_dtypes, dtype, dtype))
    arrays = [
        a.astype(half) if a is not None and a.dtype.kind == "f" and i not in sample.single else a
        for i, a in enumerate(sample.draw(rng))
    ]
    try:
        graph = SampleGraph(sample, arrays)
    except GraphError:
        pytest.skip(f"{sample.op_type} takes no {dtype}")
    first = graph.gradient(graph.y, graph.seeds(graph.y, rng, "dy"), graph.wrt)
    first = [g for g in first if g is not None]
    second = graph.gradient(first, graph.seeds(first, rng, "ddx"), graph.wrt)
    graph.proto([*first, *(g for g in second if g is not None)])  # verifies, also with all bodies inlined


def test_every_rule_has_a_sample() -> None:
    sampled = {(s.domain, s.op_type) for s in SAMPLES}
    assert set(rules) - sampled == _EMITTED_ONLY | _WITH_GRAPHS | _DETACHED | _DRAWN


def test_of_two_rules_that_fit_the_one_introduced_later_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules, ("", "Softsign"), [])

    def first(op: Op, dy: Value, x: Value) -> Value:
        return dy

    def later(op: Op, dy: Value, x: Value) -> Value:
        return -dy

    gradient("Softsign", since=1)(first)
    gradient("Softsign", since=22)(later)
    node = ir.Node("", "Softsign", [])
    assert [find_rule(node, opset) for opset in (1, 21, 22, 23)] == [first, first, later, later]


ZEROS = {key for key, record in OPERATORS.items() if record.zero_gradient}


def test_every_name_in_the_registry_is_an_operator() -> None:
    for domain, op_type in {*rules, *ZEROS}:
        ours = op_type in composites if domain == DOMAIN else (domain, op_type) in adopted
        assert ours or schema_of(op_type, domain) is not None, op_type


def test_no_operator_has_both_a_rule_and_a_zero_gradient() -> None:
    assert not rules.keys() & ZEROS
