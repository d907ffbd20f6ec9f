"""An ONNX file under a trainer: its outputs as described, and a loss where it has none of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype, to_torch_dtype
from torch import nn

from ontrain.capture import OnnxModel, capture, load_onnx
from ontrain.errors import CaptureError, OptionError, nearest
from ontrain.functions import inline_all
from ontrain.graph import Builder, Role, by_role, emit, rebuild, set_role, specialise, static_dims, updates_of
from ontrain.internals import tensor_of
from ontrain.optim import LOSSES, TORCH_NAMES
from ontrain.session import TrainingSession
from ontrain.training.model_desc import ModelDescription, TensorDescription
from ontrain.training.source import Form

__all__ = ["OnnxSource"]


class OnnxSource:
    """An ONNX file with the described inputs and outputs and a loss.

    Args:
        source: path, bytes, `onnx.ModelProto` or `onnx_ir.Model`.
        desc: inputs by the file's names, and the label where there is a `loss_fn`; outputs by the file's names.
            Dimensions given as strings vary, whatever the file says.
        loss_fn: None if the file has the loss as an output; else a function of torch tensors (output, label), or the
            name of a loss: "CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "BCEWithLogitsLoss".
        requires_grad: names or patterns of initializers to train; None for all weights.
        frozen: names or patterns of those to leave.
        check: run onnx's checker on the graphs.

    Raises:
        InputError, GraphError: the file is missing, damaged, or cannot be trained.
        OptionError: the description, the loss or a name does not fit the file.
    """

    def __init__(
        self, source: Any, desc: ModelDescription, loss_fn: Callable[..., Any] | str | None, *,
        requires_grad: Sequence[str] | None, frozen: Sequence[str], check: bool,
    ) -> None:  # fmt: skip
        started = time.perf_counter()
        self._desc, self._loss_fn, self._check = desc, loss_fn, check
        self._label = None if loss_fn is None else desc.inputs[-1]
        own = desc.inputs if loss_fn is None else desc.inputs[:-1]
        if loss_fn is not None:
            _check_loss(desc, loss_fn)
        self._loaded = load_onnx(source, trainable=requires_grad, frozen=frozen, shapes={d.name: d.shape for d in own})
        _check_inputs(self._loaded, own, self._label)
        described = [d for d in desc.outputs if loss_fn is None or not d.is_loss]
        _check_outputs(self._loaded, described)
        self._kept = [d.name for d in described] or self._loaded.output_names[:1]
        self.parameters = [*self._loaded.trainable, *self._loaded.frozen]
        self.opset: int | None = self._loaded.opset
        self._session: TrainingSession | None = None
        self._seconds = time.perf_counter() - started

    def form(self, batch: Mapping[str, torch.Tensor], *, training: bool) -> Form:
        """Return the file's graph in one mode, with its loss."""
        started = time.perf_counter()
        model = _with_outputs(self._loaded.model if training else self._loaded.evaluation, self._kept)
        if self._label is not None and self._label.name in batch:
            model = self._with_loss(model, batch)
        if self._check:
            _check_graph(model)
        used = {value.name for value in model.graph.inputs}
        trainable = [name for name in self._loaded.trainable if name in used]
        return Form(model, trainable, {"load": self._seconds, "loss": time.perf_counter() - started})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the values of weights and running statistics by the file's names."""
        return dict(self._loaded.initial)

    def loss_tensors(self) -> dict[str, torch.Tensor]:
        """Nothing: a file's loss is part of its graph, or one by name."""
        return {}

    def attach(self, session: TrainingSession) -> None:
        """Read values from the session from now on; the file's own are let go."""
        self._session = session
        self._loaded.initial.clear()

    def refresh(self) -> None:
        """Nothing: values are read from the session whenever they are asked for."""

    def check_trained(self) -> None:
        """Nothing to check: a file's weights are chosen when the trainer is made."""

    def changed(self, *, training: bool) -> bool:
        """Return False: a file is read once."""
        return False

    def changed_nothing(self) -> None:
        """Nothing to learn."""

    def adopt(self) -> list[str]:
        """Nothing: a file's tensors have no other place that a user could write to."""
        return []

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of weights and running statistics by the file's names."""
        if self._session is None:
            return {name: tensor.clone() for name, tensor in self._loaded.initial.items()}
        state = self._session.state
        return {name: tensor_of(state[name]).detach().clone() for name in self._session.model_tensors}

    def _with_loss(self, model: ir.Model, batch: Mapping[str, torch.Tensor]) -> ir.Model:
        """Append the loss of the first output, as a first output."""
        desc, label = self._desc, self._label
        assert label is not None
        graph, op = model.graph, Builder(model.graph)
        labels = batch[label.name]
        label_in = ir.Value(
            name=op.fresh(label.name),
            shape=ir.Shape(label.shape),
            type=ir.TensorType(from_torch_dtype(labels.dtype)),
        )
        position = len(by_role(graph, Role.INPUT, Role.LABEL))
        output = graph.outputs[0]
        if isinstance(self._loss_fn, str):
            loss = LOSSES[TORCH_NAMES.get(self._loss_fn, self._loss_fn)](op, output, label_in)
        else:
            assert self._loss_fn is not None
            captured = _captured_loss(self._loss_fn, model, output, label, batch)
            loss = emit(op, captured.graph, [output, label_in])[0]
        graph.inputs.insert(position, set_role(label_in, Role.LABEL))
        loss.name = op.fresh(desc.loss.name)
        if loss.name != desc.loss.name or label_in.name != label.name:
            raise OptionError(
                f"the file has a value named {desc.loss.name if label_in.name == label.name else label.name!r} already",
                way_out="describe the loss and the label under other names",
            )
        described = [d.name for d in desc.outputs if not d.is_loss]
        updates = [value for value in graph.outputs if updates_of(value) is not None]
        outputs = [value for value in graph.outputs if value.name in described]
        del graph.outputs[:]
        graph.outputs.extend([loss, *outputs, *updates])
        return rebuild(model)


def _check_loss(desc: ModelDescription, loss_fn: Callable[..., Any] | str) -> None:
    if isinstance(loss_fn, str) and loss_fn not in TORCH_NAMES and loss_fn not in LOSSES:
        raise OptionError(f"there is no loss {loss_fn!r}", way_out=f"nearest: {nearest(loss_fn, TORCH_NAMES)}")
    if not isinstance(loss_fn, str) and not callable(loss_fn):
        raise OptionError(f"loss_fn is {loss_fn!r}", way_out="give a loss's name, or a function of (output, label)")
    if not desc.outputs[0].is_loss:
        raise OptionError(
            "with a loss_fn the first output of model_desc must be the loss",
            way_out="write 'outputs': [('loss', [], True), …]",
        )
    if len(desc.inputs) < 2:
        raise OptionError("with a loss_fn model_desc needs an input and a label", way_out="add the label last")
    if isinstance(loss_fn, nn.Module) and any(parameter.requires_grad for parameter in loss_fn.parameters()):
        raise OptionError(
            "the loss_fn has parameters of its own, and those of a file are its initializers",
            way_out="freeze the loss_fn's parameters, or put the loss into the file",
        )


def _check_inputs(loaded: OnnxModel, described: Sequence[TensorDescription], label: TensorDescription | None) -> None:
    names = [d.name for d in described]
    for name in loaded.input_names:
        if name not in names:
            raise OptionError(
                f"model_desc lacks the file's input {name!r}",
                reason=f"the file's inputs are {', '.join(loaded.input_names)}"
                + (f"; {label.name!r} is taken for the label, as there is a loss_fn" if label is not None else ""),
                way_out="describe each of them",
            )
    if label is not None and label.name in loaded.input_names:
        raise OptionError(
            f"the last input {label.name!r} is an input of the file, not a label",
            way_out="describe the label last, or leave loss_fn out if the file has a loss",
        )


def _check_outputs(loaded: OnnxModel, described: Sequence[TensorDescription]) -> None:
    for output in described:
        if output.name not in loaded.output_names:
            raise OptionError(
                f"the file has no output {output.name!r}",
                way_out=f"nearest: {nearest(output.name, loaded.output_names)}",
            )


def _with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """The model with only these outputs, in this order, and the updates of its buffers."""
    rebuilt = rebuild(model)
    graph = rebuilt.graph
    by_name = {value.name: value for value in graph.outputs}
    updates = [value for value in graph.outputs if updates_of(value) is not None]
    del graph.outputs[:]
    graph.outputs.extend([*(by_name[name] for name in names), *updates])
    return rebuild(rebuilt)


def _captured_loss(
    loss_fn: Callable[..., Any], model: ir.Model, output: ir.Value, label: TensorDescription,
    batch: Mapping[str, torch.Tensor],
) -> ir.Model:  # fmt: skip
    """The loss function as a closed graph of (output, label)."""
    shapes = {v.name or "": tuple(batch[v.name or ""].shape) for v in by_role(model.graph, Role.INPUT)}
    concrete = next(v for v in specialise(model, shapes).graph.outputs if v.name == output.name)
    assert output.shape is not None and output.dtype is not None
    names = [d.value if isinstance(d, ir.SymbolicDim) else None for d in output.shape]
    dynamic = {i: n if n.isidentifier() else f"output_dim{i}" for i, n in enumerate(names) if n is not None}
    sample = torch.zeros(static_dims(concrete), dtype=to_torch_dtype(output.dtype), device=batch[label.name].device)
    module = _Loss(loss_fn)
    captured = capture(
        module, (sample, batch[label.name]), input_names=["output", "label"], dynamic=[dynamic, label.dynamic()],
        output_names=["loss"],
    )  # fmt: skip
    closed = Builder(captured.model.graph)
    constants: dict[str, torch.Tensor] = {**captured.parameters, **captured.buffers}
    for value in [v for v in captured.model.graph.inputs if v.name in constants]:
        fixed = closed.const(constants[value.name or ""].detach().cpu().numpy())
        ir.convenience.replace_all_uses_with([value], [fixed], replace_graph_outputs=True)
        captured.model.graph.inputs.remove(value)
    loss = captured.model.graph.outputs[0]
    if loss.shape is None or any(d != 1 for d in loss.shape):
        raise CaptureError("the loss_fn returns no scalar", way_out="reduce it, for instance by its mean")
    return captured.model


class _Loss(nn.Module):
    def __init__(self, loss_fn: Callable[..., Any]) -> None:
        super().__init__()
        self.loss_fn = loss_fn

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> Any:
        return self.loss_fn(output, label)


def _check_graph(model: ir.Model) -> None:
    try:
        onnx.checker.check_model(ir.to_proto(inline_all(model)), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CaptureError("the loaded graph is no valid ONNX", reason=str(error)) from error
