"""A cache of keys and values that holds the last ones only, as onnxruntime's GroupQueryAttention keeps it.

Of T tokens so far, a cache of C places for a window of W holds the last L(T), in order, from its first place on:

    G = C − W + 1
    L(T) = T                        if T <= C
    L(T) = T − G · ceil((T − C)/G)  otherwise

Source: onnxruntime, docs/ContribOperators.md, com.microsoft.GroupQueryAttention, "Windowed KV Cache".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import NoBodyError
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["SlidingCache", "tokens_after"]

_NOWHERE = 1 << 40
"""The position of a place that holds nothing: behind every query."""


@dataclass(frozen=True)
class SlidingCache:
    """What a step finds in the caches of a batch, and what it leaves there.

    Attributes:
        before: tokens of each sequence before the step, [B].
        after: and behind it, [B].
        length: tokens of the step, S.
        capacity: places of a cache, C.
        window: tokens that a query sees at most, its own one included, W.
    """

    before: Value
    after: Value
    length: int
    capacity: int
    window: int

    def __post_init__(self) -> None:
        """Refuse a cache that cannot hold a window."""
        if not 0 < self.window <= self.capacity:
            raise NoBodyError(
                f"a cache of {self.capacity} places for a window of {self.window} tokens",
                f"feed a cache of {max(1, self.window)} places or more",
            )

    def positions(self, op: Builder) -> Value:
        """Return which token each key is of, the cached ones before the step's, [B, C + S]."""
        places = op.const(np.arange(self.capacity)[None])
        held = op.Unsqueeze(self._held(op, self.before), [1])
        before = op.Unsqueeze(self.before, [1])
        cached = op.Where(op.Less(places, held), op.Add(places, op.Sub(before, held)), op.const(np.array(_NOWHERE)))
        return op.Concat(cached, op.Add(before, op.const(np.arange(self.length)[None])), axis=1)

    def updated(self, op: Builder, joined: Value) -> Value:
        """Return the cache behind the step; places behind L(T) hold some key.

        `joined` has the cached keys before the step's, [B, heads, C + S, width].
        """
        batch, heads, keys, width = static_dims(joined)
        held, after = self._held(op, self.before), self._held(op, self.after)
        first = op.Sub(self.after, after)  # the token in the first place
        tokens = op.Add(op.Unsqueeze(first, [1]), op.const(np.arange(self.capacity)[None]))
        before = op.Unsqueeze(self.before, [1])
        cached = op.Sub(tokens, op.Unsqueeze(op.Sub(self.before, held), [1]))
        own = op.Add(op.Sub(tokens, before), op.const(np.array(self.capacity)))
        places = op.Clip(op.Where(op.Less(tokens, before), cached, own), *self._bounds(op, keys))
        return op.GatherElements(
            joined, op.Expand(op.Unsqueeze(places, [1, 3]), [batch, heads, self.capacity, width]), axis=2
        )

    def _held(self, op: Builder, tokens: Value) -> Value:
        """L(T), [B]."""
        spared = self.capacity - self.window + 1
        excess = op.Max(op.Sub(tokens, op.const(np.array(self.capacity))), op.const(np.array(0)))
        rounds = op.Div(op.Add(excess, op.const(np.array(spared - 1))), op.const(np.array(spared)))
        return op.Sub(tokens, op.Mul(rounds, op.const(np.array(spared))))

    @staticmethod
    def _bounds(op: Builder, keys: int) -> tuple[Value, Value]:
        return op.const(np.array(0)), op.const(np.array(keys - 1))


def tokens_after(op: Builder, lengths: Value, batch: int) -> Value:
    """Return the tokens of each sequence with the step's, [B], of the input `seqlens_k`, which is one less."""
    return op.Reshape(op.Add(op.Cast(lengths, to=ir.DataType.INT64), op.const(np.array(1))), [batch])
