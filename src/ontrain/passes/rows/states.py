"""Outputs with a row for each token, of which the padding's are zeros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder, emit, is_float, live_nodes, rebuild, static_dims
from ontrain.passes.infra import Pass, note
from ontrain.passes.rows.seen import seen_keys
from ontrain.passes.serving import serving_of

__all__ = ["HidePaddedStates"]


@dataclass(frozen=True)
class _Tokens:
    """The tokens that attention works on.

    Attributes:
        seen: a closed model of those that any query sees, bool [sequences, places].
        width: of a token's state.
    """

    seen: ir.Model
    width: int


class HidePaddedStates(Pass):
    """Let outputs of an inference session hold zeros where a token is padding.

        states [B, L, H]   →   Where(seen [B, L, 1], states, 0)
        with seen: the keys that some query of the attentions sees

    What a model computes for padding depends on what stands there, and has no meaning: who reads the states of tokens
    leaves padding out by the mask that he fed. So nobody reads what is computed for it, and `EliminatePadding` packs
    the real tokens through the whole model. This is another output than the file says, so that it is decided by the
    session, see `Serving.padding`: states alone, which are as wide as the tokens in the attentions, or all outputs with
    a row for each token, as the scores of a tagger or of question answering.
    Left alone: graphs that are not served, masks that depend on more than the batch, and outputs of other shapes.
    """

    level = 2
    changes_numerics = True
    serves = True

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Hide the padding of outputs."""
        how = serving_of(model.graph)
        if how is None or how.padding == "computed":
            return model, 0
        tokens = _tokens(model)
        chosen: dict[ir.Value, _Tokens] = {}
        for value in model.graph.outputs:
            shape = static_dims(value) if is_float(value) else ()
            known = tokens.get(shape[:2]) if len(shape) == 3 else None
            if known is not None and (how.padding == "zeros" or shape[2] == known.width):
                chosen[value] = known
                note(f"{value.name}: zeros for padding")
        return (_hidden(model, chosen), len(chosen)) if chosen else (model, 0)


def _tokens(model: ir.Model) -> dict[tuple[int, ...], _Tokens]:
    """By the number of sequences and places, what attentions work on whose masks the batch determines."""
    tokens: dict[tuple[int, ...], _Tokens] = {}
    for node in live_nodes(model.graph):
        if (node.domain, node.op_type) != (DOMAIN, "Attention") or len(node.inputs) < 4:
            continue
        key, bias = node.inputs[1], node.inputs[3]
        if key is None or bias is None:
            continue
        batch, heads, length, width = static_dims(key)
        if (batch, length) not in tokens:
            seen = seen_keys(model, bias, (batch, length))
            if seen is not None:
                tokens[batch, length] = _Tokens(seen, heads * width)
    return tokens


def _hidden(model: ir.Model, chosen: Mapping[ir.Value, _Tokens]) -> ir.Model:
    """The graph with zeros in these outputs; who reads the same values inside of it reads them as they are."""
    rebuilt = rebuild(model)
    graph, op = rebuilt.graph, Builder(rebuilt.graph)
    fed = {value.name: value for value in graph.inputs}
    for place, old in enumerate(model.graph.outputs):
        if old not in chosen:
            continue
        states, seen = graph.outputs[place], chosen[old].seen.graph
        (condition,) = emit(op, seen, [fed[value.name] for value in seen.inputs])
        hidden = op.Where(op.Unsqueeze(condition, [2]), states, op.const(0.0, states.dtype))
        hidden.metadata_props.update(states.metadata_props)
        states.name, hidden.name = op.fresh(f"{old.name}_whole"), old.name
        graph.outputs[place] = hidden
    return rebuilt
