"""`CheckpointState`: parameters, properties and the optimizer's state of a model that is trained on a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ontrain.arguments import checked_flag, checked_kind, told
from ontrain.errors import InputError, OptionError, nearest
from ontrain.training.api import checkpoint_file
from ontrain.training.api.checkpoint_file import Array, Content, Property
from ontrain.training.api.tensors import Tensors, as_array

__all__ = ["CheckpointState", "Parameter", "Parameters", "Properties"]


class Parameter:
    """One parameter of a model in training (onnxruntime.training.api's Parameter).

    Args:
        name: as in the graphs.
        state: what holds its value.
    """

    def __init__(self, name: str, state: CheckpointState) -> None:
        checked_kind("the state", state, CheckpointState, "give the CheckpointState that holds the parameter")
        if name not in state.parameters:
            raise OptionError(
                f"there is no parameter {told(name)}", way_out=f"nearest: {nearest(name, state.parameter_names)}"
            )
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        """Name of the parameter."""
        return self._name

    @property
    def data(self) -> Array:
        """The present value, a copy; set an array of the same shape and dtype to change it."""
        return self._state.tensors[self._name].copy()

    @data.setter
    def data(self, value: Array) -> None:
        present, array = self._state.tensors[self._name], as_array(f"the value for {self._name!r}", value)
        if array.shape != present.shape or array.dtype != present.dtype:
            raise InputError(
                f"parameter {self._name!r} has shape {list(present.shape)} and dtype {present.dtype.name}, "
                f"the value {list(array.shape)} and {array.dtype.name}",
                way_out="reshape or convert the value",
            )
        present[...] = array

    @property
    def grad(self) -> Array | None:
        """The gradient that the last training steps made, a copy: zeros before the first.

        None for frozen parameters, and while no module has been made of the state.
        """
        grads = self._state.gradients
        if grads is None or self._name not in grads:
            return None
        return grads[self._name].copy()

    @property
    def requires_grad(self) -> bool:
        """Whether training changes the parameter."""
        return self._name in self._state.trained

    def __repr__(self) -> str:
        return f"Parameter({self._name!r}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters by name; iteration gives (name, parameter) pairs, as onnxruntime.training.api's does.

    Of a nominal checkpoint they can be counted and their names asked for; one alone can be had once they have values.
    """

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        self._state.check_values()
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: Array) -> None:
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._state.parameter_names

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        for name in self._state.parameter_names:
            yield name, self[name]

    def __len__(self) -> int:
        return len(self._state.parameter_names)


class Properties:
    """The user's own numbers and strings, saved with the parameters: an epoch, the best loss, a date."""

    def __init__(self, values: dict[str, Property]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Property:
        if name not in self:
            raise OptionError(f"there is no property {name!r}", way_out=f"nearest: {nearest(name, self._values)}")
        return self._values[name]

    def __setitem__(self, name: str, value: Property) -> None:
        if not isinstance(name, str):
            raise OptionError(f"the name of a property is {name!r}", way_out="give a text")
        if not isinstance(value, int | float | str):
            raise OptionError(
                f"property {name!r} is a {type(value).__name__}", way_out="properties are whole numbers, floats or text"
            )
        self._values[name] = value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._values

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(self._values.items())

    def __len__(self) -> int:
        return len(self._values)


class CheckpointState:
    """What a training session is made from and leaves behind.

    Attributes:
        parameters: by name, to be read and set at any time between steps.
        properties: the user's own numbers and strings.
        parameter_names: in the graphs' order.
        trained: names of the parameters that training changes.
        tensors: present values of parameters and moments.
        gradients: of the last training steps by parameter; a module brings the room for them.
        has_gradients: whether there was a training step.
        updates: how many updates the optimizer made.
        learning_rate: that was saved, None if there was no optimizer.
        is_nominal: whether values are missing: they were left out of the file, and nobody has set them yet.

    Args:
        content: of a checkpoint file; `load_checkpoint` reads one.
    """

    def __init__(self, content: Content) -> None:
        checked_kind("the content", content, Content, "read a file with CheckpointState.load_checkpoint")
        self.parameter_names, self.trained = list(content.parameters), list(content.trained)
        self.moment_names = list(content.moments)
        self.tensors = Tensors({**content.parameters, **content.moments})
        self.gradients: Tensors | None = None
        self.has_gradients = False
        self.updates, self.learning_rate = content.updates, content.learning_rate
        self.is_nominal = content.nominal
        self._properties = dict(content.properties)
        self.parameters, self.properties = Parameters(self), Properties(self._properties)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Read a checkpoint file.

        Raises:
            CheckpointError: there is no such file, or it is damaged.
        """
        return cls(checkpoint_file.read(checkpoint_uri))

    @classmethod
    def save_checkpoint(
        cls, state: CheckpointState, checkpoint_uri: str | os.PathLike[str], include_optimizer_state: bool = False
    ) -> None:
        """Write a checkpoint file.

        Args:
            state: of a training session.
            checkpoint_uri: where to write it.
            include_optimizer_state: with moments, update count and learning rate, so that training can go on as if it
                had never stopped; without them the file is a third of the size.

        Raises:
            OptionError: the file cannot be written.
        """
        checked_kind("the state", state, CheckpointState, "give the CheckpointState that the module was made with")
        checked_flag("include_optimizer_state", include_optimizer_state)
        values = state.tensors
        moments = {name: values[name] for name in state.moment_names} if include_optimizer_state else {}
        content = Content(
            {name: values[name] for name in state.parameter_names},
            state.trained,
            moments,
            state.updates if include_optimizer_state else 0,
            state.learning_rate if include_optimizer_state else None,
            state._properties,
            state.is_nominal,
        )
        checkpoint_file.write(checkpoint_uri, content)

    def check_values(self) -> None:
        """Raise OptionError if the checkpoint was a nominal one, and nobody has given the parameters values."""
        if self.is_nominal:
            raise OptionError(
                "the parameters have no values: the checkpoint is a nominal one",
                way_out="copy them in with Module.copy_buffer_to_parameters(…, trainable_only=False), "
                "or load the full checkpoint",
            )

    def add_moments(self, shapes: dict[str, tuple[tuple[int, ...], Any]]) -> None:
        """Make room for the optimizer's state, zero where the checkpoint has none."""
        for name, (shape, dtype) in shapes.items():
            if name not in self.tensors:
                self.tensors.add(name, np.zeros(shape, dtype))
                self.moment_names.append(name)

    def __getitem__(self, name: str) -> Property:
        return self.properties[name]

    def __setitem__(self, name: str, value: Property) -> None:
        self.properties[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self.properties
