"""A step: one node that is run by a kernel sized when it runs, or by onnx's evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.errors import OntrainError, ProviderError
from ontrain.graph import blamed_on, describe, reads, source_of
from ontrain.inference.stepwise.elsewhere import Elsewhere
from ontrain.inference.stepwise.engine import Engine
from ontrain.inference.stepwise.kernels.evaluator import Evaluated
from ontrain.inference.stepwise.kernels.registry import Call, UnfitError, find_kernel
from ontrain.inference.stepwise.values import Value, is_text
from ontrain.inference.timeline import timed_node

__all__ = ["Environment", "Step", "inputs_of"]

Environment = dict[ir.Value, Value]
"""What has been computed and will be read."""


def inputs_of(node: ir.Node, environment: Environment, engine: Engine) -> list[Value]:
    """Return the inputs of a node as values, None for those that it leaves out."""
    return [
        None if value is None else environment[value] if value in environment else engine.resident(value)
        for value in node.inputs
    ]


class Step:
    """Runs one node.

    Args:
        node: left untouched.
        engine: knows constants and weights.
        because: why no plan holds the node; raised where onnx's evaluator fails, too.
    """

    def __init__(self, node: ir.Node, engine: Engine, because: OntrainError | None = None) -> None:
        self.node, self.outputs = node, list(node.outputs)
        self.reads = [value for value in reads(node) if not engine.is_resident(value)]
        self._engine, self._because = engine, because
        self._kernel = find_kernel(node)
        self._attributes = {name: attr.value for name, attr in node.attributes.items()}
        self._evaluated: Evaluated | None = None
        self._elsewhere: Elsewhere | None = None

    def run(self, environment: Environment) -> None:
        """Compute the outputs from what the environment has, into it."""
        with blamed_on(self.node, f"{self.node.op_type} cannot run", ProviderError), timed_node(self.node):
            self._run(environment)

    def _run(self, environment: Environment) -> None:
        inputs = inputs_of(self.node, environment, self._engine)
        results = self._by_kernel(inputs)
        if results is None and self._engine.following is not None:
            if self._elsewhere is None:
                named = [value for value in self.outputs if value.name]
                self._elsewhere = Elsewhere([self.node], named, self._engine, self._engine.following)
            self._elsewhere.run(environment)
            return
        for value, result in zip(self.outputs, self._evaluate(inputs) if results is None else results, strict=False):
            environment[value] = result

    def _by_kernel(self, inputs: list[Value]) -> Sequence[Value] | None:
        """The outputs; None if there is no kernel for such inputs."""
        kernel = self._kernel
        if kernel is None or (not kernel.text and any(map(is_text, inputs))):
            return None
        try:
            return kernel.run(Call(self.node, self._attributes, inputs, self._engine.device))
        except (UnfitError, NotImplementedError):  # torch has not each operation for each dtype
            return None

    def _evaluate(self, inputs: list[Value]) -> list[Value]:
        node = self.node
        if self._evaluated is None:
            if not (self._engine.evaluates and Evaluated.knows(node)):
                raise self._because or ProviderError(
                    f"{self._engine.provider.name} cannot run {node.op_type}",
                    node=describe(node), source=source_of(node), reason="it has neither a lowering nor a kernel",
                    way_out="let CPUExecutionProvider follow in the list of providers",
                )  # fmt: skip
            self._evaluated = Evaluated(node)
        try:
            return self._evaluated.run(inputs, self._engine.device)
        except OntrainError as error:
            raise self._because or error from error
