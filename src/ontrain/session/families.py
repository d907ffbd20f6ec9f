"""Plans at sizes that are new: graphs bound to numbers, where graphs at other sizes tell what they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import onnx_ir as ir

from ontrain.graph import Bound, Family
from ontrain.session.feeds import Signature
from ontrain.session.recent import Recent

__all__ = ["Families", "ranks", "sizes_of"]

_FAMILIES = 64
"""Families that are kept, of kinds of steps, numbers of dimensions and sets of selections."""


class Families:
    """Remembers graphs by what they compute, apart from sizes. One thread at a time may use it."""

    def __init__(self) -> None:
        self._families: Recent[Hashable, tuple[ir.Model, Family]] = Recent(_FAMILIES)

    def bind(self, key: Hashable, model: ir.Model, sizes: Sequence[int]) -> Bound | None:
        """Return the graph at these sizes; None where those that were learned do not tell it.

        Args:
            key: what the graph computes.
            model: what it was made of; graphs of another model are forgotten.
            sizes: all that it depends on.
        """
        return self._family(key, model).bind(sizes)

    def learn(
        self, key: Hashable, model: ir.Model, sizes: Sequence[int], graph: ir.Model, beside: Sequence[int] = ()
    ) -> None:
        """Remember a graph, and numbers that go with it; see `bind`."""
        self._family(key, model).learn(sizes, graph, beside)

    def forget(self, is_stale: Callable[[Hashable], bool]) -> None:
        """Drop the families whose keys are stale."""
        self._families.forget(is_stale)

    def _family(self, key: Hashable, model: ir.Model) -> Family:
        entry = self._families.look(key)
        if entry is None or entry[0] is not model:
            entry = self._families.put(key, (model, Family()))
        return entry[1]


def ranks(signature: Signature) -> Hashable:
    """Return what a signature says beside the sizes."""
    return tuple((name, len(shape)) for name, shape in signature)


def sizes_of(signature: Signature, rows: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the sizes of a signature, and numbers of rows behind them."""
    return (*(size for _, shape in signature for size in shape), *rows)
