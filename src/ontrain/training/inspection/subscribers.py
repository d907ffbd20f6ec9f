"""Who sees the activations of a module and their gradients, in eager PyTorch and under an ORTModule alike."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ontrain.capture import Mark, flatten, mark, numbered, traced_here, unflatten
from ontrain.errors import OptionError
from ontrain.internals import private

__all__ = [
    "GlobalSubscriberManager", "Subscriber", "SubscriberManager", "any_subscribed", "inspect_activation", "inspects",
]  # fmt: skip


class Subscriber:
    """Is told of each activation and each gradient in the steps from `start_step` to before `end_step`.

    A step is one forward of the module that was subscribed to, from 0, with its backward.

    Args:
        start_step: the first step; None for 0.
        end_step: the step before which to stop; None for never.
    """

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self.start_step, self.end_step = start_step or 0, end_step

    def wants(self, step: int) -> bool:
        """Whether the step is among those to be told of."""
        return step >= self.start_step and (self.end_step is None or step < self.end_step)

    def activation(self, name: str, depth: int, step: int, value: torch.Tensor) -> None:
        """Take a value that a forward computed."""

    def gradient(self, name: str, depth: int, step: int, value: torch.Tensor) -> None:
        """Take the gradient of a value."""


class SubscriberManager:
    """Tells subscribers of the outputs of a module and all its submodules (onnxruntime's class of this name).

    In eager PyTorch hooks see them. Under an ORTModule, wrapped before or after, the same hooks mark the values while
    the module is captured; they become outputs of its graph, and subscribers get them after each forward and backward.
    What is seen is computed in full, so that a step is slower and may take more memory: no pass fuses across a value
    or leaves out rows of it.

    A value is called `{class}_{number}_{index}th_output`: the module's number in the order of `Module.modules()`, and
    the output tensor's place in its result. A module that runs several times in one forward has "_call2" and so on.
    """

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._handles: list[RemovableHandle] = []
        self._calls: Counter[str] = Counter()
        self._running = False
        self.step = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> SubscriberManager:
        # A copy of a module that is watched is watched by the same.
        return self

    def subscribe(self, module: nn.Module, subscribers: Sequence[Subscriber]) -> None:
        """Tell subscribers of this module from now on, counting steps from 0, and of no other.

        Args:
            module: any module, or an ORTModule.
            subscribers: at least one.

        Raises:
            OptionError: `module` is no module, there is no subscriber, or something else is among them.
        """
        from ontrain.training.ortmodule import ORTModule

        if not isinstance(module, nn.Module):
            raise OptionError(f"subscribe to a torch.nn.Module, not a {type(module).__name__}")
        wrong = [subscriber for subscriber in subscribers if not isinstance(subscriber, Subscriber)]
        if wrong or not subscribers:
            raise OptionError(
                f"{type(wrong[0]).__name__} is no Subscriber" if wrong else "there is no subscriber",
                way_out="give a list of subscribers, such as [StatisticsSubscriber(output_dir='out')]",
            )
        self.unsubscribe()
        self._subscribers, self.step = list(subscribers), 0
        root = module.module if isinstance(module, ORTModule) else module
        self._handles.append(root.register_forward_pre_hook(_Start(self)))
        for number, (part, depth) in enumerate(_with_depths(root, 1, set())):
            place = f"{type(part).__name__}_{number}"
            self._handles.append(part.register_forward_hook(_See(self, place, depth)))
        self._handles.append(root.register_forward_hook(_End(self), always_call=True))
        _subscribed.add(self)

    def unsubscribe(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._subscribers.clear()
        self._calls.clear()
        _subscribed.discard(self)

    @property
    def subscribers(self) -> list[Subscriber]:
        """Those who are told."""
        return list(self._subscribers)

    def inspect(self, tensor: torch.Tensor, name: str, depth: int = -1) -> torch.Tensor:
        """Tell of a value, and later of its gradient; return it as the tensor to go on with."""
        if not self._subscribers or torch.compiler.is_dynamo_compiling():
            return tensor  # in a branch or loop, which torch traces, the value may be computed or not
        if traced_here():
            return mark(tensor, name, depth, self)
        # Within a backward this is a checkpoint's second run of the same forward: only its gradients are new.
        again = private("torch._C._current_graph_task_id")() != -1
        step = self.step if self._running else max(self.step - 1, 0)
        if not again:
            self._calls[name] += 1
            name = numbered(name, self._calls[name])
            self._tell(Mark(name, depth, self), step, tensor, gradient=False)
        if not tensor.requires_grad or not torch.is_grad_enabled():
            return tensor
        seen: torch.Tensor = _Seen.apply(tensor, self, Mark(name, depth, self), step)  # type: ignore[no-untyped-call]
        return seen

    def take_values(self, values: Sequence[tuple[Mark, torch.Tensor]]) -> int:
        """Tell of what a graph computed in one step; return its number."""
        step = self.step
        self._calls.clear()
        for place, value in values:
            self._tell(place, step, value, gradient=False)
        self.step += 1
        return step

    def take_gradients(self, step: int, gradients: Sequence[tuple[Mark, torch.Tensor]]) -> None:
        """Tell of the gradients that a graph computed for a step."""
        for place, value in gradients:
            self._tell(place, step, value, gradient=True)

    def _tell(self, mark: Mark, step: int, value: torch.Tensor, *, gradient: bool) -> None:
        with torch.no_grad():
            for subscriber in self._subscribers:
                if subscriber.wants(step):
                    take = subscriber.gradient if gradient else subscriber.activation
                    take(mark.name, mark.depth, step, value.detach())

    def _start(self) -> None:
        if not traced_here():
            self._running = True
            self._calls.clear()

    def _end(self, finished: bool) -> None:
        if self._running and not traced_here():
            self._running = False
            self.step += finished


class _Seen(torch.autograd.Function):
    """The tensor itself, which may still be written to in place, as a value with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, manager: SubscriberManager, mark: Mark, step: int) -> torch.Tensor:
        ctx.manager, ctx.mark, ctx.step = manager, mark, step
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *adjoints: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.manager.take_gradients(ctx.step, [(ctx.mark, adjoints[0])])
        return adjoints[0], None, None, None


class _Hook:
    """A hook of a manager's, which an ORTModule knows to be more than a look at the capture."""

    def __init__(self, manager: SubscriberManager) -> None:
        self.manager = manager

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return self


class _Start(_Hook):
    def __call__(self, module: nn.Module, args: Any) -> None:
        self.manager._start()


class _End(_Hook):
    def __call__(self, module: nn.Module, args: Any, result: Any) -> None:
        # Called after an error, too, and then without a result.
        self.manager._end(finished=result is not None)


class _See(_Hook):
    def __init__(self, manager: SubscriberManager, place: str, depth: int) -> None:
        super().__init__(manager)
        self.place, self.depth = place, depth

    def __call__(self, module: nn.Module, args: Any, result: Any) -> Any:
        tensors, spec = flatten(result)
        seen = [
            self.manager.inspect(tensor, f"{self.place}_{index}th_output", self.depth)
            for index, tensor in enumerate(tensors)
        ]
        changed = any(new is not old for new, old in zip(seen, tensors, strict=True))
        return unflatten(spec, seen) if changed else None


def _with_depths(module: nn.Module, depth: int, met: set[nn.Module]) -> Iterator[tuple[nn.Module, int]]:
    met.add(module)
    yield module, depth
    for child in module.children():
        if child not in met:
            yield from _with_depths(child, depth + 1, met)


_subscribed: weakref.WeakSet[SubscriberManager] = weakref.WeakSet()
GlobalSubscriberManager = SubscriberManager()
"""The one that `inspect_activation` tells."""


def inspect_activation(activation_name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Tell the subscribers of `GlobalSubscriberManager` of a value in the middle of a forward.

    Args:
        activation_name: what it is called in their files.
        tensor: the value.

    Returns:
        The tensor to go on with: gradients are seen only through it. Without subscribers it is `tensor`.
    """
    return GlobalSubscriberManager.inspect(tensor, activation_name)


def inspects(hook: Any) -> bool:
    """Whether a module's hook is one of a `SubscriberManager`."""
    return isinstance(hook, _Hook)


def any_subscribed() -> bool:
    """Whether anybody in this process is told of activations."""
    return bool(_subscribed)
