"""What a user changes in a module between two steps of a trainer: other tensors, attributes, modes and hooks."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable

import torch
from torch import nn

from ontrain.capture import refuse_scripted
from ontrain.errors import CaptureError, OptionError
from ontrain.internals import of
from ontrain.training.ortmodule.surroundings import surroundings
from ontrain.training.ortmodule.watch import Watch

__all__ = ["Following", "check_apart", "check_parameter_hooks", "check_replacement"]

_FUTILE = 3
"""Changes of attributes that leave the graph as it was, after which attributes are no longer looked at."""
_NAMES = frozenset({"loss_fn"})
"""What of the module as a trainer calls it, beside its parts, a user may change: its description stays."""
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Following:
    """Notices what of a module is other than it was captured.

    Args:
        module: the user's, as a trainer calls it.
        model: the user's, whose mode a user sets.
    """

    def __init__(self, module: nn.Module, model: nn.Module) -> None:
        self._module, self._model = module, model
        self._constants: list[torch.Tensor] = []
        self._watch: Watch | None = None
        self._modes: tuple[bool, ...] | None = None
        self._surroundings: dict[bool, Hashable] = {}
        self._moved = False
        self._futile = 0

    def captured(self, constants: Iterable[torch.Tensor], *, training: bool) -> None:
        """Take the module, and what is set for all of torch, as they are.

        A trace runs forward, which may set attributes itself.

        Args:
            constants: tensors that the graph holds as they were.
            training: whether the graph is the one for training.
        """
        self._take_up(constants)
        self._surroundings[training] = surroundings()

    def _take_up(self, constants: Iterable[torch.Tensor]) -> None:
        self._constants += constants
        self._watch = Watch(self._module, self._constants, names={id(self._module.__dict__): _NAMES})
        self._modes = self._training_modes() or self._modes

    def has_other_state(self) -> bool:
        """Whether a parameter, buffer, submodule or hook was replaced, added or removed."""
        return self._watch is not None and not self._watch.has_state()

    def changed(self, *, training: bool) -> bool:
        """Whether the module is other than at the last call or capture, or is called in other surroundings.

        Args:
            training: whether the call is for training: a loop may do that under autocast, and evaluate without.
        """
        if self._watch is None:
            return False
        now = surroundings()
        self._moved = self._surroundings.get(training, now) != now
        modes = self._training_modes() or self._modes
        looks = self._watch.changed if self._futile < _FUTILE else self.has_other_state
        if not self._moved and modes == self._modes and not looks():
            return False
        refuse_scripted(self._model)
        self._take_up(())
        self._surroundings.clear()
        return True

    def changed_nothing(self) -> None:
        """Learn that the graph is the same after a change of the module.

        Warns:
            UserWarning: that happened a few times: attributes are no longer looked at.
        """
        if self._moved:
            return
        self._futile += 1
        if self._futile == _FUTILE:
            warnings.warn(
                f"attributes of {type(self._model).__name__} were changed {_FUTILE} times between steps, and its graph "
                "was the same each time; from now on a trainer that is to follow a changed attribute has to be made "
                "anew. Keep notes of a loop outside of the module.",
                stacklevel=6,
            )

    def _training_modes(self) -> tuple[bool, ...] | None:
        """Which submodules are in training mode; None where the whole model is not, and is captured as if it were."""
        assert self._watch is not None
        return self._watch.modes() if self._model.training else None


def check_parameter_hooks(module: nn.Module) -> None:
    """Refuse hooks of parameters, for a step computes gradients without calling Python.

    Raises:
        CaptureError: a parameter has one.
    """
    for name, parameter in module.named_parameters():
        if any(of(f"torch.Tensor.{hooks}", parameter) for hooks in _HOOKS):
            raise CaptureError(
                f"parameter {name.removeprefix('model.')!r} has a hook",
                reason="a step computes gradients and updates in one graph, and calls nothing in between",
                way_out="train with ORTModule and an optimizer of torch.optim, which call it; or remove the hook",
            )


def check_apart(module: nn.Module) -> None:
    """Refuse two parameters in the same memory, one of which is trained: a session keeps each apart.

    Raises:
        OptionError: there are two.
    """
    owners: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        place = parameter.data_ptr()
        if parameter.numel() == 0 or not place:
            continue
        first, other = owners.setdefault(place, (name, parameter))
        if other is not parameter and (parameter.requires_grad or other.requires_grad):
            names = [text.removeprefix("model.") for text in (first, name)]
            raise OptionError(
                f"the parameters {names[0]!r} and {names[1]!r} lie in the same memory",
                reason="an update of one would be one of the other, and a trainer keeps each in memory of its own",
                way_out=f"make them one parameter, module.{names[1]} = module.{names[0]}; or copy one, "
                "p.data = p.data.clone()",
            )


def check_replacement(name: str, before: torch.Tensor, after: torch.Tensor) -> None:
    """Refuse a tensor in the place of another that is to be trained otherwise, or has another form.

    Raises:
        OptionError: it is.
    """
    if before.requires_grad != after.requires_grad or before.dtype != after.dtype or before.shape != after.shape:
        raise OptionError(
            f"{name!r} was replaced by a tensor of {_form(after)}, it had {_form(before)}",
            reason="the step was captured for the tensors that the module had then",
            way_out="make a new trainer for the changed module",
        )


def _form(tensor: torch.Tensor) -> str:
    trained = ", trained" if tensor.requires_grad else ", not trained"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{trained}"
