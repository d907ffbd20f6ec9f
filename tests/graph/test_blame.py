"""What goes wrong in the work on a node is an error that names the node."""

from __future__ import annotations

import pytest

from ontrain import GraphError, ProviderError
from ontrain.graph import Builder, annotate, blamed_on, blamed_on_whole, new_model
from tests.graph.values import value


@pytest.fixture
def node():
    x = value("x", [3])
    producer = Builder(new_model([x], "g").graph).Exp(x).producer()
    annotate(producer, "model.py:7: y = x.exp()", None)
    return producer


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("axis"), ZeroDivisionError("by zero"), RuntimeError("no")]
)
def test_what_libraries_raise_becomes_an_error_of_the_node(node, error):
    with pytest.raises(GraphError, match="Exp cannot be made") as caught, blamed_on(node, "Exp cannot be made"):
        raise error
    assert caught.value.source == "model.py:7: y = x.exp()" and type(error).__name__ in caught.value.reason


def test_our_own_error_is_given_the_node_it_lacks(node):
    with pytest.raises(ProviderError) as caught, blamed_on(node, "something"):
        raise ProviderError("no memory", reason="it is full")
    assert caught.value.problem == "no memory" and "Exp" in caught.value.node and caught.value.reason == "it is full"


def test_an_error_that_names_another_node_keeps_it(node):
    with pytest.raises(GraphError) as caught, blamed_on(node, "something"):
        raise GraphError("no", node="Tanh(y)")
    assert caught.value.node == "Tanh(y)"


def test_a_failed_assertion_is_called_a_gap_of_ours(node):
    with pytest.raises(GraphError, match="report it"), blamed_on(node, "something"):
        raise AssertionError


def test_what_says_to_stop_is_no_refusal(node):
    with pytest.raises(KeyboardInterrupt), blamed_on(node, "something"):
        raise KeyboardInterrupt


def test_an_error_in_the_body_of_an_operator_names_the_operators_own_node(node):
    with pytest.raises(GraphError) as caught, blamed_on_whole(node, "Exp cannot be written in other operators"):
        raise GraphError("no", node="Tanh(y)", reason="it is late")
    assert "Exp" in caught.value.node and caught.value.reason == "no: Tanh(y): it is late"
    assert caught.value.source == "model.py:7: y = x.exp()"


def test_an_error_that_names_the_operators_own_node_stays_as_it_is(node):
    with pytest.raises(GraphError) as caught, blamed_on_whole(node, "something"), blamed_on(node, "Exp is late"):
        raise ValueError("no")
    assert caught.value.problem == "Exp is late"
