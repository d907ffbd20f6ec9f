"""Sums of gradients taken where they are needed: a product adds to what it finds, and nothing is left to add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

import onnx_ir as ir

from ontrain.graph import role_of
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.lowering.registry import can_add

__all__ = ["add_in_place"]


def add_in_place(
    graph: ir.Graph, pins: MutableMapping[ir.Value, Buf], bound: Mapping[ir.Value, Buf], places: Iterable[Buf]
) -> tuple[dict[ir.Value, ir.Value], dict[ir.Node, ir.Value | None]]:
    """Let the terms of a sum that is a gradient be added up in the gradient's place, one after the other.

        g₁ = Gemm(…)              g₁ in place
        g₂ = EmbeddingGrad(…)  →  place += EmbeddingGrad(…)
        Add(g₁, g₂)

    So it is for the second use of a tied weight, and for an accumulator, which is the first term. What is kept is
    the order in which terms are computed, not that of the additions.

    Args:
        graph: what will be lowered.
        pins: places of sums; those of their terms are added.
        bound: buffers of graph inputs.
        places: memory of gradients, which is read only after all of them are there.

    Returns:
        What each term is added to, and the nodes that emit nothing, as in `Placement`.
    """
    addends: dict[ir.Value, ir.Value] = {}
    skipped: dict[ir.Node, ir.Value | None] = {}
    position = {node: number for number, node in enumerate(graph)}
    storages = {id(place.storage) for place in places}
    for node in reversed(graph):
        place = pins.get(node.outputs[0]) if _is_add(node) else None
        if place is None:
            continue
        inner: list[ir.Node] = []
        terms = sorted(_terms(pins, node, inner), key=lambda v: _at(position, v))
        first, *later = terms
        if not all(_can_add(term) for term in later) or any(
            _layout(term) != _layout(node.outputs[0]) for term in terms
        ):
            continue
        if first.is_graph_input() and role_of(first).resident and bound[first].storage is place.storage:
            if len(first.uses()) > 1 or not bound[first].same_layout(place):
                continue
        elif id(place.storage) not in storages:
            continue
        elif first.producer() is not None and _only_term(first) and first not in pins:
            pins[first] = place
        for before, term in zip(terms, later, strict=False):
            pins[term] = place
            addends[term] = before
        skipped[node] = terms[-1]
        skipped.update(dict.fromkeys(inner))
    return addends, skipped


def _at(position: Mapping[ir.Node, int], value: ir.Value) -> int:
    producer = value.producer()
    return -1 if producer is None else position[producer]


def _terms(pins: Mapping[ir.Value, Buf], node: ir.Node, inner: list[ir.Node]) -> list[ir.Value]:
    """The values that a tree of additions adds up; the nodes below its root are appended to `inner`."""
    terms: list[ir.Value] = []
    for value in node.inputs:
        assert value is not None
        producer = value.producer()
        if producer is None or not _is_add(producer) or not _only_term(value) or value in pins:
            terms.append(value)
        else:
            inner.append(producer)
            terms += _terms(pins, producer, inner)
    return terms


def _is_add(node: ir.Node) -> bool:
    return node.op_type == "Add" and node.domain == ""


def _only_term(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _can_add(value: ir.Value) -> bool:
    node = value.producer()
    if node is None or not can_add(node) or not _only_term(value):
        return False
    matrices = all(v is not None and v.shape is not None and len(v.shape) == 2 for v in node.inputs[:2])
    return node.op_type == "EmbeddingGrad" or (matrices and len(node.inputs) == 2)


def _layout(value: ir.Value) -> tuple[object, ...]:
    return (value.dtype, *(value.shape.numpy() if value.shape is not None else ()))
