"""Sums of gradients taken where they are needed: a product adds to what it finds, and nothing is left to add up."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ontrain.graph import role_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter

__all__ = ["add_in_place"]

_ADDING = frozenset({"Gemm", "MatMul", "EmbeddingGrad"})
"""Operators whose lowering can add its result to something; see `Emitter.added_to`."""


def add_in_place(e: Emitter, graph: ir.Graph, places: Collection[Buf]) -> None:
    """Let the terms of a sum that is a gradient be added up in the gradient's place, one after the other.

        g₁ = Gemm(…)              g₁ in place
        g₂ = EmbeddingGrad(…)  →  place += EmbeddingGrad(…)
        Add(g₁, g₂)

    So it is for the second use of a tied weight, and for an accumulator, which is the first term. What is kept is
    the order in which terms are computed, not that of the additions.

    Args:
        e: knows the places of sums.
        graph: what will be lowered.
        places: memory of gradients, which is read only after all of them are there.
    """
    position = {node: number for number, node in enumerate(graph)}
    storages = {id(place.storage) for place in places}
    for node in reversed(graph):
        place = e.pinned(node.outputs[0]) if _is_add(node) else None
        if place is None:
            continue
        inner: list[ir.Node] = []
        terms = sorted(_terms(e, node, inner), key=lambda v: position.get(v.producer(), -1))  # type: ignore[arg-type]
        first, *later = terms
        if not all(_can_add(term) for term in later) or any(
            _layout(term) != _layout(node.outputs[0]) for term in terms
        ):
            continue
        if first.is_graph_input() and role_of(first).resident and e.value(first).storage is place.storage:
            if len(first.uses()) > 1 or not e.value(first).same_layout(place):
                continue
        elif id(place.storage) not in storages:
            continue
        elif first.producer() is not None and _only_term(first) and e.pinned(first) is None:
            e.pin(first, place)
        for before, term in zip(terms, later, strict=False):
            e.pin(term, place)
            e.add_to(term, before)
        e.skip(node, terms[-1])
        for one in inner:
            e.skip(one, None)


def _terms(e: Emitter, node: ir.Node, inner: list[ir.Node]) -> list[ir.Value]:
    """The values that a tree of additions adds up; the nodes below its root are appended to `inner`."""
    terms: list[ir.Value] = []
    for value in node.inputs:
        assert value is not None
        producer = value.producer()
        if producer is None or not _is_add(producer) or not _only_term(value) or e.pinned(value) is not None:
            terms.append(value)
        else:
            inner.append(producer)
            terms += _terms(e, producer, inner)
    return terms


def _is_add(node: ir.Node) -> bool:
    return node.op_type == "Add" and node.domain == ""


def _only_term(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _can_add(value: ir.Value) -> bool:
    node = value.producer()
    if node is None or node.op_type not in _ADDING or not _only_term(value):
        return False
    matrices = all(v is not None and v.shape is not None and len(v.shape) == 2 for v in node.inputs[:2])
    return node.op_type == "EmbeddingGrad" or (matrices and len(node.inputs) == 2)


def _layout(value: ir.Value) -> tuple[object, ...]:
    return (value.dtype, *(value.shape.numpy() if value.shape is not None else ()))
