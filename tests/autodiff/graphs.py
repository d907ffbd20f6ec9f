"""Graphs of one sample: forward, gradient, gradient of the gradient; and their evaluation by onnx's evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ontrain.autodiff import differentiate
from ontrain.functions import expand, expansions, inline_all
from ontrain.graph import Builder, is_float, new_model, rebuild, static_dims, verify
from tests.autodiff.evaluator import CORRECTED
from tests.autodiff.samples.sample import Sample


class SampleGraph:
    """A graph of one node; `y`, `dx` and so on are lists of values, `feeds` the arrays of the graph's inputs."""

    def __init__(self, sample: Sample, arrays: Sequence[np.ndarray | None]) -> None:
        self.sample = sample
        self.feeds: dict[str, np.ndarray] = {}
        self.model = new_model([], "sample")
        self.op = Builder(self.model.graph)
        operands = [self._operand(i, array) for i, array in enumerate(arrays)]
        self.wrt = [v for v in operands if v is not None and v.is_graph_input() and is_float(v)]
        results = self.op.call(sample.domain, sample.op_type, operands, sample.attributes, sample.outputs)
        outputs = list(results) if isinstance(results, tuple) else [results]
        self.node = outputs[0].producer()
        self.y = [outputs[i] for i in sample.seeded]
        self.value = None if outputs[0].const_value is None else outputs[0].const_value.numpy()

    def _operand(self, i: int, array: np.ndarray | None) -> ir.Value | None:
        if array is None:
            return None
        floating = ir.DataType.from_numpy(array.dtype).is_floating_point()
        constant = i in self.sample.fixed if floating else i not in self.sample.fed
        return self.op.const(array) if constant else self.input(f"x{i}", array)

    def input(self, name: str, array: np.ndarray) -> ir.Value:
        """Add a graph input and its feed."""
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype))
        )
        self.model.graph.inputs.append(value)
        self.feeds[name] = array
        return value

    def seeds(self, values: Sequence[ir.Value], rng: np.random.Generator, name: str) -> list[ir.Value]:
        """A random adjoint for each value, as graph inputs."""
        draws = [rng.standard_normal(static_dims(v)).astype(v.dtype.numpy()) for v in values]
        return [self.input(f"{name}{i}", np.asarray(d)) for i, d in enumerate(draws)]

    def gradient(self, values: Sequence[ir.Value], seeds: Sequence[ir.Value], wrt: Sequence[ir.Value]) -> list[Any]:
        """Differentiate; each gradient has its value's own dtype and shape."""
        gradients = differentiate(self.op, list(zip(values, seeds, strict=True)), wrt)
        for value, grad in zip(wrt, gradients, strict=True):
            assert grad is None or (grad.dtype, static_dims(grad)) == (value.dtype, static_dims(value))
        return gradients

    def evaluator(self, outputs: Sequence[ir.Value | None]) -> Any:
        """Return a function of feeds to the outputs' arrays (zeros' stand-in None for an absent one)."""
        present = list(dict.fromkeys(v for v in outputs if v is not None))
        run = ReferenceEvaluator(self.proto(present), new_ops=CORRECTED)

        def evaluate(**changes: np.ndarray) -> list[np.ndarray | None]:
            got = dict(zip(present, run.run(None, {**self.feeds, **changes}), strict=True))
            return [None if v is None else np.asarray(got[v]) for v in outputs]

        return evaluate

    def proto(self, outputs: Sequence[ir.Value]) -> onnx.ModelProto:
        """The graph with these outputs, verified, in plain operators."""
        graph = self.model.graph
        graph.outputs.clear()
        graph.outputs.extend(outputs)
        verify(self.model)
        # onnx's evaluator computes many of these in single precision, some wrongly and some not at all; the test of
        # their bodies against onnxruntime is in test_bodies.py.
        plain = inline_all(rebuild(self.model, _ours))
        verify(plain)
        graph.outputs.clear()
        return ir.to_proto(plain)


def _ours(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Any:
    return expand(op, node, inputs) if (node.domain, node.op_type) in expansions else None
