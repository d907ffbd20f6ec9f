"""Blocks that make whole models: `ForwardBlock` for inference, `TrainingBlock` with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.arguments import checked_flag, checked_kind, told
from ontrain.errors import InputError, OptionError
from ontrain.session import check_written
from ontrain.training.artifacts.graphs import Source, evaluation_graph, load_source, training_graph
from ontrain.training.artifacts.proto import to_proto
from ontrain.training.onnxblock.base import current
from ontrain.training.onnxblock.blocks import Block

__all__ = ["ForwardBlock", "Parameters", "TrainingBlock"]

Parameters = tuple[list[onnx.TensorProto], list[onnx.TensorProto]]
"""Trained parameters, and all others (frozen ones and running statistics)."""


class ForwardBlock(Block):
    """A block whose result is the output of a finished model (onnxruntime.training.onnxblock.ForwardBlock)."""

    def __init__(self) -> None:
        super().__init__()
        self._model: onnx.ModelProto | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `build` and make what it returns the model's outputs."""
        output = super().__call__(*args, **kwargs)
        self.on.set_outputs(_names(output))
        check_written(self.on.model)
        self._model = onnx.ModelProto()
        self._model.CopyFrom(self.on.model)
        return output

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model.

        Raises:
            InputError: the block was not called yet.
        """
        if self._model is None:
            raise InputError("the model is not built yet", way_out="call the block inside `with onnxblock.base(…):`")
        return self._model


class TrainingBlock(Block):
    """A block whose first result is the loss of a training model (onnxruntime.training.onnxblock.TrainingBlock).

    What `requires_grad` names is trained; if it names nothing, every weight is that is not frozen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requires_grad: dict[str, bool] = {}
        self._source: Source | None = None
        self._models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Train an initializer (True), or make it a parameter that stays as it is (False).

        The name of an input asks for its gradient beside the parameters'.

        Raises:
            OptionError: the name is no text, or the value no flag.
        """
        name = checked_kind("the name of an initializer", argument_name, str, "give a text")
        self._requires_grad[name] = checked_flag(f"the value for {name!r}", value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `build`, differentiate its first result, and make the base model the training model.

        Raises:
            OptionError: a name is no initializer of the model, or `build` returned nothing.
            GradientError: an operator has no gradient, or the loss depends on no parameter.
            GraphError: the model cannot be trained for all sizes of its batch.
        """
        present = [value.name for value in current().model.graph.output]
        output = super().__call__(*args, **kwargs)
        outputs = _names(output)
        beside = [name for name in dict.fromkeys(present) if name not in outputs]
        self.on.set_outputs([*outputs, *beside])
        trained = [name for name, on in self._requires_grad.items() if on]
        frozen = [name for name, on in self._requires_grad.items() if not on]
        self._source = load_source(self.on.model, outputs[0], trained or None, frozen, beside)
        self._models = to_proto(training_graph(self._source)), to_proto(evaluation_graph(self._source))
        self.on.model.CopyFrom(self._models[0])
        return output

    @property
    def source(self) -> Source:
        """The loaded model.

        Raises:
            InputError: the block was not called yet.
        """
        if self._source is None:
            raise InputError("the model is not built yet", way_out="call the block inside `with onnxblock.base(…):`")
        return self._source

    def parameters(self) -> Parameters:
        """Return the values of trained parameters, and of all others.

        Raises:
            InputError: the block was not called yet.
        """
        source = self.source
        groups = source.trainable, [*source.frozen, *source.buffers]
        trained, others = ([_tensor(name, array) for name, array in source.values(group).items()] for group in groups)
        return trained, others

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return the training model and the evaluation model.

        Raises:
            InputError: the block was not called yet.
        """
        if self._models is None:
            raise InputError("the model is not built yet", way_out="call the block inside `with onnxblock.base(…):`")
        return self._models


def _tensor(name: str, array: Any) -> onnx.TensorProto:
    proto: onnx.TensorProto = ir.to_proto(ir.tensor(array, name=name))
    return proto


def _names(output: object) -> list[str]:
    """What a block returned, as names."""
    if isinstance(output, str):
        return [output]
    if not isinstance(output, Sequence) or isinstance(output, bytes) or not output:
        raise OptionError(
            f"build returned {told(output)}", way_out="return the name of the loss, or several names in a tuple"
        )
    return list(output)


def check_parameters(parameters: Parameters) -> Parameters:
    """Raise OptionError unless these are two lists of tensors."""
    pair = isinstance(parameters, list | tuple) and len(parameters) == 2
    if not pair or not all(
        isinstance(group, list | tuple) and all(isinstance(tensor, onnx.TensorProto) for tensor in group)
        for group in parameters
    ):
        raise OptionError(
            f"the parameters are {told(parameters)}, and not two lists of tensors",
            way_out="give what TrainingBlock.parameters returns",
        )
    return parameters


def check_trainable(parameters: Parameters) -> None:
    """Raise OptionError if nothing is trained, or these are no parameters."""
    if not check_parameters(parameters)[0]:
        raise OptionError("no parameter is trained", way_out="name some in requires_grad")
