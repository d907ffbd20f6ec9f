"""Bodies within bodies: they come to plain operators, or to an error that names the operator."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain import GraphError
from ontrain.functions import inline_all
from ontrain.functions.registry import adopted, composite
from ontrain.graph import Builder, new_model
from tests.providers.graphs import float_input

DOMAIN = "test.bodies"


@pytest.fixture
def bodies():
    """Registers composites of a domain of the tests' own."""
    known = dict(adopted)
    yield lambda name: composite(name, domain=DOMAIN, like=[0])
    adopted.clear()
    adopted.update(known)


def graph_of(name: str, **attributes) -> ir.Model:
    x = float_input("x", (2,))
    model = new_model([x], "bodies")
    model.graph.outputs.append(Builder(model.graph).call(DOMAIN, name, [x], attributes))
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_a_body_that_holds_its_operator_twice_is_refused_before_it_doubles(bodies):
    @bodies("Twice")
    def twice(op, x):
        return op.call(DOMAIN, "Twice", [op.call(DOMAIN, "Twice", [x], {})], {})

    with pytest.raises(GraphError, match=r"(?s)Twice cannot be written.*the same operator again"):
        inline_all(graph_of("Twice"))


def test_two_bodies_that_come_to_each_other_are_refused(bodies):
    @bodies("There")
    def there(op, x):
        return op.Add(op.call(DOMAIN, "Back", [x], {}), op.call(DOMAIN, "Back", [op.Neg(x)], {}))

    @bodies("Back")
    def back(op, x):
        return op.Add(op.call(DOMAIN, "There", [x], {}), op.call(DOMAIN, "There", [op.Neg(x)], {}))

    with pytest.raises(GraphError, match=r"(?s)There cannot be written.*the same operator again"):
        inline_all(graph_of("There"))


def test_a_body_may_come_to_its_operator_with_another_attribute(bodies):
    @bodies("Power")
    def power(op, x, *, n=1):
        return op.Mul(x, op.call(DOMAIN, "Power", [x], {"n": n - 1})) if n > 1 else op.Identity(x)

    assert operators(inline_all(graph_of("Power", n=4))).count("Mul") == 3


def test_an_operator_may_stand_behind_itself(bodies):
    """Each of the two is a use of its own: neither is in the other's body."""

    @bodies("Outer")
    def outer(op, x):
        return op.call(DOMAIN, "Inner", [op.call(DOMAIN, "Inner", [x], {})], {})

    @bodies("Inner")
    def inner(op, x):
        return op.Tanh(x)

    assert operators(inline_all(graph_of("Outer"))) == ["Tanh", "Tanh"]
