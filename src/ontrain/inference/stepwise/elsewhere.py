"""Nodes that the next provider of the list runs: onnxruntime, in a session for each part of a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype

from ontrain.errors import OntrainError, ProviderError
from ontrain.graph import blamed_on, describe, role_of, schema_of, source_of
from ontrain.inference.stepwise.cutting import Kind, cut_out, read_outside
from ontrain.inference.stepwise.kernels.evaluator import Evaluated
from ontrain.inference.stepwise.values import Value, as_array, as_value, is_text
from ontrain.inference.timeline import timed_node
from ontrain.operators import DOMAIN, OPSET
from ontrain.providers import ExecutionProvider
from ontrain.session import Recent

__all__ = ["Elsewhere", "Following"]

_SESSIONS = 8


@dataclass(frozen=True)
class Following:
    """The next provider of a list.

    Attributes:
        name: what users call it.
        open: makes a session of a model's bytes, with a method `run` as onnxruntime's.
        knows: whether it has an operator, by domain and name.
    """

    name: str
    open: Callable[[bytes], Any]
    knows: Callable[[str, str], bool] = lambda domain, op_type: True


class Weights(Protocol):
    """What is known of a model's weights; see `Engine`."""

    provider: ExecutionProvider
    device: torch.device
    weights: Mapping[ir.Value, str]

    def weight(self, name: str | None) -> object:
        """Return one by its name."""
        ...

    def resident(self, value: ir.Value) -> Value:
        """Return one, or a constant, as a value."""
        ...


class Elsewhere:
    """Runs nodes by sessions of another provider, each made for the types of what they read.

    Args:
        nodes: in order.
        outputs: those of the values they make that are read elsewhere.
        engine: has the weights.
        following: runs them.
    """

    def __init__(
        self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], engine: Any, following: Following
    ) -> None:
        self.nodes, self.outputs = list(nodes), list(outputs)
        self._engine, self._following = engine, following
        self.reads = [value for value in read_outside(nodes) if value not in engine.weights]
        self._sessions: Recent[Hashable, Any] = Recent(_SESSIONS)
        self._evaluated: list[Evaluated] = []

    def run(self, environment: dict[ir.Value, Value]) -> None:
        """Compute the outputs from what the environment has, into it."""
        fed = [environment[value] for value in self.reads]
        session = None if self._evaluated else self._session(tuple(map(self._kind, fed)))
        if session is None:
            self._evaluate(environment)
            return
        names = [value.name or "" for value in self.outputs]
        feeds = {v.name or "": as_array(value) for v, value in zip(self.reads, fed, strict=True)}
        with timed_node(self.nodes[0], *self.nodes[1:], provider=self._following.name):
            results = session.run(names, feeds)
        for value, result in zip(self.outputs, results, strict=True):
            environment[value] = as_value(result, self._engine.device)

    def _session(self, kinds: tuple[Kind, ...]) -> Any:
        """The session for these types; None where it lacks the operators, too, and onnx's evaluator has them."""
        session = self._sessions.look(kinds)
        if session is None:
            try:
                session = self._following.open(self._model(kinds).SerializeToString())
            except OntrainError as error:
                if not all(map(Evaluated.knows, self.nodes)):
                    raise self._not_opened(error) from error
                self._evaluated = [Evaluated(node) for node in self.nodes]
                return None
            self._sessions.put(kinds, session)
        return session

    def _not_opened(self, error: OntrainError) -> ProviderError:
        """The error for a part that the next provider cannot load, though it may load the whole model."""
        return ProviderError(
            f"{self._following.name} cannot load a part of the model", node=describe(self.nodes[0]),
            source=source_of(self.nodes[0]), reason=error.reason or error.problem, way_out=error.way_out,
        )  # fmt: skip

    def _evaluate(self, environment: dict[ir.Value, Value]) -> None:
        inner = dict(environment)
        for node, evaluated in zip(self.nodes, self._evaluated, strict=True):
            inputs = [
                None if value is None else inner[value] if value in inner else self._engine.resident(value)
                for value in node.inputs
            ]
            with blamed_on(node, f"{node.op_type} cannot run", ProviderError):
                inner.update(zip(node.outputs, evaluated.run(inputs, self._engine.device), strict=False))
        environment.update((value, inner[value]) for value in self.outputs)

    def _kind(self, fed: Value) -> Kind:
        if isinstance(fed, torch.Tensor):
            return from_torch_dtype(fed.dtype), fed.dim()
        if isinstance(fed, np.ndarray):
            return (ir.DataType.STRING if is_text(fed) else ir.DataType.from_numpy(fed.dtype)), fed.ndim
        raise ProviderError(
            f"{self._engine.provider.name} cannot run {self.nodes[0].op_type}", node=describe(self.nodes[0]),
            reason=f"{self._following.name} is given tensors only, and it reads a {type(fed).__name__}",
        )  # fmt: skip

    def _model(self, kinds: Sequence[Kind]) -> Any:
        model = cut_out(self.nodes, self.reads, kinds, self._engine.weights, self.outputs)
        graph = model.graph
        for value in [value for value in graph.inputs if role_of(value).resident]:
            graph.inputs.remove(value)
            value.const_value = TorchTensor(
                torch.as_tensor(self._engine.weight(value.name), device="cpu"), name=value.name
            )
            graph.register_initializer(value)
        graph.opset_imports.clear()
        graph.opset_imports[""] = OPSET
        for node in self.nodes:
            schema = schema_of(node.op_type, node.domain, node.version or OPSET)
            version = (node.version or 1) if node.domain else OPSET if schema is None else schema.since_version
            graph.opset_imports[node.domain] = max(version, graph.opset_imports.get(node.domain, 1))
        graph.opset_imports.pop(DOMAIN, None)
        return ir.to_proto(model)
