"""What a call returns: the outputs of a graph in the structure of the module's result.

Behind the outputs that are returned stand those that forward writes elsewhere: to Python objects, and to its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ontrain.capture import Captured, Owner, leaf_paths, owners_of
from ontrain.training.ortmodule.kept_state import kept_outputs
from ontrain.training.ortmodule.repeating import Repetition, write_input

__all__ = ["Results"]


class Results:
    """Makes the module's results of a graph's outputs.

    Args:
        captured: the module as a graph.
        repeated: what forward writes to Python objects.

    Attributes:
        names: of the outputs that a call computes, in order: those to return, and then those to write.
        beside: of the outputs to write.
        kept: of the outputs that the next call reads.
        scalars: of the outputs of no dimensions.
    """

    def __init__(self, captured: Captured, repeated: Sequence[Repetition]) -> None:
        self._captured, self._repeated, self._written_inputs = captured, repeated, captured.new_inputs
        self._owners = owners_of(captured.output_spec, captured.names)
        own = [name for name, owner in zip(captured.output_names, self._owners, strict=True) if owner is None]
        self._borrows = len(own) < len(self._owners)
        self._complex = frozenset(captured.complex_outputs)
        written = [name for repetition in repeated for name in repetition.names]
        self.beside = (*written, *self._written_inputs.values())
        # A result that holds nothing else is computed, for what forward does beside, and then left alone.
        self.names = [*(own or captured.output_names), *self.beside]
        self.kept = frozenset(kept_outputs(captured))
        ranks = {value.name: len(value.shape or ()) for value in captured.model.graph.outputs}
        self.scalars = frozenset(name for name in self.names if ranks[name] == 0)

    def never_lazy(self) -> set[str]:
        """Return the outputs that each call computes, whether or not somebody looks at them."""
        # What is added to lists would keep each call alive until somebody looks.
        added = [name for repetition in self._repeated if repetition.is_of_list for name in repetition.names]
        return {*self.scalars, *added, *self._written_inputs.values(), *self.kept}

    def paths(self) -> dict[str, str]:
        """Return what the user calls each output."""
        captured = self._captured
        paths = dict(zip(captured.output_names, leaf_paths(captured.output_spec), strict=True))
        for repetition in self._repeated:
            paths |= dict.fromkeys(repetition.names, str(repetition.write))
        for number, name in self._written_inputs.items():
            paths[name] = f"input {captured.input_names[number]!r}"
        return {name: paths[name] for name in self.names}

    def result(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Any:
        """Return the module's result, and write what forward writes.

        Args:
            outputs: the values of `names`.
            inputs: of the call, as the caller has them.
        """
        if self._complex:
            outputs = [
                torch.view_as_complex(output) if name in self._complex else output
                for name, output in zip(self.names, outputs, strict=True)
            ]
        if self._repeated or self._written_inputs:
            count = len(outputs) - len(self.beside)
            self._write(outputs[count:], inputs)
            outputs = outputs[:count]
        if self._borrows:
            outputs = self._with_borrowed(outputs, inputs)
        return self._captured.unflatten(outputs)

    def _write(self, values: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        left, sizes = iter(values), self._captured.sizes([tensor.shape for tensor in inputs])
        for repetition in self._repeated:
            repetition.apply([next(left) for _ in repetition.names], sizes)
        for number, value in zip(self._written_inputs, left, strict=True):
            write_input(inputs[number], value)

    def _with_borrowed(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Put the tensors that are none of the call's own among those that are."""
        own, tensors = iter(outputs), list[torch.Tensor]()
        for owner in self._owners:
            tensors.append(next(own) if owner is None else self._borrowed(owner, inputs, tensors))
        return tensors

    def _borrowed(self, owner: Owner, inputs: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> torch.Tensor:
        if owner.kind == "state":
            return {**self._captured.parameters, **self._captured.buffers}[owner.name]
        if owner.kind == "input":
            # Captured of a contiguous one, x and x.contiguous() are the same.
            return inputs[int(owner.name)].contiguous()
        return before[int(owner.name)]
