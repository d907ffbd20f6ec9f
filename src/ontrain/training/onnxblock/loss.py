"""Losses as blocks. What they compare with is a new input, unless the model has a value of that name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from ontrain.arguments import checked_whole, told
from ontrain.errors import GraphError, OptionError, nearest
from ontrain.training.onnxblock import blocks

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]

_REDUCTIONS = ("mean", "sum", "none")


class _Loss(blocks.Block):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
            raise OptionError(
                f"there is no reduction {told(reduction)}", way_out=f"nearest: {nearest(reduction, _REDUCTIONS)}"
            )
        self._reduction = reduction

    def _reduced(self, name: str) -> str:
        if self._reduction == "none":
            return name
        op_type = "ReduceMean" if self._reduction == "mean" else "ReduceSum"
        return self.on.node(op_type, [name], wish="loss", keepdims=0)

    def _target(self, like: str, name: str) -> str:
        return name if self.on.exists(name) else self.on.input_like(like, name)


class MSELoss(_Loss):
    """(x − y)², the mean over all elements or their sum (torch.nn.MSELoss)."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss of a value and a target of its shape."""
        difference = self.on.node("Sub", [loss_input_name, self._target(loss_input_name, target_name)])
        return self._reduced(self.on.node("Mul", [difference, difference]))


class L1Loss(_Loss):
    """|x − y|, the mean over all elements or their sum (torch.nn.L1Loss)."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss of a value and a target of its shape."""
        difference = self.on.node("Sub", [loss_input_name, self._target(loss_input_name, target_name)])
        return self._reduced(self.on.node("Abs", [difference]))


class CrossEntropyLoss(_Loss):
    """Cross entropy of scores [N, C, …] and int64 labels [N, …] (torch.nn.CrossEntropyLoss).

    Args:
        weight: of each class, [C]; the mean is divided by the sum of the rows' weights.
        reduction: "mean", "sum" or "none".
        ignore_index: label of rows that count for nothing.
    """

    def __init__(
        self, weight: np.ndarray[Any, Any] | None = None, reduction: str = "mean", ignore_index: int | None = None
    ) -> None:
        super().__init__(reduction)
        self._weight = _numbers("weight", weight)
        self._ignored = None if ignore_index is None else checked_whole("ignore_index", ignore_index, -(1 << 63))
        if self._weight is not None and self._weight.ndim != 1:
            raise OptionError(f"weight has shape {list(self._weight.shape)}", way_out="give one number for each class")

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Add the loss of scores and labels.

        Raises:
            GraphError: the scores have no axis of classes.
            OptionError: the weights are of another number of classes.
        """
        dims = self.on.find(scores_input_name).type.tensor_type.shape.dim
        if len(dims) < 2:
            raise GraphError(
                f"{scores_input_name!r} has no axis of classes", way_out="give scores of shape [batch, classes, …]"
            )
        if not self.on.exists(labels_name):
            labels_name = self.on.input_like(scores_input_name, labels_name, without=1, dtype=onnx.TensorProto.INT64)
        names = [scores_input_name, labels_name]
        if self._weight is not None:
            if dims[1].HasField("dim_value") and dims[1].dim_value != len(self._weight):
                raise OptionError(
                    f"weight is of {len(self._weight)} classes, {scores_input_name!r} has {dims[1].dim_value}",
                    way_out="give one number for each class",
                )
            names.append(self.on.constant(self._weight, "class_weights"))
        settings: dict[str, Any] = {} if self._ignored is None else {"ignore_index": self._ignored}
        return self.on.node("SoftmaxCrossEntropyLoss", names, wish="loss", reduction=self._reduction, **settings)


class BCEWithLogitsLoss(_Loss):
    """w · (p·y·log(1 + e⁻ˣ) + (1 − y)·log(1 + eˣ)) of logits x and probabilities y (torch.nn.BCEWithLogitsLoss).

    Args:
        weight: w, of each element, broadcast.
        reduction: "mean", "sum" or "none".
        pos_weight: p, of positive examples, broadcast.
    """

    def __init__(
        self, weight: np.ndarray[Any, Any] | None = None, reduction: str = "mean",
        pos_weight: np.ndarray[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(reduction)
        self._weight, self._pos_weight = _numbers("weight", weight), _numbers("pos_weight", pos_weight)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss of logits and a target of their shape."""
        on, x = self.on, loss_input_name
        y = self._target(x, target_name)
        # Softplus overflows for no x, unlike the logarithm of a sigmoid.
        of_negative = on.node("Mul", [on.node("Sub", [self._number(1.0), y]), on.node("Softplus", [x])])
        of_positive = on.node("Mul", [y, on.node("Softplus", [on.node("Neg", [x])])])
        if self._pos_weight is not None:
            of_positive = on.node("Mul", [of_positive, self._array(self._pos_weight, "pos_weight")])
        loss = on.node("Add", [of_positive, of_negative])
        if self._weight is not None:
            loss = on.node("Mul", [loss, self._array(self._weight, "weight")])
        return self._reduced(loss)

    def _number(self, value: float) -> str:
        return self.on.constant(np.array(value, np.float32), "one")

    def _array(self, value: np.ndarray[Any, Any], name: str) -> str:
        return self.on.constant(value, f"bce_{name}")


def _numbers(what: str, stated: object) -> np.ndarray[Any, Any] | None:
    """Numbers as an array of float32.

    Raises:
        OptionError: they are none.
    """
    if stated is None:
        return None
    try:
        if isinstance(stated, str | bytes):
            raise TypeError("it is a text")
        numbers = np.asarray(stated, np.float32)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{what} is no array of numbers", reason=str(error), way_out="give a numpy array") from error
    if not np.isfinite(numbers).all():
        raise OptionError(f"{what} is not finite everywhere", way_out="give a numpy array of finite numbers")
    return numbers
