"""Arithmetic on values of a graph: each thread's nodes go to the builder that it is using."""

from __future__ import annotations

import threading

import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model
from tests.providers.graphs import float_input
from tests.threads import at_once


def builder() -> tuple[Builder, ir.Value]:
    x = float_input("x", (2,))
    return Builder(new_model([x], "arithmetic").graph), x


@pytest.mark.parametrize("first_leaves", [True, False])
def test_two_threads_write_into_their_own_graphs(first_leaves):
    """Both are inside at the same time, and leave in either order."""
    both, one_left = threading.Barrier(2), threading.Event()
    nodes = {}

    def work(name: str, leaves_first: bool) -> None:
        op, x = builder()
        with op.arithmetic():
            both.wait(30)
            y = -(x * 2.0 + x) / (1.0 - x)
            both.wait(30)
            if not leaves_first:
                assert one_left.wait(30)
                y = y - x
        one_left.set()
        nodes[name] = [node.op_type for node in op.nodes]
        assert all(node.graph is op.graph for node in op.nodes)

    at_once(lambda: work("a", first_leaves), lambda: work("b", not first_leaves))
    early, late = ("a", "b") if first_leaves else ("b", "a")
    assert nodes[early] == ["Mul", "Add", "Neg", "Sub", "Div"]
    assert nodes[late] == ["Mul", "Add", "Neg", "Sub", "Div", "Sub"]


def test_blocks_nest():
    (outer, x), (inner, y) = builder(), builder()
    with outer.arithmetic():
        with inner.arithmetic():
            y + y
        x * x
    assert [node.op_type for node in outer.nodes] == ["Mul"]
    assert [node.op_type for node in inner.nodes] == ["Add"]


def test_another_librarys_handler_stays_that_of_its_threads():
    class Theirs:
        def Add(self, left, right):
            return "theirs"

    (op, x), (_, y) = builder(), builder()
    before = ir.set_value_magic_handler(Theirs())
    try:
        with op.arithmetic():
            x + x
            answers = []
            at_once(lambda: answers.append(y + y))
        assert answers == ["theirs"] and y + y == "theirs"
    finally:
        ir.set_value_magic_handler(before)
    assert [node.op_type for node in op.nodes] == ["Add"]


def test_outside_of_a_block_there_is_no_arithmetic():
    op, x = builder()
    with op.arithmetic():
        pass
    with pytest.raises(ValueError, match="No magic handler"):
        x + x
    seen = []

    def elsewhere():
        with pytest.raises(ValueError, match="outside of a builder"):
            x + x
        seen.append(True)

    with op.arithmetic():
        at_once(elsewhere)
    assert seen and not op.nodes
