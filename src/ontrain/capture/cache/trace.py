"""A forward run on tensors without values, written down: what the module does now, whatever made it so."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn

from ontrain.capture.autograd import traced_here
from ontrain.capture.cache.question import UncacheableError
from ontrain.capture.export import Flat, quiet
from ontrain.capture.fake import exporting, stand_ins
from ontrain.capture.layouts import LAYOUT, layout
from ontrain.capture.source import is_foreign
from ontrain.capture.tracing import tracing
from ontrain.internals import FakeTensor, FakeTensorMode, TorchDispatchMode, available, private, substituted

__all__ = ["executed_files", "trace"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip


_USED = ("torch._subclasses.fake_tensor.FakeTensor", "torch._subclasses.fake_tensor.FakeTensorMode",
         "torch.utils._python_dispatch.TorchDispatchMode", "torch._C._DisableTorchDispatch",
         "torch.compiler._is_compiling_flag", "torch.compiler._is_exporting_flag")  # fmt: skip


def trace(flat: Flat, module: nn.Module, shapes: Sequence[Sequence[int]], like: Sequence[torch.Tensor]) -> str:
    """Return a hash of the operators that forward calls: their arguments, and from where to where values go.

    Args:
        flat: the module as a function of tensors, as it is exported.
        module: what it wraps.
        shapes: of the inputs.
        like: the inputs' dtypes, devices, whether they want gradients, and their strides if forward asks for any.

    Raises:
        UncacheableError: forward needs values, or calls what cannot be written down.
    """
    for used in _USED:
        if available(used) is None:
            raise UncacheableError(f"torch {torch.__version__} has no {used}, or it does something else")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    written = _Written(flat)
    with quiet(), tracing(module), exporting(_not_compiled), torch.inference_mode(False), torch.enable_grad():
        try:
            inputs, state = stand_ins(mode, flat, shapes, like)
            for name, tensor in [*((f"input {i}", tensor) for i, tensor in enumerate(inputs)), *state.items()]:
                written.name(tensor, name)
            with mode, written, _strides_asked(lambda: written.note([layout(tensor, exact=True) for tensor in like])):
                results = torch.func.functional_call(flat, state, tuple(inputs))
        except UncacheableError:
            raise
        except Exception as error:  # of any kind that a user's forward raises on tensors without values
            raise UncacheableError(f"forward on tensors without values: {type(error).__name__}: {error}") from error
    return written.finish(results, state)


class _Written(TorchDispatchMode):
    """Writes down each operator below autograd."""

    def __init__(self, flat: Flat) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hash = hashlib.sha256()
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []

    def name(self, tensor: torch.Tensor, name: str) -> None:
        """Give a tensor the name by which it is written."""
        self._names[id(tensor)] = name
        self._kept.append(tensor)  # so that no other gets its id

    def note(self, value: Any) -> None:
        """Write down what forward learns beside the results of operators."""
        self._hash.update(repr(value).encode())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        call = [str(func), self._text(args), self._text(dict(kwargs or {})), torch.is_grad_enabled()]
        result = func(*args, **(kwargs or {}))
        for output in result if isinstance(result, tuple | list) else [result]:
            if isinstance(output, torch.Tensor) and id(output) not in self._names:
                self.name(
                    output,
                    f"%{len(self._names)} {output.dtype}{list(output.shape)}{list(output.stride())} {output.device}",
                )
        self._hash.update(repr([call, self._text(result)]).encode())
        return result

    def finish(self, results: Any, state: Mapping[str, torch.Tensor]) -> str:
        """Write the results; return the hash."""
        gradients = [result.requires_grad for result in results]
        self._hash.update(repr([self._text(results), gradients]).encode())
        return self._hash.hexdigest()

    def _text(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            name = self._names.get(id(value))
            if name is None:
                name = self._constant(value)
                self.name(value, name)
            return name
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, tuple | list):
            return [self._text(item) for item in value]
        if isinstance(value, dict):
            return {key: self._text(item) for key, item in value.items()}
        raise UncacheableError(f"forward gives an operator a {type(value).__name__}")

    def _constant(self, tensor: torch.Tensor) -> str:
        """A tensor that is neither given nor computed: its values are written."""
        if isinstance(tensor, FakeTensor) or tensor.numel() > 1 << 20 or tensor.device.type == "meta":
            raise UncacheableError("forward takes a tensor from where it cannot be followed")
        with private("torch._C._DisableTorchDispatch")():
            values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"constant {tensor.dtype}{list(tensor.shape)} {hashlib.sha256(values).hexdigest()}"


@contextmanager
def _strides_asked(tell: Callable[[], None]) -> Iterator[None]:
    """Tell when forward asks a tensor in which order its numbers lie in memory."""

    def telling(name: str) -> Callable[..., Any]:
        own = getattr(torch.Tensor, name)

        def asked(self: torch.Tensor, *args: Any, **named: Any) -> Any:
            if traced_here() and is_foreign(sys._getframe(1).f_code.co_filename):
                tell()
            return own(self, *args, **named)

        return asked

    with substituted([(torch.Tensor, name, telling(name)) for name in LAYOUT]):
        yield


def _not_compiled(*_: Any, **__: Any) -> NoReturn:
    raise UncacheableError("forward calls torch.cond, torch.while_loop or torch.compile")


@contextmanager
def executed_files(files: set[str]) -> Iterator[None]:
    """Collect the Python files whose functions are called."""

    def see(frame: FrameType, _: str, __: Any) -> None:
        files.add(frame.f_code.co_filename)

    # Unlike a profiler's, this is called at the entry of Python's functions only.
    before = sys.gettrace()
    sys.settrace(see)
    try:
        yield
    finally:
        sys.settrace(before)
