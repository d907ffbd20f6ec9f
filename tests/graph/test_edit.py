"""Rewriting in place comes to what a rebuilt graph is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ontrain.graph import (
    Builder,
    annotate,
    drop_dead_nodes,
    edit,
    new_model,
    rebuild,
    source_of,
    sweep,
    to_text,
    verify,
)
from tests.graph.values import value


def model_of(make):
    x = value("x", ["b", 3])
    model = new_model([x], "g")
    results = make(Builder(model.graph), x)
    for i, result in enumerate(results if isinstance(results, tuple) else (results,)):
        result.name = f"y{i}"
        model.graph.outputs.append(result)
    return rebuild(model)


def sines(op, node, inputs):
    return [op.Sin(inputs[0])] if node.op_type == "Exp" else None


def without_tanh(op, node, inputs):
    return [inputs[0]] if node.op_type == "Tanh" else None


def by_constants(op, node, inputs):
    return [op.const(np.float32([[2, 3, 4]]))] if node.op_type == "Exp" else None


def wider(op, node, inputs):
    return [op.Concat(inputs[0], inputs[0], axis=1)] if node.op_type == "Exp" else None


def chain(op, x):
    return op.Tanh(op.Exp(op.Tanh(op.Add(op.Exp(x), op.const(np.float32([2]))))))


def branches(op, x):
    exp = op.Exp(x)
    return op.Tanh(exp), exp, op.Shape(op.Tanh(x)), op.Neg(op.Tanh(x))


def plain(model):
    """The text of a graph, without the numbers of names that a builder made up."""
    return re.sub(r"\b(sin|concat|const|identity|shape)_\d+", r"\1", to_text(model))


@pytest.mark.parametrize("rewrite", [sines, without_tanh, by_constants, wider])
@pytest.mark.parametrize("make", [chain, branches])
def test_a_graph_is_as_if_it_had_been_rebuilt(make, rewrite):
    model = model_of(make)
    rebuilt = rebuild(model, rewrite, typed=True)
    drop_dead_nodes(rebuilt.graph)
    edit(model, rewrite)
    sweep(model.graph)
    verify(model)
    assert plain(model) == plain(rebuilt)


def test_what_is_not_rewritten_stays_the_same_node():
    model = model_of(chain)
    before = {node.op_type: node for node in model.graph}
    edit(model, sines)
    sweep(model.graph)
    assert {node.op_type: node for node in model.graph if node.op_type != "Sin"} == {
        kind: node for kind, node in before.items() if kind != "Exp"
    }


def test_new_nodes_have_the_source_of_the_old_ones():
    model = model_of(chain)
    for node in model.graph:
        annotate(node, f"model.py: {node.op_type}", None)
    edit(model, sines)
    sweep(model.graph)
    assert {source_of(node) for node in model.graph if node.op_type == "Sin"} == {"model.py: Exp"}


def test_constants_that_nobody_reads_go_and_others_are_not_made_twice():
    model = model_of(chain)

    def product(op, node, inputs):
        return [op.Mul(inputs[0], op.const(np.float32([2])))] if node.op_type == "Exp" else None

    edit(model, product)
    sweep(model.graph)
    assert len(model.graph.initializers) == 1
    edit(model, lambda op, node, inputs: [inputs[0]] if node.op_type in ("Mul", "Add") else None)
    sweep(model.graph)
    assert not model.graph.initializers


def test_a_fault_is_blamed_on_the_node():
    def fails(op, node, inputs):
        raise ValueError("too many sines")

    with pytest.raises(Exception, match="Exp cannot be made again") as caught:
        edit(model_of(chain), fails)
    assert "too many sines" in str(caught.value)
