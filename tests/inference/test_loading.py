"""What a session makes while it loads a file: each node a few times, however many passes there are."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import ontrain
from ontrain.inference.graph_inference import GraphSession

MANY = 60
OPERATORS = ("Relu", "Sigmoid", "Tanh", "Neg", "Exp", "Abs")


@pytest.fixture
def created(monkeypatch):
    """Counts the nodes that are made."""
    make, counts = ir.Node.__init__, [0]

    def counted(node, *args, **kwargs):
        counts[0] += 1
        make(node, *args, **kwargs)

    monkeypatch.setattr(ir.Node, "__init__", counted)
    return counts


def chain(length: int) -> bytes:
    nodes = [helper.make_node(OPERATORS[i % len(OPERATORS)], [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "chain", [value("v0", TensorProto.FLOAT, ["n", 4])], [value(f"v{length}", TensorProto.FLOAT, ["n", 4])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def opened(model: bytes) -> ontrain.InferenceSession:
    return ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])


def test_a_file_that_no_pass_changes_is_read_and_typed_and_not_made_again_for_each_pass(created):
    session = opened(chain(MANY))
    assert created[0] <= 2 * MANY
    created[0] = 0
    session.run(None, {"v0": np.ones((2, 4), np.float32)})
    assert created[0] <= 5 * MANY  # with its sizes, where nodes of the plan are fused, and twice where they run in rows


def test_what_is_found_in_a_file_without_work_is_forgotten():
    session = GraphSession(onnx.load_model_from_string(chain(3)), "TorchExecutionProvider", {})
    assert "ontrain.weights" not in session._whole._model.graph.meta


def test_the_collector_waits_until_a_file_is_loaded_and_goes_on(monkeypatch):
    init, running = GraphSession.__init__, []

    def looked(*args, **kwargs):
        running.append(gc.isenabled())
        init(*args, **kwargs)

    monkeypatch.setattr(GraphSession, "__init__", looked)
    opened(chain(3))
    assert running == [False] and gc.isenabled()
    with pytest.raises(ontrain.GraphError):
        opened(chain(3).replace(b"Relu", b"Rely"))
    assert gc.isenabled()
