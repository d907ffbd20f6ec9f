"""Graphs whose types follow from the file, as plans of the whole graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.autodiff import asks_for_derivatives, with_derivatives
from ontrain.capture import to_array
from ontrain.graph import fed_settings, with_values
from ontrain.inference.sized import Switches
from ontrain.inference.stepwise.region import FEW
from ontrain.passes import Journal, Serving, serve
from ontrain.session import PLANS, Plan, Planner, Recent, Signature, Structure

__all__ = ["WholeGraph"]

Array = np.ndarray[Any, Any]


class WholeGraph:
    """Plans of a typed graph, one for each combination of shapes, settings and switches.

    A setting is an input that says how an operator works, such as an axis or a size; a switch decides which branches
    are taken. Their values are part of the graph that is planned. Any thread may run it.

    Args:
        model: with all types; marked as served in the way of `serving`.
        inputs: names of inputs that are fed.
        planner: of the session.
        off: gives the names of passes to leave out.
        serving: how plans are served, if passes for inference run over them.
    """

    def __init__(
        self, model: ir.Model, inputs: Sequence[str], planner: Planner[Any], off: Callable[[], Sequence[str]],
        serving: Serving | None,
    ) -> None:  # fmt: skip
        self._model, self._planner, self._off = model, planner, off
        self._build: Callable[[Journal, ir.Model], ir.Model] | None = (
            _with_derivatives if asks_for_derivatives(model.graph) else None
        )
        self._settings, self._switches = fed_settings(model.graph, inputs), Switches(model.graph, inputs)
        self._structures: Recent[Hashable, Structure] = Recent(PLANS)
        if serving is not None:
            serve(model, serving)

    def plan(self, signature: Signature, feeds: Mapping[str, torch.Tensor]) -> Plan[Any]:
        """Return the plan for a batch.

        Raises:
            GraphError, ProviderError: no plan holds the graph with these values.
        """
        values = {name: to_array(feeds[name]) for name in self._settings if feeds[name].numel() <= FEW}
        if self._switches.names:
            values.update(self._switches.of(feeds) or {})
        return self._planner.plan(self._structure(values), signature, feeds)

    def is_settled(self, signature: Signature) -> bool:
        """Return whether all batches of these sizes have one plan, whatever their numbers."""
        structure = None if self._settings or self._switches.names else self._structures.look(())
        return structure is not None and self._planner.is_settled(structure, signature)

    def _structure(self, values: Mapping[str, Array]) -> Structure:
        key = tuple((name, value.tobytes()) for name, value in values.items())
        structure = self._structures.look(key)
        if structure is None:
            model = with_values(self._model, values) if values else self._model
            journal = functools.partial(Journal, "eval", self._off())
            structure = Structure(key=key, forward_key=key, model=model, build=self._build, journal=journal)
            self._structures.put(key, structure)
        return structure


def _with_derivatives(journal: Journal, graph: ir.Model) -> ir.Model:
    return with_derivatives(graph)
