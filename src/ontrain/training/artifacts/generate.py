"""`generate_artifacts`: an ONNX model becomes the files that train it on any device."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.arguments import checked_flag, checked_kind, checked_names, checked_path
from ontrain.errors import OptionError, nearest
from ontrain.files import check_proto, in_order, read_proto
from ontrain.graph import DOMAIN, Builder
from ontrain.session import check_opset, import_opset, with_operators_of
from ontrain.training import onnxblock
from ontrain.training.artifacts.graphs import training_graph
from ontrain.training.artifacts.optimizer import add_update
from ontrain.training.artifacts.proto import to_proto
from ontrain.training.artifacts.write import check_folder, save

__all__ = ["LossType", "OptimType", "generate_artifacts"]


class LossType(enum.Enum):
    """Losses that `generate_artifacts` can add."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(enum.Enum):
    """Optimizers that `generate_artifacts` can write."""

    AdamW = 1
    SGD = 2


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: str | bytes | os.PathLike[Any] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | bytes | os.PathLike[Any] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    *,
    step_model: bool = False,
    opset: int | None = None,
) -> None:
    """Write what trains a model on a device (onnxruntime.training.artifacts.generate_artifacts).

    training_model.onnx gives loss and gradients, eval_model.onnx the loss with dropout off, optimizer_model.onnx the
    update, checkpoint the parameters. All graphs consist of standard operators, for batches of any size that the
    model allows: any onnxruntime runs them, in any language; `ontrain.training.api` does from Python.

    Args:
        model: the model, or its path. Initializers that neither list names stay constants of the graphs.
        requires_grad: initializers to train, and inputs whose gradient the training model is to return; None for every
            weight that is not frozen.
        frozen_params: initializers that are not trained but kept as parameters, to be read and set.
        loss: a loss of the model's output, a block that builds one, or None if the model's first output is the loss.
        optimizer: an optimizer, a block that makes its model, or None for none.
        artifact_directory: an existing folder; None for the current one.
        prefix: of all file names.
        ort_format: write the graphs in onnxruntime's format (.ort) too.
        custom_op_library: refused: see `onnxblock.custom_op_library`.
        additional_output_names: values to return beside the loss.
        nominal_checkpoint: write nominal_checkpoint too: the checkpoint without its values.
        loss_input_names: values that the loss is given; None for all outputs of the model.
        step_model: write step_model.onnx too: one whole step in one graph, for loops written by hand.
        opset: the version of the standard's operators in the files, for devices with an older onnxruntime; None for
            the newest that ontrain knows.

    Raises:
        OptionError: an argument is wrong, or the folder cannot be written.
        GraphError: the model is damaged, or cannot be trained for all sizes of its batch; or an operator cannot be
            written at `opset`.
        GradientError: an operator has no gradient, or the loss does not depend on a parameter.
    """
    if custom_op_library is not None:
        with onnxblock.custom_op_library(custom_op_library):
            pass
    base = _base(artifact_directory, prefix)
    flags = {"ort_format": ort_format, "nominal_checkpoint": nominal_checkpoint, "step_model": step_model}
    for what, flag in flags.items():
        checked_flag(what, flag)
    if opset is not None:
        check_opset(opset)
    trained, frozen = _names("requires_grad", requires_grad), _names("frozen_params", frozen_params)
    additional = _names("additional_output_names", additional_output_names)
    inputs = _names("loss_input_names", loss_input_names)
    _check_lists(trained, frozen)
    update = _update_block(optimizer)
    if step_model:
        _check_step(update)
    proto, name = read_proto(model)
    proto = in_order(proto)
    check_proto(proto, name)
    block = _Training(_loss_block(loss), additional or [])
    for name in trained or ():
        block.requires_grad(name)
    for name in frozen or ():
        block.requires_grad(name, False)
    with onnxblock.base(proto):
        block(*_loss_inputs(proto, loss, inputs))
    training, evaluation = block.to_model_proto()
    files = {"training_model": training, "eval_model": evaluation}
    if update is not None:
        with onnxblock.empty_base():
            update(block.parameters())
        files["optimizer_model"] = update.to_model_proto()
    if step_model:
        files["step_model"] = _step_model(block, update)
    files = {name: _at_opset(file, opset) for name, file in files.items()}
    for name, file in files.items():
        save(file, Path(f"{base}{name}.onnx"), ort_format=ort_format)
    onnxblock.save_checkpoint(block.parameters(), f"{base}checkpoint")
    if nominal_checkpoint:
        onnxblock.save_checkpoint(block.parameters(), f"{base}nominal_checkpoint", nominal_checkpoint=True)


def _base(folder: str | bytes | os.PathLike[Any] | None, prefix: str) -> str:
    """What the paths of all files begin with."""
    place = check_folder(Path.cwd() if folder is None else checked_path("artifact_directory", folder))
    if os.path.isabs(checked_kind("prefix", prefix, str, "give a text, '' for none")) or "\0" in prefix:
        raise OptionError(f"prefix is {prefix!r}", way_out="give the beginning of a file name, and artifact_directory")
    check_folder((place / f"{prefix}checkpoint").parent)
    return os.path.join(place, prefix)


def _at_opset(proto: onnx.ModelProto, opset: int | None) -> onnx.ModelProto:
    if opset is None:
        return proto
    model = with_operators_of(ir.from_proto(proto), opset)
    import_opset(model, opset)
    model.graph.opset_imports.pop(DOMAIN, None)
    return to_proto(model)


class _Training(onnxblock.TrainingBlock):
    """The loss, and beside it the outputs that were asked for."""

    def __init__(self, loss: onnxblock.Block, additional: Sequence[str]) -> None:
        super().__init__()
        self._loss, self._additional = loss, additional

    def build(self, *names: str) -> tuple[str, ...]:
        loss = self._loss(*names)
        return tuple(dict.fromkeys([*([loss] if isinstance(loss, str) else loss), *self._additional]))


_LOSSES: dict[LossType, Callable[[], onnxblock.Block]] = {
    LossType.MSELoss: onnxblock.loss.MSELoss,
    LossType.CrossEntropyLoss: onnxblock.loss.CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: onnxblock.loss.BCEWithLogitsLoss,
    LossType.L1Loss: onnxblock.loss.L1Loss,
}
_OPTIMIZERS: dict[OptimType, Callable[[], Any]] = {
    OptimType.AdamW: onnxblock.optim.AdamW,
    OptimType.SGD: onnxblock.optim.SGD,
}


def _loss_block(loss: LossType | onnxblock.Block | None) -> onnxblock.Block:
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        return _LOSSES[loss]()
    if not isinstance(loss, onnxblock.Block):
        raise OptionError(
            f"the loss is a {type(loss).__name__}",
            way_out="give a LossType, an onnxblock.Block, or None if the model's first output is the loss",
        )
    return loss


def _update_block(optimizer: OptimType | onnxblock.Block | None) -> Any:
    if optimizer is None:
        return None
    if isinstance(optimizer, OptimType):
        return _OPTIMIZERS[optimizer]()
    if not isinstance(optimizer, onnxblock.Block) or not hasattr(optimizer, "to_model_proto"):
        raise OptionError(
            f"the optimizer is a {type(optimizer).__name__}",
            way_out="give an OptimType, or a block of onnxblock.optim with settings of your own",
        )
    return optimizer


def _loss_inputs(
    proto: onnx.ModelProto, loss: LossType | onnxblock.Block | None, names: Sequence[str] | None
) -> list[str]:
    """What the loss is given; a built-in loss takes one value, and perhaps what to compare it with."""
    outputs = [value.name for value in proto.graph.output]
    if not outputs:
        raise OptionError("the model has no outputs", way_out="export it with the output that the loss is of")
    known = {*outputs, *(v.name for v in proto.graph.input), *(n for node in proto.graph.node for n in node.output)}
    for name in names or ():
        if name not in known:
            raise OptionError(
                f"loss_input_names has {name!r}, which is no value of the model",
                way_out=f"nearest: {nearest(name, known)}",
            )
    chosen = list(names) if names else outputs
    if isinstance(loss, LossType) and len(chosen) != 1 and not (names and len(chosen) == 2):
        raise OptionError(
            f"{loss.name} takes one output, and there are {len(chosen)}: {', '.join(chosen)}",
            way_out="name the one in loss_input_names, or give a block of your own as loss",
        )
    return chosen


def _names(what: str, names: object) -> list[str] | None:
    return None if names is None else checked_names(what, names)


def _check_lists(requires_grad: Sequence[str] | None, frozen: Sequence[str] | None) -> None:
    both = sorted(set(requires_grad or ()) & set(frozen or ()))
    if both:
        raise OptionError(
            f"parameter {both[0]!r} is in requires_grad and in frozen_params", way_out="name it in one of them"
        )
    if requires_grad is not None and not requires_grad:
        raise OptionError("requires_grad is empty", way_out="name a parameter, or give None for all weights")


def _check_step(update: object) -> None:
    if update is None:
        raise OptionError("a step model needs an optimizer", way_out="give optimizer, or leave step_model out")
    if not hasattr(update, "spec"):
        raise OptionError(
            f"no step model can be made with the optimizer {type(update).__name__}",
            way_out="use one of onnxblock.optim, or leave step_model out",
        )


def _step_model(block: onnxblock.TrainingBlock, update: Any) -> onnx.ModelProto:
    def extend(op: Builder, grads: Any) -> None:
        add_update(op, grads, update.spec, update.max_norm)

    return to_proto(training_graph(block.source, extend))
