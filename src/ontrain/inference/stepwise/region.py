"""A region: nodes that one plan holds, for the sizes that are there when it runs."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.capture import NARROW, to_array, to_tensor
from ontrain.errors import GraphError, InputError, OntrainError, ProviderError
from ontrain.graph import fed_settings, subgraphs
from ontrain.inference.stepwise.cutting import Kind, cut_out, read_outside
from ontrain.inference.stepwise.derivatives import with_ways
from ontrain.inference.stepwise.elsewhere import Elsewhere
from ontrain.inference.stepwise.engine import Engine
from ontrain.inference.stepwise.kernels.registry import find_kernel
from ontrain.inference.stepwise.partition import Kind as StageKind, Stage
from ontrain.inference.stepwise.step import Environment, Step
from ontrain.inference.stepwise.values import Array, Value, as_value, is_text
from ontrain.inference.timeline import run_plan
from ontrain.limits import TooLargeError
from ontrain.passes import Journal
from ontrain.session import PLANS, Recent, Structure, explained

__all__ = ["Region"]

FEW = 64
"""Elements that an input has at most whose values say how operators work."""


class _NotPlannedError(Exception):
    """The nodes of a region are not planned as one; its argument says why."""


class Region:
    """Runs nodes by plans, each made for shapes, and for the values of inputs that say how operators work.

    Where no plan holds the nodes, as is found when they run for the first time, they are divided from then on: at the
    node that a plan cannot hold, or in halves. A node that fits no plan by itself runs as a step.

    Args:
        nodes: in order.
        outputs: those of the values they make that are read elsewhere.
        engine: what runs them.
    """

    def __init__(self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], engine: Engine) -> None:
        self.nodes, self.outputs = list(nodes), list(outputs)
        self._engine = engine
        outside = read_outside(nodes)
        self.reads = [value for value in outside if value not in engine.weights]
        self._structures: Recent[Hashable, Structure] = Recent(PLANS)
        self._settings: list[str] | None = None
        self.parts: list[Region | Step | Elsewhere] | None = None

    def run(self, environment: Environment) -> None:
        """Compute the outputs from what the environment has, into it."""
        if self.parts is None:
            try:
                self._run_plan(environment)
                return
            except _NotPlannedError as error:
                self.parts = self._divided(error.args[0])
        for part in self.parts:
            part.run(environment)

    def _run_plan(self, environment: Environment) -> None:
        engine = self._engine
        feeds: dict[str, torch.Tensor] = {}
        kinds: list[Kind] = []
        for value in self.reads:
            tensor, dtype = _tensor(environment[value])
            feeds[value.name or ""] = tensor.to(engine.device)
            kinds.append((dtype, tensor.dim()))
        try:
            values = self._values(kinds, feeds)
            structure = self._structure(kinds, values)
            signature = tuple((name, tuple(fed.shape)) for name, fed in feeds.items() if name not in values)
            plan = engine.planner.plan(structure, signature, feeds)
        except TooLargeError:
            raise
        except (GraphError, ProviderError) as error:
            raise _NotPlannedError(error) from error
        with explained(structure.model.graph, feeds, engine.provider.name, "a run"):
            outputs = run_plan(plan.executable, feeds, engine.next_numbers())
        for value, typed in zip(self.outputs, plan.model.graph.outputs, strict=True):
            result = outputs[value.name or ""]
            if typed.dtype in NARROW and isinstance(result, torch.Tensor):
                result = to_array(result, typed.dtype)
            environment[value] = result if isinstance(result, torch.Tensor) else as_value(result, engine.device)

    def _values(self, kinds: Sequence[Kind], feeds: Mapping[str, torch.Tensor]) -> dict[str, Array]:
        """The values that a plan has as numbers."""
        if self._settings is None:
            graph = self._model(kinds).graph
            self._settings = fed_settings(graph, list(feeds))
        return {name: to_array(feeds[name]) for name in self._settings if feeds[name].numel() <= FEW}

    def _model(self, kinds: Sequence[Kind], values: Mapping[str, Array] | None = None) -> ir.Model:
        return cut_out(self.nodes, self.reads, kinds, self._engine.weights, self.outputs, values)

    def _structure(self, kinds: Sequence[Kind], values: Mapping[str, Array]) -> Structure:
        key = (id(self), tuple(kinds), tuple((name, array.tobytes()) for name, array in values.items()))
        structure = self._structures.look(key)
        if structure is None:
            model = self._model(kinds, values)
            structure = Structure(key=key, forward_key=key, model=model, journal=functools.partial(Journal, "eval"))
            self._structures.put(key, structure)
        return structure

    def _divided(self, error: OntrainError | None) -> list[Region | Step | Elsewhere]:
        """The same in several parts, the least of which is a step."""
        if len(self.nodes) == 1:
            following = self._engine.following
            if following is not None and find_kernel(self.nodes[0]) is None:
                return [Elsewhere(self.nodes, self.outputs, self._engine, following)]
            return [Step(self.nodes[0], self._engine, because=error)]
        at = self._culprit(error)
        half = len(self.nodes) // 2
        bounds = [0, half, len(self.nodes)] if at is None else [0, at, at + 1, len(self.nodes)]
        cuts = [Stage(self.nodes[a:b], StageKind.PLAN) for a, b in zip(bounds, bounds[1:], strict=False) if a < b]
        pieces = [stage.nodes for stage in with_ways(cuts)]
        if error is not None and any(len(piece) >= len(self.nodes) for piece in pieces):
            raise error  # a derivative flows back through what cannot be planned
        parts: list[Region | Step | Elsewhere] = []
        for i, piece in enumerate(pieces):
            later = {value for others in pieces[i + 1 :] for value in read_outside(others)}
            later.update(self.outputs)
            outputs = [value for node in piece for value in node.outputs if value in later]
            parts.append(Region(piece, outputs, self._engine))
        return parts

    def _culprit(self, error: OntrainError | None) -> int | None:
        """The position of the node that an error names."""
        if error is None:
            return None
        text = (getattr(error, "node", None) or "").rpartition("->")[2]
        named = {part.strip().partition(":")[0] for part in text.split(",")}
        for i, node in enumerate(self.nodes):
            if not subgraphs(node) and any(value.name and value.name in named for value in node.outputs):
                return i
        return None


def _tensor(fed: Value) -> tuple[torch.Tensor, ir.DataType]:
    """What is fed as a tensor, and the type that it holds; numbers of a few bits come as arrays."""
    try:
        if isinstance(fed, torch.Tensor):
            return fed, from_torch_dtype(fed.dtype)
        if isinstance(fed, np.ndarray) and not is_text(fed):
            return to_tensor(fed), ir.DataType.from_numpy(fed.dtype)
    except (TypeError, InputError) as error:  # either side has dtypes that the other lacks
        raise _NotPlannedError(None) from error
    raise _NotPlannedError(None)
