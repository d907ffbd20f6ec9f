"""What a trainer trains: a module or an ONNX file, each giving graphs, parameters and initial values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import onnx_ir as ir
import torch

from ontrain.capture import refuse_scripted
from ontrain.errors import OptionError, nearest
from ontrain.internals import tensor_of, version_of
from ontrain.session import TrainingSession
from ontrain.training.following import Following, check_apart, check_parameter_hooks, check_replacement
from ontrain.training.model_desc import ModelDescription
from ontrain.training.ortmodule.repeating import refuse_writes
from ontrain.training.ortmodule.watch import check_hooks, hooks_made, warn_of_hooks
from ontrain.training.wrapping import DescribedModule, capture_described, labels_of, named_tensors

__all__ = ["Form", "ModelSource", "ModuleSource", "check_parameter_names"]


@dataclass(frozen=True)
class Form:
    """A model in one mode: its graph with the described inputs and outputs, and what making it took."""

    model: ir.Model
    trainable: Sequence[str]
    seconds: Mapping[str, float] = field(default_factory=dict)


class ModelSource(Protocol):
    """Where a trainer's graphs come from."""

    @property
    def parameters(self) -> Sequence[str]:
        """Names that a parameter group may use."""
        ...

    @property
    def opset(self) -> int | None:
        """The version of the standard that a file imports; None for a module."""
        ...

    def form(self, batch: Mapping[str, torch.Tensor], *, training: bool) -> Form:
        """Return the model in training or evaluation mode, captured or checked with a batch.

        Where the batch lacks the label of an outside loss, the model comes without the loss.
        """
        ...

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all parameters and buffers by the names that the graphs use."""
        ...

    def loss_tensors(self) -> dict[str, torch.Tensor]:
        """Return what the loss function holds and nobody trains, by its own names."""
        ...

    def attach(self, session: TrainingSession) -> None:
        """Learn that the tensors live in a session from now on."""
        ...

    def refresh(self) -> None:
        """Take over what the session has changed."""
        ...

    def adopt(self) -> list[str]:
        """Give the session what the user has changed since the last `refresh`; return the names."""
        ...

    def check_trained(self) -> None:
        """Raise OptionError if the user has chosen other parameters to train since the first step."""
        ...

    def changed(self, *, training: bool) -> bool:
        """Return whether the model has to be captured anew for a call, because something is other than it was."""
        ...

    def changed_nothing(self) -> None:
        """Learn that the model's graph is the same after a change."""
        ...

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of parameters and buffers as they are now."""
        ...


class ModuleSource:
    """An `nn.Module`, captured in each mode; its parameters become views of the session's, or are kept equal to them.

    Args:
        model: any module.
        desc: its inputs and outputs.
        loss_fn: function of (first output, label), or None.
        frozen: names of parameters to leave as they are.
        check: validate what is captured against the module.

    Raises:
        OptionError: the description has no place for the loss, or no parameter has a frozen name.
    """

    opset: int | None = None

    def __init__(
        self, model: torch.nn.Module, desc: ModelDescription, loss_fn: Callable[..., Any] | None, *,
        frozen: Sequence[str], check: bool,
    ) -> None:  # fmt: skip
        self.model, self._frozen, self._check = model, frozenset(frozen), check
        self._module, self._labels = DescribedModule(model, desc, loss_fn), labels_of(desc, loss_fn)
        self.parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        self._following, self._hooks = Following(self._module, model), 0
        self._session: TrainingSession | None = None
        self._known: dict[str, torch.Tensor] = {}
        self._copied: dict[str, torch.Tensor] = {}
        self._views: list[tuple[str, torch.Tensor, int]] = []
        self._versions: list[tuple[str, torch.Tensor, tuple[int, int]]] = []
        self._trained: list[tuple[str, torch.nn.Parameter, bool]] = []
        check_parameter_names(frozen, "utils.frozen_weights", self.parameters)

    def form(self, batch: Mapping[str, torch.Tensor], *, training: bool) -> Form:
        """Capture the module in one mode."""
        module = self._module
        if any(name not in batch for name in self._labels):
            desc = module.desc
            outputs = tuple(d for d in desc.outputs if not d.is_loss)
            module = DescribedModule(self.model, ModelDescription(desc.inputs[:-1], outputs), None)
        if training:
            check_hooks(self._module)
            check_parameter_hooks(self._module)
        captured = capture_described(module, batch, training=training, check=self._check)
        if training:
            warn_of_hooks(self._module)
        refuse_writes(module, captured, tuple(batch.values()))
        self._following.captured(captured.constants, training=training)
        trainable = [n for n, p in captured.parameters.items() if p.requires_grad and n not in self._frozen]
        return Form(captured.model, trainable, captured.seconds)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the module's parameters and buffers, tied ones once."""
        return named_tensors(self._module)

    def loss_tensors(self) -> dict[str, torch.Tensor]:
        """Return the loss function's buffers, and its parameters that are not trained."""
        loss = self._module.loss_fn
        if not isinstance(loss, torch.nn.Module):
            return {}
        fixed = [(name, parameter) for name, parameter in loss.named_parameters() if not parameter.requires_grad]
        return dict([*fixed, *loss.named_buffers()])

    def attach(self, session: TrainingSession) -> None:
        """Make the module's tensors views of the session's where the provider keeps them as torch tensors."""
        check_apart(self._module)
        self._session = session
        self._trained = [
            (name, parameter, parameter.requires_grad) for name, parameter in self.model.named_parameters()
        ]
        self._known, self._copied, self._views = self.tensors(), {}, []
        with torch.no_grad():
            for name, tensor in self._known.items():
                if isinstance(session.state[name], torch.Tensor):
                    tensor.data = session.state[name]
                    self._views.append((name, tensor, tensor.data_ptr()))
                else:
                    self._copied[name] = tensor
        self._versions = [(name, tensor, _version(tensor)) for name, tensor in self._copied.items()]

    def refresh(self) -> None:
        """Copy from the session what is no view of it."""
        if self._session is None:
            return
        with torch.no_grad():
            for name, tensor in self._copied.items():
                tensor.copy_(tensor_of(self._session.state[name]))
        self._versions = [(name, tensor, _version(tensor)) for name, tensor in self._copied.items()]

    def adopt(self) -> list[str]:
        """Take over tensors that were given other memory (`p.data = …`), and copies that were written to."""
        changed: list[str] = []
        if self._session is None:
            return changed
        moved = [(name, tensor) for name, tensor, place in self._views if tensor.data_ptr() != place]
        if moved:
            check_apart(self._module)
        for name, tensor in moved:
            _give(self._session, name, tensor)
            tensor.data = self._session.state[name]
            changed.append(name)
        for name, tensor, version in self._versions:
            if _version(tensor) != version:
                _give(self._session, name, tensor)
                changed.append(name)
        # Behind these, for it attaches all tensors to the session's values.
        if self._following.has_other_state():
            refuse_scripted(self.model)
            changed += self._adopt_others(self._session)
        return changed

    def _adopt_others(self, session: TrainingSession) -> list[str]:
        """Take over the values of tensors that the user has put in the place of others."""
        now = self.tensors()
        if now.keys() != self._known.keys():
            names = sorted(now.keys() ^ self._known.keys())
            raise OptionError(
                f"the module has not the parameters and buffers that it had at the first step: {', '.join(names)}",
                reason="the step was captured for those, each with its moments",
                way_out="make a new trainer for the changed module",
            )
        others = {name: tensor for name, tensor in now.items() if tensor is not self._known[name]}
        for name, tensor in others.items():
            check_replacement(name, self._known[name], tensor)
        for name, tensor in others.items():
            session.state[name] = tensor.detach()
        if others:
            self.attach(session)
        return list(others)

    def changed(self, *, training: bool) -> bool:
        """Return whether attributes, modes, submodules or hooks are others, or what is set for all of torch is."""
        return self._following.changed(training=training)

    def changed_nothing(self) -> None:
        """Look at attributes a few times more; a loop may note in the module where it is."""
        self._following.changed_nothing()

    def check_trained(self) -> None:
        """Raise OptionError if a parameter was frozen, or is to be trained, since the first step; or CaptureError.

        The latter is raised for a hook that was registered on a parameter.
        """
        if self._hooks != hooks_made():
            self._hooks = hooks_made()
            check_parameter_hooks(self._module)
        for name, parameter, trained in self._trained:
            if parameter.requires_grad != trained and name not in self._frozen:
                raise OptionError(
                    f"requires_grad of {name!r} was set to {not trained} after the first step",
                    reason="the step was captured for the parameters that were trained then, each with its moments",
                    way_out="make a new trainer on the module: it starts from the parameters as they are now",
                )

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of what the module's own state_dict holds."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    """Changes when a tensor is written to, or is given other memory."""
    return tensor.data_ptr(), version_of(tensor)


def _give(session: TrainingSession, name: str, tensor: torch.Tensor) -> None:
    """Copy a tensor of the module to the session."""
    present = tensor_of(session.state[name])
    if tensor.shape != present.shape:
        raise OptionError(
            f"{name!r} was given data of shape {list(tensor.shape)}, it has {list(present.shape)}",
            reason="the graph is captured for the parameters that the module had at the first step",
            way_out="make a new trainer for the changed module",
        )
    session.state[name] = tensor.detach()


def check_parameter_names(names: Sequence[str], where: str, known: Sequence[str]) -> None:
    """Raise OptionError for a name that no parameter has, with the nearest that some have."""
    for name in names:
        if name not in known:
            raise OptionError(
                f"{where} names {name!r}, which is no parameter of the model",
                way_out=f"nearest: {nearest(name, known)}",
            )
