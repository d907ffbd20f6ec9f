"""A planted mistake is found: the pass, the node, and the line of the model."""

from __future__ import annotations

import os

import pytest

from ontrain import OptionError
from ontrain.passes import NothingWrongError, bisect, pipeline, register_pass, unregister_pass
from tests.passes.planned import TanhByExponentials, eager_loss, loss
from tests.processes import run_file

pytestmark = pytest.mark.usefixtures("captured_once")


@pytest.fixture(params=["early", "last"])
def planted(request):
    after = {"early": "Simplify", "last": None}[request.param]
    register_pass(TanhByExponentials(), stage="forward", after=after)
    trained = [graph_pass.name for graph_pass in pipeline("forward") if not graph_pass.serves]
    yield trained.index("TanhByExponentials") + 1
    unregister_pass("TanhByExponentials", stage="forward")


def is_right():
    return loss() == pytest.approx(eager_loss(), rel=1e-5)


def test_the_pass_and_the_node_are_found(planted):
    culprit = bisect(is_right)
    assert (culprit.number, culprit.name, culprit.stage) == (planted, "TanhByExponentials", "forward")
    # The second Tanh in the order of the graph is the one of rows of length 4.
    assert culprit.rewrite == 2
    assert culprit.node.startswith("Tanh(") and "float[6, 4]" in culprit.node
    assert "planned.py" in culprit.source
    assert culprit.tries <= 2 + len(pipeline("forward")) + len(pipeline("step"))


WRONG_IN_ANOTHER_PROCESS = """
import numpy as np, onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from ontrain.graph import Builder, new_model
from ontrain.passes import RewritePass, Simplify, run_passes

class Doubles(RewritePass):
    def rewrite(self, op, node, inputs):
        return [op.Exp(inputs[0]) * 2.0] if node.op_type == "Exp" else None

x = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
model = new_model([x], "test")
op = Builder(model.graph)
model.graph.outputs.append(op.Tanh(op.Exp(op.Exp(x))))
model, _ = run_passes(model, [Simplify(), Doubles()])
(y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": np.float32([0, -1])})
raise SystemExit(not np.allclose(y, np.tanh(np.exp(np.exp([0, -1])))))
"""


@pytest.mark.thorough
def test_other_processes_are_searched_too(tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text(WRONG_IN_ANOTHER_PROCESS)
    culprit = bisect(lambda: run_file(script, tmp_path, timeout=60).returncode == 0)
    assert (culprit.number, culprit.name, culprit.rewrite) == (2, "Doubles", 1)
    assert culprit.node == "Exp(x: float[2]) -> exp_0: float[2]"


def test_a_number_that_no_pass_made_wrong_is_said_to_be_so():
    culprit = bisect(lambda: loss() < 0)
    assert (culprit.number, culprit.name) == (0, None)
    assert "without any pass" in str(culprit)


def test_nothing_wrong_is_an_error_of_its_own():
    with pytest.raises(NothingWrongError, match="passes with all passes on"):
        bisect(is_right)


def test_a_check_that_answers_neither_true_nor_false_is_refused():
    with pytest.raises(OptionError, match="returned a tuple"):
        bisect(lambda: (None, ()))


def test_a_check_that_plans_nothing_is_refused():
    with pytest.raises(OptionError, match="ran no pass"):
        bisect(lambda: False)


def test_the_environment_is_as_before(monkeypatch):
    monkeypatch.setenv("ONTRAIN_PASS_LIMIT", "99")
    monkeypatch.delenv("ONTRAIN_DUMP", raising=False)
    bisect(lambda: loss() < 0)
    assert os.environ["ONTRAIN_PASS_LIMIT"] == "99" and "ONTRAIN_DUMP" not in os.environ
