"""Functions that call functions end in a right answer or a named error, by every way that reads a file."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ontrain import GraphError, InferenceSession, OptionError
from ontrain.capture import load_onnx
from ontrain.files import check_expansion
from ontrain.limits import NESTING, NODE_LIMIT
from ontrain.session.check import check_file
from ontrain.training import ORTTrainer, ORTTrainerOptions, optim
from tests.capture.onnx_file.models import node, value

PROVIDERS = ["CPUExecutionProvider", "TorchExecutionProvider", "ReferenceExecutionProvider"]
IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]


def function(
    name: str, nodes: list, takes: str = "a", gives: str = "b", domain: str = "c", **more
) -> onnx.FunctionProto:
    return helper.make_function(domain, name, takes.split(), gives.split(), nodes, IMPORTS, **more)


def model(functions: list, *calls: onnx.NodeProto) -> onnx.ModelProto:
    """x to the nodes' h, and its mean times a weight to y."""
    tail = [node("ReduceMean", "h", "m", keepdims=0), node("Mul", "m w", "y")]
    stored = [
        numpy_helper.from_array(np.array(v, t), k)
        for k, v, t in (("w", 1, np.float32), ("go", True, bool), ("n", 1, np.int64))
    ]
    graph = helper.make_graph([*calls, *tail], "g", [value("x", [2])], [value("y", [])], stored)
    return helper.make_model(graph, opset_imports=IMPORTS, functions=functions, ir_version=10)


def branch(result: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [value(result, [2])])


def nodeless(levels: int) -> onnx.ModelProto:
    """Functions without a node, which the next level calls twice."""
    calls = [helper.make_node(f"f{i}", [], [], domain="c") for i in range(levels + 1)]
    functions = [function("f0", [], "", "")]
    functions += [function(f"f{i}", [calls[i - 1]] * 2, "", "") for i in range(1, levels + 1)]
    return model(functions, calls[-1], node("Relu", "x", "h"))


def handed_on(levels: int) -> onnx.ModelProto:
    """Functions that return what they take, through twice as many calls a level."""
    functions = [function("f0", [], "a", "a")]
    for i in range(1, levels + 1):
        calls = [node(f"f{i - 1}", "a", "m", domain="c"), node(f"f{i - 1}", "m", "b", domain="c")]
        functions.append(function(f"f{i}", calls))
    return model(functions, node(f"f{levels}", "x", "h", domain="c"))


def branches(levels: int) -> onnx.ModelProto:
    """Functions that call the one before in a branch."""
    functions = [function("f0", [node("Relu", "a", "b")], "a go")]
    for i in range(1, levels + 1):
        deeper, flat = node(f"f{i - 1}", "a go", "t", domain="c"), node("Neg", "a", "e")
        either = node("If", "go", "b", then_branch=branch("t", deeper), else_branch=branch("e", flat))
        functions.append(function(f"f{i}", [either], "a go"))
    return model(functions, node(f"f{levels}", "x go", "h", domain="c"))


def loops(levels: int) -> onnx.ModelProto:
    """Functions that call the one before in the body of a loop."""
    functions = [function("f0", [node("Relu", "a", "b")], "a n go")]
    for i in range(1, levels + 1):
        taken = [value("i", [], TensorProto.INT64), value("g", [], TensorProto.BOOL), value("v", [2])]
        nodes = [node("Identity", "g", "g2"), node(f"f{i - 1}", "v n go", "v2", domain="c")]
        body = helper.make_graph(nodes, "body", taken, [value("g2", [], TensorProto.BOOL), value("v2", [2])])
        functions.append(function(f"f{i}", [node("Loop", "n go a", "b", body=body)], "a n go"))
    return model(functions, node(f"f{levels}", "x n go", "h", domain="c"))


def constants(calls: int, size: int) -> onnx.ModelProto:
    """A function with a constant of so many bytes, called so often."""
    zeros = numpy_helper.from_array(np.zeros(size // 4, np.float32))
    nodes = [node("Constant", "", "k", value=zeros), node("ReduceMax", "k", "m", keepdims=0), node("Add", "a m", "b")]
    names = ["x", *(f"v{i}" for i in range(1, calls)), "h"]
    chain = [node("f", p, q, domain="c") for p, q in zip(names, names[1:], strict=False)]
    return model([function("f", nodes)], *chain)


def circle(across: str) -> onnx.ModelProto:
    """A function that stands for Relu and calls Relu, under the other name of the standard's domain."""
    other = {"": "ai.onnx", "ai.onnx": ""}[across]
    return model([function("Relu", [node("Relu", "a", "b", domain=other)], domain=across)], node("Relu", "x", "h"))


def twice() -> onnx.ModelProto:
    return model([function("f", [node("Relu", "a", "b")]), function("f", [])], node("f", "x", "h", domain="c"))


HOSTILE = {
    "calls of nothing": (lambda: nodeless(16), r"expand to 131071 calls"),
    "values handed on": (lambda: handed_on(16), r"expand to 131071 calls"),
    "branches": (lambda: branches(300), "nested 300 deep"),
    "loops": (lambda: loops(100), "nested 100 deep"),
    "constants": (lambda: constants(600, 1 << 20), r"expand to 6\d{8} bytes"),
    "a circle": (lambda: circle(""), "calls itself"),
    "a circle the other way": (lambda: circle("ai.onnx"), "calls itself"),
    "two of a name": (twice, "defines a function twice"),
}


def infer(provider: str):
    def way(proto: onnx.ModelProto) -> float:
        session = InferenceSession(proto.SerializeToString(), providers=[provider])
        return float(session.run(None, {"x": np.array([1, 3], np.float32)})[0])

    return way


WAYS = {provider: infer(provider) for provider in PROVIDERS}


def _trainer(proto: onnx.ModelProto) -> ORTTrainer:
    described = {"inputs": [("x", [2])], "outputs": [("y", [], True)]}
    return ORTTrainer(proto, described, optim.SGDConfig(lr=0.1), options=ORTTrainerOptions({"device": {"id": "cpu"}}))


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("way", [*WAYS, "load_onnx", "training"])
def test_functions_that_come_to_too_much_are_refused_before_anyone_inlines_them(hostile, way):
    build, says = HOSTILE[hostile]
    proto = build()
    with pytest.raises(GraphError, match=says):
        {**WAYS, "load_onnx": load_onnx, "training": _trainer}[way](proto)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_check_reports_that_functions_come_to_too_much(tmp_path, hostile):
    build, says = HOSTILE[hostile]
    onnx.save(build(), tmp_path / "model.onnx")
    (problem,) = check_file(tmp_path / "model.onnx").problems
    assert re.search(says, str(problem))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "build",
    [lambda: nodeless(3), lambda: branches(6), lambda: loops(4), lambda: constants(5, 400)],
    ids=["nodeless", "branches", "loops", "constants"],
)
def test_functions_of_moderate_size_have_the_right_answer(way, build):
    assert WAYS[way](build()) == 2.0


@pytest.mark.parametrize("way", PROVIDERS[1:])
def test_values_that_functions_hand_on_are_the_callers(way):
    """Onnxruntime refuses functions without nodes that have operands."""
    assert WAYS[way](handed_on(3)) == 2.0


def test_a_number_that_no_message_holds_is_named():
    """2^20000 has 6,000 digits: Python refuses to write it."""
    with pytest.raises(GraphError, match=r"expand to more than 1\d+ calls"):
        check_expansion(nodeless(20_000), "the model")


def test_the_user_sets_how_many_nodes_functions_may_come_to(monkeypatch):
    proto = handed_on(4)
    monkeypatch.setenv(NODE_LIMIT, "31")
    check_expansion(proto, "the model")
    monkeypatch.setenv(NODE_LIMIT, "30")
    with pytest.raises(GraphError, match=rf"(?s)expand to 31 calls.*more than 30.*set {NODE_LIMIT}"):
        check_expansion(proto, "the model")
    for wish in ("none", "0", "-1", "3.5"):
        monkeypatch.setenv(NODE_LIMIT, wish)
        with pytest.raises(OptionError, match=f"{NODE_LIMIT} is '{wish}'"):
            check_expansion(proto, "the model")


def test_subgraphs_may_lie_in_each_other_up_to_the_limit():
    for levels in (1, NESTING):
        check_expansion(branches(levels), "the model")
    with pytest.raises(GraphError, match=f"nested {NESTING + 1} deep"):
        check_expansion(branches(NESTING + 1), "the model")


def test_a_file_may_come_to_twice_what_it_states():
    """A function of 11,000 nodes that is called twice comes to more than 20,000, of which the file states half."""
    names = ["a", *(f"v{i}" for i in range(1, 11_000)), "b"]
    long = function("long", [node("Neg", p, q) for p, q in zip(names, names[1:], strict=False)])
    calls = [node("long", "x", "k", domain="c"), node("long", "k", "h", domain="c")]
    check_expansion(model([long], *calls), "the model")
    with pytest.raises(GraphError, match="expand to 33002 nodes"):
        check_expansion(
            model([long], *calls[:1], node("long", "k", "l", domain="c"), node("long", "l", "h", domain="c")), ""
        )
