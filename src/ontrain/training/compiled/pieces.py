"""A module that runs in pieces, because no graph holds it whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import fx, nn

from ontrain.capture import IteratorStandIn, Table, holds_iterators, replaced_iterators, tables_of
from ontrain.errors import OntrainError
from ontrain.training.compiled.backend import ontrain
from ontrain.training.compiled.untraced import generators_of, untraced

__all__ = ["Pieces"]


class _Untraced(IteratorStandIn):
    """Python takes its items in each call: TorchDynamo may have one item of a generator for all calls."""

    __next__ = torch.compiler.disable(IteratorStandIn.__next__)
    send = torch.compiler.disable(IteratorStandIn.send)


class Pieces:
    """Runs a module as graphs between the places where Python looks at a value, which TorchDynamo finds.

    Attributes:
        count: graphs so far, for all forms in which the module was called.

    Args:
        module: the module.
        reason: why no graph holds it whole.
        options: of the backend `ontrain`.
    """

    def __init__(self, module: nn.Module, reason: OntrainError, options: Mapping[str, Any]) -> None:
        self.count = 0
        self._module, self._reason, self._options = module, reason, options
        self._run = torch.compile(module, backend=self._compiled)
        self._tables, self._iterators = tables_of(module), dict[int, IteratorStandIn]()
        self._holding, self._generators, self._looked = list[Table](), list[Random](), -1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns.

        Warns:
            UserWarning: at the first call, how many graphs there are, and why.
        """
        before = self.count
        if self._looked != before:  # another kind of value in an attribute that forward reads is compiled anew
            self._holding, self._looked = list(filter(holds_iterators, self._tables)), before
            self._generators = generators_of(self._module)
        tables = [(table, table.entries()) for table in self._holding]
        with replaced_iterators(tables, _Untraced, self._iterators), untraced(self._generators):
            result = self._run(*args, **kwargs)
        if not before:
            name, graphs = type(self._module).__name__, f"{self.count} graph{'s' * (self.count != 1)}"
            warnings.warn(
                f"{name} runs in {graphs}, with PyTorch in between, where one would be faster: {self._reason}",
                stacklevel=4,
            )
        return result

    def _compiled(self, graph_module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        self.count += 1
        return ontrain(graph_module, examples, options=self._options)
