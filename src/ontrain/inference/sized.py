"""Graphs that have types only where sizes are known and branches taken, as plans of what is left then."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture import to_array
from ontrain.errors import InputError, OntrainError
from ontrain.graph import fed_switches, specialise
from ontrain.locks import Lock
from ontrain.passes import Journal, Serving, serve
from ontrain.session import PLANS, Plan, Planner, Recent, Signature, Structure

__all__ = ["SizedGraph", "Switches"]

Array = np.ndarray[Any, Any]
_VALUES = 8
"""Combinations of values for which branches are taken once: a number that counts runs shall not have as many plans."""
_FAILURES = 3
"""Combinations of sizes at which types or branches depend on data until this is expected of all."""


class Switches:
    """Inputs of one whole number or truth value each that decide which branches a graph takes.

    Attributes:
        names: of these inputs.

    Args:
        graph: of the file.
        inputs: names of those that are fed.
    """

    def __init__(self, graph: ir.Graph, inputs: Sequence[str]) -> None:
        self.names = fed_switches(graph, inputs)
        self._known: set[Hashable] = set()

    def of(self, feeds: Mapping[str, torch.Tensor]) -> dict[str, Array] | None:
        """Return their values in a batch; None where so many came up that branches are better taken in each run."""
        values = {name: to_array(feeds[name]) for name in self.names}
        key = tuple(value.tobytes() for value in values.values())
        if key not in self._known:
            if len(self._known) >= _VALUES:
                return None
            self._known.add(key)
        return values


class SizedGraph:
    """Plans of a graph whose types follow from the sizes of what is fed, as the rank of a Squeeze without axes.

    Which branches it takes follows from them, too, and from numbers that are fed. Any thread may run it.

    Args:
        model: as it is filed; left untouched.
        inputs: names of inputs that are fed.
        planner: of the session.
        off: names of passes to leave out.
        serving: how plans are served, if passes for inference run over them.
    """

    def __init__(
        self, model: ir.Model, inputs: Sequence[str], planner: Planner[Any], off: Sequence[str],
        serving: Serving | None,
    ) -> None:  # fmt: skip
        self._model, self._planner, self._off, self._serving = model, planner, off, serving
        self._switches = Switches(model.graph, inputs)
        self._structures: Recent[Hashable, Structure | None] = Recent(PLANS)
        self._failures, self._taking = 0, Lock()

    def plan(self, signature: Signature, feeds: Mapping[str, torch.Tensor]) -> Plan[Any] | None:
        """Return the plan for a batch; None where types depend on data, or something else needs steps."""
        values = self._switches.of(feeds) if self._failures < _FAILURES else None
        if values is None:
            return None
        key = signature, tuple((name, value.tobytes()) for name, value in values.items())
        if key not in self._structures:
            with self._taking:
                if key not in self._structures:
                    self._structures.put(key, self._structure(key, feeds, values))
        structure = self._structures.look(key)
        if structure is None:
            return None
        try:
            return self._planner.plan(structure, signature, feeds)
        except OntrainError:
            self._fail(key)
            return None

    def is_settled(self, signature: Signature) -> bool:
        """Return whether all batches of these sizes have one plan, whatever their numbers."""
        structure = None if self._switches.names else self._structures.look((signature, ()))
        return structure is not None and self._planner.is_settled(structure, signature)

    def _structure(
        self, key: Hashable, feeds: Mapping[str, torch.Tensor], values: Mapping[str, Array]
    ) -> Structure | None:
        try:
            model = specialise(self._model, {name: tuple(fed.shape) for name, fed in feeds.items()}, values)
        except InputError:
            return None  # the steps say what does not fit
        except OntrainError:
            self._failures += 1
            return None
        if self._serving is not None:
            serve(model, self._serving)
        journal = functools.partial(Journal, "eval", self._off)
        return Structure(key=key, forward_key=key, model=model, journal=journal)

    def _fail(self, key: Hashable) -> None:
        self._failures += 1
        self._structures.put(key, None)
