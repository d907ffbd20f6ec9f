"""A recorder for the CPU: it notes each call of an operator with its tensors, and makes the calls again when played.

What is recorded has no effect, as with a CUDA graph: the memory that the calls wrote to is put back. What is played
knows addresses only; whatever Python decided, or read of a tensor, while it was recorded is as it was then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from ontrain.providers.torch import TorchExecutionProvider
from ontrain.providers.torch.replay import Pool, Recording

__all__ = ["CpuRecorder", "recorded"]


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert func.overloadpacket.__name__ != "set_"
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.before[tensor.untyped_storage().data_ptr()] = whole, whole.clone()
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__ != "_local_scalar_dense":
            self.calls.append((func, args, kwargs, tree_flatten(result)[0]))
        return result


class CpuRecorder:
    """See `ontrain.providers.torch.replay.Recorder`.

    Attributes:
        recorded: parts recorded so far.
        played: how often any was played.
        generators: of the last part that was recorded.
        pools: of each part that was recorded.
        refuses: what to fail with, if anything.
    """

    def __init__(self, refuses: str | None = None) -> None:
        self.recorded = self.played = 0
        self.generators: Sequence[torch.Generator] = ()
        self.pools: list[Pool] = []
        self.refuses = refuses

    def record(
        self, calls: Callable[[], None], generators: Sequence[torch.Generator], pool: Pool
    ) -> Callable[[], None]:
        """Record the calls, and undo what they did."""
        if self.refuses is not None:
            raise RuntimeError(self.refuses)
        self.generators = generators
        states = [generator.get_state() for generator in generators]
        with torch.no_grad(), _Tape() as tape:
            calls()
        for whole, copy in tape.before.values():
            whole.copy_(copy)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        self.recorded += 1
        self.pools.append(pool)

        def play() -> None:
            self.played += 1
            for func, args, kwargs, results in tape.calls:
                for old, new in zip(results, tree_flatten(func(*args, **kwargs))[0], strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return play


def recorded(recorder: CpuRecorder, **options: Any) -> TorchExecutionProvider:
    """A provider for the CPU whose plans are recorded."""
    provider = TorchExecutionProvider(**options)
    provider.recording = Recording(recorder)
    return provider
