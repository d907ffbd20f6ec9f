"""Scores of padding, which a softmax over all places of a sequence has among its candidates."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder, emit, is_float, live_nodes, rebuild, static_dims
from ontrain.operators import record_of
from ontrain.passes.infra import Pass, note
from ontrain.passes.rows.labels import losses
from ontrain.passes.rows.layout import Layout
from ontrain.passes.rows.section import Demand, Section, find_section
from ontrain.passes.rows.seen import seen_keys

__all__ = ["HidePaddedCandidates"]

_HIDDEN, _HIDDEN_HALF = -1e9, -3e4
"""What stands in place of a score, also where numbers go to 65,504: next to any other nothing is left of its weight."""


class HidePaddedCandidates(Pass):
    """Take padding from the candidates of a softmax over the places of a sequence.

        scores [B, L] ─ SoftmaxCrossEntropyLoss(place of the answer [B])
    →   Where(seen [B, L], scores, −10⁹) ─ SoftmaxCrossEntropyLoss(place of the answer [B])
        with seen: the keys that some query of the attentions before it sees

    This is another loss: in question answering as Hugging Face writes it padded tokens are possible answers, and the
    model learns to give them low scores. Here they are none, in training as at prediction, where they are never taken.
    So nobody reads what is computed for them, and `EliminatePadding` packs the real tokens through the whole model. An
    answer that lies in the padding costs 10⁹. The pass runs only where it is registered:

        register_pass(HidePaddedCandidates(), stage="forward", after="ShareCommonSubexpressions")

    Left alone: classes that are no tokens, scores of another shape than an attention's sequences and keys, and masks
    that depend on more than the batch.
    """

    changes_numerics = True

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Rewrite the losses whose scores have a candidate a token."""
        seen = {shape: keep for shape, bias in _biases(model.graph).items() if (keep := seen_keys(model, bias, shape))}
        chosen = {node: seen[shape] for node, shape in _scored(model.graph).items() if shape in seen}
        if not chosen:
            return model, 0

        def rewrite(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
            keep = chosen.get(node)
            if keep is None or inputs[0] is None:
                return None
            by_name = {v.name: v for v in op.graph.inputs}
            (condition,) = emit(op, keep.graph, [by_name[v.name] for v in keep.graph.inputs])
            low = _HIDDEN_HALF if inputs[0].dtype == ir.DataType.FLOAT16 else _HIDDEN
            hidden = op.Where(condition, inputs[0], op.const(low, inputs[0].dtype))
            copy = ir.Node(
                node.domain, node.op_type, [hidden, *inputs[1:]], node.attributes.values(),
                num_outputs=len(node.outputs),
            )  # fmt: skip
            outputs = op.add(copy, [v.name for v in node.outputs])
            return outputs if isinstance(outputs, tuple) else (outputs,)

        for node in chosen:
            note(f"{node.outputs[0].name}: padding is no candidate")
        return rebuild(model, rewrite), len(chosen)


def _scored(graph: ir.Graph) -> dict[ir.Node, tuple[int, ...]]:
    """Losses whose scores are of one token each, and the shape of these, [sequences, places]."""
    shapes = {
        loss: static_dims(loss.inputs[0])
        for loss in losses(graph)
        if loss.op_type == "SoftmaxCrossEntropyLoss" and loss.inputs[0] is not None and is_float(loss.inputs[0])
    }
    layouts = {loss: Layout.leading(shape) for loss, shape in shapes.items() if len(shape) == 2}

    def read(node: ir.Node, _: Layout | None) -> list[Demand] | None:
        return [layouts[node], *[None] * (len(node.inputs) - 1)] if node in layouts else None

    section = find_section(graph, read)
    return {loss: shapes[loss] for loss in layouts if _has_product(section, loss.inputs[0])}


def _has_product(section: Section, value: ir.Value | None) -> bool:
    """Whether rows of a value are rows of a product with a matrix.

    Classes of a sequence, of which there happen to be as many as tokens, are columns of one.
    """
    node = value.producer() if value is not None else None
    layouts = section.packed.get(node) if node is not None else None
    if node is None or layouts is None:
        return False
    if record_of(node).product:
        return True
    return any(_has_product(section, v) for v, layout in zip(node.inputs, layouts, strict=True) if layout is not None)


def _biases(graph: ir.Graph) -> dict[tuple[int, ...], ir.Value]:
    """What the first attention of each number of sequences and keys adds to its scores."""
    masks: dict[tuple[int, ...], ir.Value] = {}
    for node in live_nodes(graph):
        if (node.domain, node.op_type) == (DOMAIN, "Attention") and len(node.inputs) > 3:
            key, bias = node.inputs[1], node.inputs[3]
            if key is not None and bias is not None:
                batch, _, length, _ = static_dims(key)
                masks.setdefault((batch, length), bias)
    return masks
