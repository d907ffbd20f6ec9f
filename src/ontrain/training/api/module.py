"""`Module`: forward and backward on a device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ontrain.arguments import checked_flag, checked_kind
from ontrain.errors import InputError, OptionError
from ontrain.stock import stock
from ontrain.training.api.checkpoint_state import CheckpointState
from ontrain.training.api.sessions import Graph, check_device
from ontrain.training.api.tensors import Tensors, as_array, ort_value
from ontrain.training.portable_names import gradient_name, next_name

onnxruntime = stock()

__all__ = ["Module"]


class Module:
    """Runs the training and the evaluation graph of the artifacts (onnxruntime.training.api's Module).

    Args:
        train_model_uri: path of training_model.onnx.
        state: its parameters; the module reads and changes them.
        eval_model_uri: path of eval_model.onnx; needed for `eval()` and for export.
        device: "cpu".
        session_options: `onnxruntime.SessionOptions` for both graphs.

    Attributes:
        training: whether a call is a training step.

    Raises:
        OptionError: a file is missing, the checkpoint belongs to another model, or the device is none of these.
        ProviderError: onnxruntime does not take a graph.
    """

    training: bool

    def __init__(
        self,
        train_model_uri: str | os.PathLike[str],
        state: CheckpointState,
        eval_model_uri: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        session_options: object = None,
    ) -> None:
        check_device(device)
        checked_kind("the state", state, CheckpointState, "read it with CheckpointState.load_checkpoint")
        self.training = True
        self._state, self._device, self._options = state, device, session_options
        self._train_graph = Graph(train_model_uri, session_options)
        self._eval_uri = eval_model_uri
        self._eval_graph = None if eval_model_uri is None else Graph(eval_model_uri, session_options)
        self._user_inputs = {graph: self._batch(graph) for graph in (self._train_graph, self._eval_graph) if graph}
        outputs = self._train_graph.outputs
        self._grads = {gradient: p for p in state.trained if (gradient := gradient_name(p)) in outputs}
        self._updates = {new: name for name in self._train_graph.inputs if (new := next_name(name)) in outputs}
        left = sorted(set(state.trained) - set(self._grads.values()))
        if left:
            raise OptionError(
                f"the training model gives no gradient of {left[0]!r}, which the checkpoint says is trained",
                way_out="use the checkpoint that was written with it",
            )
        state.gradients = Tensors({name: np.zeros_like(state.tensors[name]) for name in state.trained})
        self._fresh = True

    def __call__(self, *user_inputs: Any) -> Any:
        """Run a training or an evaluation step.

        Args:
            user_inputs: arrays, or OrtValues, in the order of `input_names`.

        Returns:
            The outputs: arrays, or OrtValues if the inputs are; one alone as it is, several as a tuple. Gradients are
            in the state's parameters; they add up until `lazy_reset_grad`.

        Raises:
            InputError: too few or many inputs, or one of another shape or dtype.
            OptionError: evaluation without an evaluation model, or a nominal checkpoint whose parameters nobody set.
        """
        graph = self._graph()
        names = self._user_inputs[graph]
        if len(user_inputs) != len(names):
            raise InputError(
                f"{len(user_inputs)} inputs were given, the model takes {len(names)}",
                way_out=f"give {', '.join(names)}",
            )
        self._state.check_values()
        feeds = {name: graph.feed(name, array) for name, array in zip(names, user_inputs, strict=True)}
        feeds.update((n, self._state.tensors.present(n)) for n in graph.inputs if n not in feeds)
        results = self._train(feeds) if self.training else graph.run(feeds, dict.fromkeys(graph.outputs))
        as_values = any(isinstance(value, onnxruntime.OrtValue) for value in user_inputs)
        outputs = tuple(v if as_values else v.numpy() for n, v in results.items() if n in self.output_names())
        return outputs[0] if len(outputs) == 1 else outputs

    def train(self, mode: bool = True) -> Module:
        """Let calls be training steps (True) or evaluation steps (False); return the module.

        Raises:
            OptionError: evaluation is asked for and there is no evaluation model.
        """
        if not checked_flag("the mode", mode) and self._eval_graph is None:
            raise OptionError("there is no evaluation model", way_out="give Module eval_model_uri")
        self.training = mode
        return self

    def eval(self) -> Module:
        """Let calls be evaluation steps; return the module."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Let the next training step begin the gradients anew; until then they stay readable."""
        self._fresh = True

    def get_contiguous_parameters(self, trainable_only: bool = False) -> Any:
        """Return all parameters, or those that are trained, one after another in an OrtValue, [n] float32.

        Raises:
            OptionError: a nominal checkpoint whose parameters nobody set.
        """
        self._state.check_values()
        arrays = [self._state.tensors[name].ravel() for name in self._names(trainable_only)]
        return ort_value(np.concatenate(arrays) if arrays else np.zeros(0, np.float32))

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Return the number of elements of all parameters, or of those that are trained."""
        return sum(self._state.tensors[name].size for name in self._names(trainable_only))

    def copy_buffer_to_parameters(self, buffer: object, trainable_only: bool = True) -> None:
        """Set parameters from what `get_contiguous_parameters` gave, here or on another machine.

        Raises:
            InputError: the buffer has another length or dtype.
        """
        values = buffer.numpy() if isinstance(buffer, onnxruntime.OrtValue) else buffer
        flat = as_array("the buffer", values, "give what get_contiguous_parameters returned")
        names, at = self._names(trainable_only), 0
        wanted = sum(self._state.tensors[name].size for name in names)
        dtypes = {self._state.tensors[name].dtype for name in names}
        if flat.shape != (wanted,) or dtypes - {flat.dtype}:
            raise InputError(
                f"the buffer is {flat.dtype.name} {list(flat.shape)}, the parameters have {wanted} elements",
                way_out="use the same trainable_only for both directions",
            )
        for name in names:
            array = self._state.tensors[name]
            array[...] = flat[at : at + array.size].reshape(array.shape)
            at += array.size
        if not trainable_only or len(names) == len(self._state.parameter_names):
            self._state.is_nominal = False

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: Sequence[str]
    ) -> None:
        """Write an ONNX model with the present parameters inside, without loss and labels; needs the package onnx.

        Args:
            inference_model_uri: where to write it.
            graph_output_names: outputs to keep, from the outputs of the model of the artifacts. Inputs that no kept
                output needs are dropped.

        Raises:
            OptionError: there is no evaluation model, it has no such output, the path cannot be written, or a nominal
                checkpoint's parameters were set by nobody.
        """
        from ontrain.training.api.inference import inference_model

        if self._eval_uri is None:
            raise OptionError("there is no evaluation model", way_out="give Module eval_model_uri")
        self._state.check_values()
        inference_model(self._eval_uri, self._state.tensors, graph_output_names, inference_model_uri)

    def input_names(self) -> list[str]:
        """Return the names of what a call takes, in order, in the present mode."""
        return list(self._user_inputs[self._graph()])

    def output_names(self) -> list[str]:
        """Return the names of what a call gives, in order, in the present mode."""
        return [n for n in self._graph().outputs if n not in self._grads and n not in self._updates]

    def _graph(self) -> Graph:
        graph = self._train_graph if self.training else self._eval_graph
        assert graph is not None, "train() lets nobody into evaluation without its graph"
        return graph

    def _train(self, feeds: dict[str, Any]) -> dict[str, Any]:
        values, grads = self._state.tensors, self._state.gradients
        assert grads is not None
        targets: dict[str, Any] = dict.fromkeys(self._train_graph.outputs)
        for output, name in self._grads.items():
            targets[output] = grads.present(name) if self._fresh else grads.next(name)
        targets.update((output, values.next(name)) for output, name in self._updates.items())
        results = self._train_graph.run(feeds, targets)
        if not self._fresh:
            for name in self._grads.values():
                grads[name][...] += grads.spare(name)
        values.swap(self._updates.values())
        self._fresh, self._state.has_gradients = False, True
        return results

    def _batch(self, graph: Graph) -> list[str]:
        """The inputs that no state holds; a parameter that the checkpoint lacks is not taken for one."""
        names = [name for name in graph.inputs if name not in self._state.tensors]
        for name in names:
            if gradient_name(name) in graph.outputs or next_name(name) in graph.outputs:
                raise OptionError(
                    f"the checkpoint has no parameter {name!r}, which the model needs",
                    way_out="use the checkpoint that was written with it",
                )
        return names

    def _names(self, trainable_only: bool) -> list[str]:
        return self._state.trained if checked_flag("trainable_only", trainable_only) else self._state.parameter_names
