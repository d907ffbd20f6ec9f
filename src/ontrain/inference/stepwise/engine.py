"""What all regions and steps of a model share: the provider, resident weights, plans."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import torch

from ontrain.autodiff import is_derivative
from ontrain.inference.stepwise.elsewhere import Following
from ontrain.inference.stepwise.kernels.registry import find_kernel, is_control
from ontrain.inference.stepwise.values import Value, as_value, storage
from ontrain.operators import record_of
from ontrain.providers import Executable, ExecutionProvider, State
from ontrain.session import Planner

__all__ = ["Engine", "lacks"]

_PLANS = 512
"""Plans of regions that are kept: a model has a few at least for each combination of sizes."""


class Engine:
    """Runs regions by plans of one provider.

    Args:
        provider: compiles regions.
        state: holds the weights.
        weights: names of the weights in `state`, by the graph inputs that they are.
        device: where values are.
        seed: where random numbers begin.
        evaluates: whether nodes that have neither a lowering nor a kernel are run by onnx's evaluator.
        following: the next provider of a list, which runs what this one lacks.

    Attributes:
        lent: where the memory of weights and constants begins that steps were given.
    """

    def __init__(
        self, provider: ExecutionProvider, state: State, weights: Mapping[ir.Value, str], device: torch.device,
        seed: int, *, evaluates: bool = True,
        following: Following | None = None,
    ) -> None:  # fmt: skip
        self.provider, self.weights, self.device, self.evaluates = provider, weights, device, evaluates
        self._state, self._seed, self._runs = state, seed, itertools.count()
        self.planner: Planner[Executable] = Planner(
            provider, functools.partial(provider.compile, state=state), device, counts_rows=False, most=_PLANS
        )
        self._constants: dict[ir.Value, Value] = {}
        self.lent: set[int] = set()
        self.following = following

    def lacks(self, node: ir.Node) -> bool:
        """Whether the provider has nothing for an operator, and the next one of the list is to run it."""
        return self.following is not None and lacks(self.provider, node)

    def weight(self, name: str | None) -> object:
        """Return a weight by its name in the state."""
        return self._state[name or ""]

    def is_resident(self, value: ir.Value) -> bool:
        """Whether a value is the same in all runs: a weight or a constant."""
        return value.const_value is not None or value in self.weights

    def resident(self, value: ir.Value) -> Value:
        """Return a weight or a constant as a value."""
        known = self._constants.get(value)
        if known is None:
            name = self.weights.get(value)
            if name is None:
                assert value.const_value is not None, f"{value.name} is no constant"
                known = as_value(_array(value.const_value), self.device)
            else:
                weight = self._state[name]
                known = weight if isinstance(weight, torch.Tensor) else as_value(weight, self.device)
            self._constants[value] = known
            if isinstance(known, torch.Tensor):
                self.lent.add(storage(known))
        return known

    def next_numbers(self) -> tuple[int, int]:
        """Return where the random numbers of the next region begin."""
        return self._seed, next(self._runs)


def lacks(provider: ExecutionProvider, node: ir.Node) -> bool:
    """Whether a provider has nothing for an operator, and there is no kernel to run it as a step."""
    record = record_of(node)
    if is_control(node) or find_kernel(node) is not None or is_derivative(node):
        return False
    # A plan has shapes, and what is made of numbers that it has, as constants.
    settled = record.reads_shape or bool(record.settings) and len(node.inputs) <= len(record.settings)
    return not settled and provider.supports(node) is not None


def _array(tensor: ir.TensorProtocol) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    array = np.array(tensor.numpy())  # a copy: a file's bytes are read-only
    if array.dtype.kind in "OS":
        decode = np.frompyfunc(lambda text: text.decode() if isinstance(text, bytes) else text, 1, 1)
        array = np.asarray(decode(array), object)
    return array
