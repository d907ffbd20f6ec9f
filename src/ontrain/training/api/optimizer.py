"""`Optimizer`: the update on a device."""

from __future__ import annotations

import os

import numpy as np

from ontrain.arguments import checked_kind, checked_number
from ontrain.errors import InputError, OptionError
from ontrain.training.api.module import Module
from ontrain.training.api.sessions import Graph
from ontrain.training.api.tensors import Tensors
from ontrain.training.portable_names import gradient_name, next_name

__all__ = ["Optimizer"]


class Optimizer:
    """Runs the optimizer graph of the artifacts on a module's parameters (onnxruntime.training.api's Optimizer).

    Its moments and its count of updates live in the module's state; they begin at zero unless the checkpoint has them.

    Args:
        optimizer_uri: path of optimizer_model.onnx.
        module: whose parameters to update.

    Raises:
        OptionError: the file is missing, or belongs to another model.
    """

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        checked_kind("the module", module, Module, "give the ontrain.training.api.Module to update")
        self._graph, self._state = Graph(optimizer_uri, module._options), module._state
        inputs = set(self._graph.inputs) - {"learning_rate", "step"}
        grads = {gradient_name(name): name for name in self._state.trained}
        self._grads = {graph: name for graph, name in grads.items() if graph in inputs}
        trained = set(self._grads.values())
        for name in [*sorted(set(self._state.trained) - trained), *sorted(trained - inputs)]:
            raise OptionError(
                f"the optimizer model does not update parameter {name!r}",
                way_out="use the optimizer model that was written with the checkpoint",
            )
        moments = [n for n in self._graph.inputs if n in inputs and n not in self._grads and n not in trained]
        self._state.add_moments({name: self._graph.shape(name) for name in moments})
        self._updates = {next_name(name): name for name in (*self._state.trained, *moments)}
        # Zero-dimensional arrays that each step reads in place.
        self._hyper = Tensors({"learning_rate": np.array(1e-3, np.float32), "step": np.zeros((), np.float32)})
        if self._state.learning_rate is not None:
            self.set_learning_rate(self._state.learning_rate)
        else:
            self._state.learning_rate = self.get_learning_rate()

    def step(self) -> None:
        """Update the parameters by the gradients of the training steps since `Module.lazy_reset_grad`.

        Raises:
            InputError: there was no training step yet.
            OptionError: a nominal checkpoint whose parameters nobody set.
        """
        self._state.check_values()
        grads = self._state.gradients
        if grads is None or not self._state.has_gradients:
            raise InputError("there are no gradients yet", way_out="call the module in training mode first")
        self._hyper["step"][...] = self._state.updates + 1
        feeds = {name: self._hyper.present(name) for name in ("learning_rate", "step") if name in self._graph.inputs}
        feeds.update((graph, grads.present(name)) for graph, name in self._grads.items())
        feeds.update((name, self._state.tensors.present(name)) for name in self._updates.values())
        self._graph.run(feeds, {output: self._state.tensors.next(name) for output, name in self._updates.items()})
        self._state.tensors.swap(self._updates.values())
        self._state.updates += 1

    @property
    def updates(self) -> int:
        """How many updates were made, those before the checkpoint included if it says."""
        return self._state.updates

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next updates.

        Raises:
            OptionError: it is no number from 0.
        """
        rate = checked_number("the learning rate", learning_rate, "a number from 0", at_least=0)
        self._hyper["learning_rate"][...] = rate
        self._state.learning_rate = rate

    def get_learning_rate(self) -> float:
        """Return the learning rate of the next update; 0.001 until one is set."""
        return float(self._hyper["learning_rate"])
