"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ontrain.operators.record import Evaluator, Smallest, define

__all__: list[str] = []


def _recurrent(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """x [L, N, D], weights [directions, gates · H, D] and […, H], bias, lengths [N], states [directions, N, H]."""
    x, w = shapes[:2]
    if len(x) == len(w) == 3:
        yield x[2], w[2]
        if len(shapes) > 4 and shapes[4]:
            yield x[1], shapes[4][0]
        for state in shapes[5:7]:
            if len(state) == 3:
                yield from ((x[1], state[1]), (shapes[2][-1], state[2]))


define("GRU", recurrent=True, evaluator=Evaluator.IN_PART, agreeing=_recurrent, smallest=Smallest({"hidden_size": 1}))
define("LSTM", recurrent=True, evaluator=Evaluator.IN_PART, agreeing=_recurrent, smallest=Smallest({"hidden_size": 1}))
define("RNN", recurrent=True, evaluator=Evaluator.IN_PART, agreeing=_recurrent, smallest=Smallest({"hidden_size": 1}))
