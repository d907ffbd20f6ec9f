"""What holds while a trace runs forward: names that let more of it vary, and state that is put back afterwards."""

from __future__ import annotations

import builtins
import copy
import inspect
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from ontrain.capture.assignment import traced_assignments
from ontrain.capture.autograd import traced_autograd, traced_here
from ontrain.capture.changes import NewBufferError
from ontrain.capture.checks import passed_checks
from ontrain.capture.decisions import Answers, ProgramThread, equality_by_elements
from ontrain.capture.eager_types import eager_types, extremes_of_rows
from ontrain.capture.hooks import InstalledHook
from ontrain.capture.key_values import without_cache
from ontrain.capture.math_functions import functions_of_numbers
from ontrain.capture.no_grad import inference_without_gradients
from ontrain.capture.number_types import number_types
from ontrain.capture.recurrence import varying_lengths
from ontrain.capture.scans import undivided_scans
from ontrain.capture.size_texts import texts_of_sizes
from ontrain.capture.source import is_foreign
from ontrain.capture.spelled_out import SpelledOut
from ontrain.capture.value_slices import one_size_each
from ontrain.errors import CaptureError
from ontrain.internals import (
    MODULE_HOOKS,
    MODULE_STATE,
    available,
    injected,
    of,
    private,
    replaced,
    substituted,
    wrapped,
)

__all__ = [
    "AUTOCAST", "as_eager", "assigned_buffers", "same_parts", "shared_memory", "telling_grad_mode",
    "tracing", "unchanged_attributes", "went_for_compilers",
]  # fmt: skip

AUTOCAST = ("cpu", "cuda")
"""Devices whose autocast a trace looks at."""


@contextmanager
def tracing(
    module: nn.Module,
    *,
    caches: bool = False,
    answers: Answers | None = None,
    numbers_vary: bool = True,
    held: Callable[[Any], None] | None = None,
) -> Iterator[None]:
    """Let forward be run by a trace: what it changes is undone afterwards, and what a trace cannot see is refused.

    Args:
        module: whose forward it is.
        caches: whether models make the caches that their configuration asks for.
        answers: to questions about values.
        numbers_vary: whether `int(tensor)` and `float(size)` vary in the files of the module's packages.
        held: is told the conditions on sizes that the user's code asks; see `passed_checks`.
    """
    with ExitStack() as stack:
        # An autocast around the call becomes one inside, which the program records as a block.
        for device in AUTOCAST:
            stack.enter_context(torch.autocast(device, enabled=False))
        without = nullcontext() if caches else without_cache(module)
        scopes = _scopes(module)
        kinds = stack.enter_context(number_types(scopes)) if numbers_vary else {}
        types = eager_types(scopes, kinds)
        answering, silent = (nullcontext(), None) if answers is None else (answers.given(), answers.silent)
        for guard in (_random_state(), unchanged_attributes(module), without, _traceable_masks(), _weighted_losses(),
                      _no_conversions(), varying_lengths(), _lengths(scopes), _caught_errors(),
                      _conditions_of_bytes(), _solved_systems(), _bounds_in_tensors(),
                      functions_of_numbers(), types, extremes_of_rows(), traced_autograd(), texts_of_sizes(),
                      inference_without_gradients(),
                      traced_assignments(), undivided_scans(), one_size_each(), answering, passed_checks(silent, held),
                      equality_by_elements(), SpelledOut()):  # fmt: skip
            stack.enter_context(guard)
        yield


@contextmanager
def unchanged_attributes(module: nn.Module, *, state: bool = True) -> Iterator[list[InstalledHook]]:
    """Give every submodule's attributes their values back, containers their items; buffers only with `state`.

    A hook that forward has removed stays removed: some remove themselves in their first call.

    Args:
        module: what is called within.
        state: whether tables of parameters, buffers and submodules are attributes, too.

    Yields:
        The hooks that were registered within and are taken back, once it is left.
    """
    before, installed = [], list[InstalledHook]()
    for submodule in module.modules():
        attributes = {
            name: (value, _items(value))
            for name, value in submodule.__dict__.items()
            if state or name not in MODULE_STATE
        }
        before.append((submodule, attributes))
    try:
        yield installed
    finally:
        for submodule, attributes in before:
            for name in [n for n in submodule.__dict__ if n not in attributes and (state or n not in MODULE_STATE)]:
                del submodule.__dict__[name]
            for name, (value, items) in attributes.items():
                submodule.__dict__[name] = value
                if items is None:
                    continue
                if name.startswith(MODULE_HOOKS):
                    installed += [InstalledHook(value, *new) for new in value.items() if new[0] not in items]
                    items = {number: hook for number, hook in items.items() if number in value}
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(items)


@contextmanager
def same_parts(module: nn.Module) -> Iterator[None]:
    """Refuse a forward that makes submodules or parameters.

    Raises:
        CaptureError: names what is new.
    """
    tables = {"submodule": "torch.nn.Module._modules", "parameter": "torch.nn.Module._parameters"}
    # A functional call may register for a while what was a plain attribute.
    before = [
        (part, kind, {*of(tables[kind], part), *(n for n, v in vars(part).items() if isinstance(v, torch.Tensor))})
        for part in module.modules()
        for kind in tables
    ]
    yield
    for part, kind, names in before:
        new = [name for name in of(tables[kind], part) if name not in names]
        if new:
            raise CaptureError(
                f"forward makes the {kind} {new[0]!r} of {type(part).__name__}",
                reason="a graph trains the parameters that are there when it is captured",
                way_out="make it in __init__, or call the model once before it is wrapped",
            )


@contextmanager
def assigned_buffers(module: nn.Module, *, refuse_new: bool = False) -> Iterator[None]:
    """Make `self.buffer = new` a write to the buffer: torch.export records it for the outermost module only.

    Args:
        module: whose forward is called within.
        refuse_new: whether forward may register no buffers. Each run of the graph would make them anew.

    Raises:
        NewBufferError: forward gives a buffer another shape or dtype, or registers one.
    """
    before = [
        (submodule, name, buffer)
        for submodule in module.modules()
        for name, buffer in of("torch.nn.Module._buffers", submodule).items()
    ]
    names = {(id(submodule), name) for submodule, name, _ in before}
    yield
    for submodule in module.modules() if refuse_new else ():
        registered = [n for n in of("torch.nn.Module._buffers", submodule) if (id(submodule), n) not in names]
        if registered:
            raise NewBufferError(
                f"forward makes the buffer {registered[0]!r} of {type(submodule).__name__}",
                reason="a graph's state is there when the module is captured",
                way_out="register it in __init__, or call the model once before it is wrapped",
            )
    own = {id(buffer) for _, _, buffer in before if buffer is not None}
    now = [of("torch.nn.Module._buffers", submodule).get(name) for submodule, name, _ in before]
    changed = [(*place, new) for place, new in zip(before, now, strict=True) if new is not place[2]]
    # What is another buffer, as in `self.a, self.b = self.b, self.a`, is written to meanwhile.
    changed = [(*place, new.clone() if id(new) in own else new) for *place, new in changed]
    for submodule, name, buffer, new in changed:
        if buffer is None or new is None or new.shape != buffer.shape or new.dtype != buffer.dtype:
            raise NewBufferError(
                f"forward gives buffer {name!r} of {type(submodule).__name__} another shape or dtype, or none",
                reason="a graph's state keeps its shape and dtype from step to step",
                way_out="register the buffer with its final shape and dtype before training",
            )
        of("torch.nn.Module._buffers", submodule)[name] = buffer
        buffer.copy_(new.detach())


def _items(value: Any) -> Any:
    # Hooks are held in ordered dictionaries: a module that installs some in its first forward would do so twice.
    return copy.copy(value) if type(value) in (dict, OrderedDict, list, set) else None


@contextmanager
def _random_state() -> Iterator[None]:
    initialised = bool(torch.cuda.is_initialized())
    cuda = list(range(torch.cuda.device_count())) if initialised else []
    with torch.random.fork_rng(devices=cuda):
        yield


@contextmanager
def _traceable_masks() -> Iterator[None]:
    """Keep nn.TransformerEncoder from comparing its mask's values with a causal one's, and from its inference path.

    The comparison only chooses a kernel: the mask itself is always applied.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with wrapped({_MASK: lambda _: lambda mask, is_causal=None, size=None: bool(is_causal)}):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


_MASK = "torch.nn.modules.transformer._detect_is_causal_mask"


@contextmanager
def _weighted_losses() -> Iterator[None]:
    """Have l1_loss tell the modes of a trace its weights: torch leaves them out, and the loss would have none."""

    def telling(handle: Any) -> Any:
        def handled(function: Any, relevant: Any, *args: Any, **kwargs: Any) -> Any:
            if function is nn.functional.l1_loss and len(args) == 2 and len(relevant) == 3:
                kwargs.setdefault("weight", relevant[2])
            return handle(function, relevant, *args, **kwargs)

        return handled

    with wrapped({"torch.nn.functional.handle_torch_function": telling}):
        yield


@contextmanager
def _no_conversions() -> Iterator[None]:
    """Let `self.layer.to(dtype)` in a forward pass where the layer has the dtype: torch cannot trace the swap.

    Raises:
        CaptureError: from within the forward, where the layer has another dtype or lies on another device.
    """
    convert = nn.Module.to

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, _, layout = private("torch._C._nn._parse_to")(*args, **kwargs)
        state = [*self.parameters(), *self.buffers()]
        floats = [tensor for tensor in state if tensor.is_floating_point() or tensor.is_complex()]
        same = all(tensor.dtype == (dtype or tensor.dtype) for tensor in floats) and layout is None
        if same and all(tensor.device == (device or tensor.device) for tensor in state):
            return self
        try:
            return convert(self, *args, **kwargs)
        except RuntimeError as error:
            wanted = ", ".join(str(target) for target in (device, dtype) if target is not None)
            raise CaptureError(
                f"forward converts its {type(self).__name__} to {wanted}",
                reason="the parameters of a graph keep their dtype and device",
                way_out=f"convert that layer by .to({wanted}) before the model is wrapped, or give the model's "
                "configuration the dtype that the layer has",
            ) from error

    with wrapped({"torch.nn.Module.to": lambda _: to}):
        yield


@contextmanager
def _lengths(scopes: Collection[dict[str, Any]]) -> Iterator[None]:
    """Let `len(tensor)` vary in the files of a module's packages: Python's `len` makes a number of any size."""

    def length(value: Any) -> Any:
        return value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else builtins.len(value)

    with injected(scopes, "len", length):
        yield


@contextmanager
def _caught_errors() -> Iterator[None]:
    """Let forward catch what a submodule raises: torch's tracer would take the submodule for one that goes on.

    try:
        x = layer(x, lengths=lengths)
    except TypeError:
        x = layer(x)
    """

    def leaving(own: Any) -> Any:
        def call_module(tracer: Any, *args: Any, **kwargs: Any) -> Any:
            modules = of("torch.fx.Tracer.module_stack", tracer)
            before = dict(modules)
            try:
                return own(tracer, *args, **kwargs)
            except BaseException:
                modules.clear()
                modules.update(before)
                raise

        return call_module

    with wrapped({"torch.fx.Tracer.call_module": leaving}):
        yield


@contextmanager
def _conditions_of_bytes() -> Iterator[None]:
    """Let torch.where choose by whole numbers of eight bits: eager takes such a mask, and torch's tracer does not."""

    def by_bool(own: Any) -> Any:
        def where(condition: torch.Tensor, *values: Any, **named: Any) -> Any:
            return own(condition.bool() if condition.dtype is torch.uint8 else condition, *values, **named)

        return where

    with wrapped({"torch.where": by_bool}):
        yield


@contextmanager
def _solved_systems() -> Iterator[None]:
    """Have functions that name torch.linalg find that nothing exports them.

    Libraries ask whether they are exported before they solve a system, which other exporters cannot write: else they
    substitute row by row, so that a delta rule, for one, becomes hundreds of nodes a layer.
    """
    ask, thread = torch.compiler.is_exporting, threading.get_ident()

    def is_exporting() -> bool:
        if threading.get_ident() != thread:
            return ask() and not isinstance(threading.current_thread(), ProgramThread)
        asking = sys._getframe(1)
        callers = [asking, asking.f_back] if asking.f_back is not None else [asking]  # a library has a name of its own
        return ask() and not any(_solves(frame.f_code) for frame in callers)

    with substituted([(torch.compiler, "is_exporting", is_exporting)]):
        yield


@contextmanager
def _bounds_in_tensors() -> Iterator[None]:
    """Draw between bounds that are tensors, such as those that follow from a length: torch makes numbers of them."""
    own: Any = torch.Tensor.uniform_

    def uniform_(self: torch.Tensor, *bounds: Any, **named: Any) -> torch.Tensor:
        if named or not any(isinstance(bound, torch.Tensor) for bound in bounds) or not traced_here():
            drawn: torch.Tensor = own(self, *bounds, **named)
            return drawn
        low, high = (bound.detach() if isinstance(bound, torch.Tensor) else bound for bound in (*bounds, 1.0)[:2])
        return self.copy_(torch.rand_like(self) * (high - low) + low)

    with substituted([(torch.Tensor, "uniform_", uniform_)]):
        yield


def _solves(code: CodeType) -> bool:
    return "linalg" in code.co_names and is_foreign(code.co_filename)


@contextmanager
def shared_memory() -> Iterator[None]:
    """Let the branches of torch.cond read parameters that share memory, as those of a session do.

    torch refuses it for what a write through one would do to another; what writes is refused by itself.
    """
    dynamo = "torch._dynamo.output_graph"
    info = available(f"{dynamo}.AliasingInfo")
    apart = info and info(False, "")
    with wrapped({f"{dynamo}.SubgraphTracer.has_aliasing": lambda _: lambda *_, **__: apart} if apart else {}):
        yield


@contextmanager
def telling_grad_mode(enabled: bool, inference: bool) -> Iterator[None]:
    """Have a forward that this thread traces find the call's mode of gradients: a trace itself has them on.

    Args:
        enabled: whether gradients are recorded.
        inference: whether the call is made under torch.inference_mode.
    """
    ask, ask_inference, thread = torch.is_grad_enabled, torch.is_inference_mode_enabled, threading.get_ident()

    def asked_in_forward(frame: FrameType) -> bool:
        return threading.get_ident() == thread and is_foreign(frame.f_code.co_filename)

    def told() -> bool:
        return ask() and (enabled or not asked_in_forward(sys._getframe(1)))

    def told_inference() -> bool:
        return ask_inference() or inference and asked_in_forward(sys._getframe(1))

    substitutes = [] if enabled else [(torch, "is_grad_enabled", told)]
    if inference:
        substitutes.append((torch, "is_inference_mode_enabled", told_inference))
    with substituted(substitutes):
        yield


def _scopes(module: nn.Module) -> Collection[dict[str, Any]]:
    """The globals of the files of a module's classes, and of all files of their packages that are loaded."""
    files = [scope for submodule in module.modules() if (scope := _scope(submodule)) is not None]
    packages = {str(scope.get("__name__")).split(".")[0] for scope in files} - {"ontrain"}
    begun = tuple(packages)  # most of some thousand names are told by their beginning
    names = [name for name in [*sys.modules] if name.startswith(begun) and name.partition(".")[0] in packages]
    loaded = [vars(file) for name in names if (file := sys.modules.get(name)) is not None]
    return {id(scope): scope for scope in (*files, *loaded)}.values()


def _scope(module: nn.Module) -> dict[str, Any] | None:
    file = inspect.unwrap(type(module).forward)
    scope: dict[str, Any] | None = getattr(file, "__globals__", None)
    return None if scope is None or str(scope.get("__name__")).split(".")[0] == "torch" else scope


def went_for_compilers(error: CaptureError) -> bool:
    """Return whether a trace met what may be a branch of forward that is for compilers, and that lacks something.

    Libraries ask `torch.compiler.is_compiling()` and leave out, say, the default of a mask: what needs it meets None,
    or a tensor of another shape; or a table lacks it; or an assertion says so.
    """
    return type(error.__cause__) in _LACKING


_LACKING = (
    AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What code raises that lacks something; torch's own refusals are of classes under these."""


@contextmanager
def as_eager() -> Iterator[None]:
    """Have forward find that nothing compiles or exports it."""
    names = "torch.compiler._is_compiling_flag", "torch.compiler._is_exporting_flag"
    with replaced(dict.fromkeys(names, False)):
        yield
