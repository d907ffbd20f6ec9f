"""Branches and loops of small nodes as one call of onnxruntime, where that takes less time.

A loop of plans pays for each round: plans are looked up, fed and read. In onnxruntime a round of small nodes takes some
microseconds. So on a CPU a node with graphs inside, all of whose operators onnxruntime computes as ontrain does, is run
both ways once for each order of size, and from then on in the way that was faster, if the results were equal.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.graph import all_nodes, captured, nbytes as nbytes_of
from ontrain.inference.small_models import computes, equal_results, opened
from ontrain.inference.stepwise.elsewhere import Elsewhere, Following
from ontrain.inference.stepwise.kernels.registry import is_control
from ontrain.inference.stepwise.step import Environment
from ontrain.inference.stepwise.values import Items, Value, as_array
from ontrain.rounds import may_be_stopped

__all__ = ["Whole"]

_BYTES = 64 << 20
"""Of weights that the node reads: onnxruntime has a copy of them."""
_JUDGED = 2
"""The run of an order of size that is timed: the first one makes plans."""
_ONNXRUNTIME = Following("", opened)
_DIGITS, _HALF_DIGITS = 1e-5, 1e-2


class Whole:
    """A node with graphs inside, run as one call; see `of`.

    Args:
        node: left untouched.
        engine: has the weights.
    """

    def __init__(self, node: ir.Node, engine: Any) -> None:
        self._outputs = [value for value in node.outputs if value.name]
        self._call = Elsewhere([node], self._outputs, engine, _ONNXRUNTIME)
        self._runs, self._faster = Counter[int](), dict[int, bool]()
        self._differs = False

    @classmethod
    def of(cls, node: ir.Node, engine: Any) -> Whole | None:
        """Return the node as one call; None where onnxruntime may compute something else, or would need much memory."""
        if not engine.provider.capabilities.joins or not all(is_control(n) or computes(n) for n in _nodes(node)):
            return None
        read = dict.fromkeys(value for value in (*node.inputs, *captured(node)) if value is not None)
        nbytes = sum(nbytes_of(value) or 0 for value in read if value in engine.weights)
        return cls(node, engine) if nbytes <= _BYTES else None

    def run(self, environment: Environment, rounds: Callable[[], None]) -> None:
        """Compute the outputs into the environment.

        Args:
            environment: has what the node reads.
            rounds: does the same, round by round.
        """
        if self._differs or may_be_stopped():
            rounds()
            return
        size = sum(_size(environment[value]) for value in self._call.reads).bit_length()
        if self._faster.get(size):
            try:
                self._call.run(environment)
            except Exception:  # noqa: BLE001 (onnxruntime's errors share no base; the usual way tells what is wrong)
                rounds()
            return
        self._runs[size] += 1
        if self._runs[size] == _JUDGED:
            self._judge(environment, rounds, size)
        else:
            rounds()

    def _judge(self, environment: Environment, rounds: Callable[[], None], size: int) -> None:
        """Run both ways, and remember which one was faster."""
        other = dict(environment)
        start = time.perf_counter()
        rounds()
        took = time.perf_counter() - start
        try:
            self._call.run(other)  # makes the session
            start = time.perf_counter()
            self._call.run(other)
            self._faster[size] = time.perf_counter() - start < took
            self._differs = not self._equal(environment, other)
        except Exception:  # noqa: BLE001 (onnxruntime's errors share no base; the usual way gave results)
            self._differs = True

    def _equal(self, environment: Environment, other: Environment) -> bool:
        ours, theirs = ([as_array(values[value]) for value in self._outputs] for values in (environment, other))
        half = any(isinstance(array, np.ndarray) and array.dtype == np.float16 for array in ours)
        return equal_results(ours, theirs, _HALF_DIGITS if half else _DIGITS)


def _nodes(node: ir.Node) -> Iterator[ir.Node]:
    """The node and those inside it."""
    yield node
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            yield from all_nodes(attr.as_graph())


def _size(value: Value) -> int:
    """How many numbers or texts a value holds; a sequence's tensors may differ in shape."""
    if isinstance(value, Items | list):
        return sum(map(_size, value))
    return value.numel() if isinstance(value, torch.Tensor) else np.size(value)
