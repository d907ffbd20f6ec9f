"""Outputs that a call left out, computed later from what the module was at that call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ontrain.errors import InputError
from ontrain.internals import version_of
from ontrain.locks import Lock
from ontrain.training.ortmodule.function import Call, Session
from ontrain.training.ortmodule.lazy import LazyOutput

__all__ = ["Deferred", "State"]

_SAMPLES, _SAMPLE = 4, 4096
"""Parameters that are compared by value with what they were, and the most elements that such a one has."""


class State:
    """What a module's outputs depend on beside a call's inputs, and copies of it from before an optimizer's step.

    Args:
        tensors: parameters and buffers, by graph name.
        updated: names of buffers that forward itself writes.
        session: makes a session over other tensors of these names.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], updated: Sequence[str],
        session: Callable[[Mapping[str, torch.Tensor]], Session],
    ) -> None:  # fmt: skip
        self.tensors, self.updated, self.session = dict(tensors), frozenset(updated), session
        self._fixed = [t for name, t in tensors.items() if name not in self.updated]
        small = [t for t in self._fixed if t.requires_grad and t.is_contiguous() and t.numel() <= _SAMPLE]
        self._samples = small[-_SAMPLES:]
        self._copies: list[_Copy] = []

    def mark(self) -> _Mark:
        """Return what tells later whether anything was changed."""
        return _Mark(
            list(map(version_of, self._fixed)),
            [t.data_ptr() for t in self._fixed],
            [t.detach().clone() for t in self._samples],
        )  # fmt: skip

    def unchanged(self, mark: _Mark) -> bool:
        """Whether parameters and buffers are what they were.

        torch counts writes, but not those through `.data`, which a hand-written update makes to every parameter: so
        the values of a few small ones are compared.
        """
        now = list(map(version_of, self._fixed))
        if now != mark.versions or [t.data_ptr() for t in self._fixed] != mark.pointers:
            return False
        pairs = zip(self._samples, mark.samples, strict=True)
        return all(torch.allclose(t.detach(), before, rtol=0, atol=0, equal_nan=True) for t, before in pairs)

    def copy(self, changing: set[int]) -> _Copy:
        """Return a copy of the tensors with these ids, in memory of a copy that nobody needs any more."""
        wanted = {n: t for n, t in self.tensors.items() if id(t) in changing and n not in self.updated}
        copy = next((spare for spare in self._copies if not spare.users and spare.fits(wanted)), None)
        with torch.inference_mode(False), torch.no_grad():
            if copy is None:
                self._copies = [copy for copy in self._copies if copy.users]
                copy = _Copy({name: torch.empty_like(t) for name, t in wanted.items()})
                self._copies.append(copy)
            for name, tensor in wanted.items():
                copy.tensors[name].copy_(tensor)
        return copy


class _Mark:
    def __init__(self, versions: list[int], pointers: list[int], samples: list[torch.Tensor]) -> None:
        self.versions, self.pointers, self.samples = versions, pointers, samples


class _Copy:
    """Parameters as they were before a step, and those who may ask for them."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.users: weakref.WeakSet[Deferred] = weakref.WeakSet()

    def fits(self, wanted: Mapping[str, torch.Tensor]) -> bool:
        """Whether the memory can hold these tensors."""
        return self.tensors.keys() == wanted.keys() and all(
            self.tensors[name].shape == t.shape and self.tensors[name].dtype == t.dtype for name, t in wanted.items()
        )


class Deferred:
    """The outputs of one call that its plan leaves out, until somebody looks at one of them.

    They are then computed by running the call's forward again with its seed. Where an optimizer is about to change the
    parameters while such an output is still referred to, they are copied first.

    Args:
        call: has run.
        state: the module's.
        touched: told the names of outputs that somebody looked at.
        paths: what the user calls the outputs.
    """

    def __init__(
        self, call: Call, state: State, touched: Callable[[Sequence[str]], None], paths: Mapping[str, str]
    ) -> None:
        self._call, self._state, self._touched, self._paths = call, state, touched, paths
        self._mark = state.mark()
        self._copy: _Copy | None = None
        self._waiting: list[tuple[str, weakref.ref[LazyOutput]]] = []
        self._lock = Lock()
        _open.add(self)

    def outputs(self) -> dict[str, LazyOutput]:
        """Return tensors that stand for what the call's plan leaves out."""
        device = self._call.session.device
        stand_ins = {
            name: LazyOutput(shape, dtype, device, self, name)
            for name, (shape, dtype) in self._call.plan.absent.items()
        }
        self._waiting = [(name, weakref.ref(output)) for name, output in stand_ins.items()]
        return stand_ins

    def touch(self, name: str) -> None:
        """Fill the outputs that are still referred to, because somebody looked at this one.

        Raises:
            InputError: the parameters or an input are no longer what they were.
        """
        self._touched([name])
        self._fill(name)

    def before_step(self, changing: set[int], copies: dict[int, _Copy]) -> None:
        """Keep what an optimizer is about to change.

        Args:
            changing: ids of its parameters.
            copies: those made for this step, by the id of the `State` that they are of.
        """
        state = self._state
        with self._lock:
            if not any(id(t) in changing for t in state.tensors.values()):
                return
            if self._copy is not None:
                # Held over a second step, as by a loop that collects outputs: one copy of the parameters is enough.
                alive = [name for name, reference in self._waiting if reference() is not None]
                self._touched(alive)
                self._fill(alive[0] if alive else "")
            elif state.unchanged(self._mark):
                if id(state) not in copies:
                    copies[id(state)] = state.copy(changing)
                self._copy = copies[id(state)]
                self._copy.users.add(self)

    def _fill(self, name: str) -> None:
        with self._lock:
            waiting = [(n, output) for n, reference in self._waiting if (output := reference()) is not None]
            if waiting:
                values = self._compute(name)
                for own, output in waiting:
                    output.fill(values[own])
            self._waiting = []
            if self._copy is not None:
                self._copy.users.discard(self)
            _open.discard(self)

    def _compute(self, name: str) -> dict[str, torch.Tensor]:
        call, state = self._call, self._state
        what = f"the output {self._paths.get(name, name)!r} was not computed by forward, and can no longer be"
        if call.inputs_changed():
            raise InputError(what, reason="an input of that call was changed in place since", way_out=_WAY_OUT)
        if state.unchanged(self._mark):
            return call.values()
        if self._copy is None:
            raise InputError(
                what, reason="parameters were changed since, by something else than a torch.optim.Optimizer's step()",
                way_out=_WAY_OUT,
            )  # fmt: skip
        own = {n: call.before.get(n, t).clone() for n, t in state.tensors.items() if n in state.updated}
        return call.values(state.session({**state.tensors, **self._copy.tensors, **own}))


_WAY_OUT = (
    "look at it before that change, or have all outputs computed: ORTModule(module, lazy_outputs=False), "
    "or ONTRAIN_LAZY_OUTPUTS=0"
)
_open: weakref.WeakSet[Deferred] = weakref.WeakSet()
"""All that somebody may still look at."""


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not _open:
        return
    changing = {id(p) for group in optimizer.param_groups for p in group["params"]}
    copies: dict[int, _Copy] = {}
    for deferred in list(_open):
        deferred.before_step(changing, copies)


register_optimizer_step_pre_hook(_before_step)
