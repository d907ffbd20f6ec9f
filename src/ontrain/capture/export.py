"""torch.export run so that it sees tensors only and leaves the module, and torch's random state, as they were."""

from __future__ import annotations

import builtins
import copy
import functools
import inspect
import logging
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch import nn

from ontrain.capture.autograd import check_functions, traced_autograd
from ontrain.capture.checks import passed_checks
from ontrain.capture.containers import Containers
from ontrain.capture.decisions import WAY_OUT, Answers, Decision, ValueBranchError, equality_by_elements
from ontrain.capture.dtypes import EagerDtypes
from ontrain.capture.fake import exporting, stand_ins
from ontrain.capture.generators import Run, without_draws
from ontrain.capture.inspection import restart
from ontrain.capture.key_values import asks_for_cache, with_unread, without_cache
from ontrain.capture.no_grad import detached_no_grad
from ontrain.capture.recurrence import varying_lengths
from ontrain.capture.source import user_frame
from ontrain.capture.structure import Spec, call, check_plain, flatten, has_objects, unflatten
from ontrain.errors import CaptureError, OntrainError
from ontrain.internals import (
    MODULE_STATE,
    TALKATIVE_LOGGERS,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    GuardOnDataDependentSymNode,
    available,
    injected,
    of,
    private,
    replaced,
    wrapped,
)

__all__ = ["PREFIX", "Flat", "NewBufferError", "export", "quiet", "tracing"]

PREFIX = "module."
"""What the exported program has before the module's own names."""


class NewBufferError(CaptureError):
    """Forward makes a buffer anew, in another shape."""


_DATA_DEPENDENT = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)


def export(
    module: nn.Module,
    signature: inspect.Signature,
    arguments: Sequence[tuple[str, Spec]],
    tensors: Sequence[torch.Tensor],
    dynamic: Sequence[Mapping[int, str]],
    batch: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.export.ExportedProgram, Spec, Sequence[Decision]]:
    """Export a module in its own mode as a function of tensors.

    Return the program, the structure of its result, and the conditions on values under which forward is the program.

    Args:
        module: left as it was: attributes, buffers, configuration, gradients.
        signature: that of the module's forward.
        arguments: the structure of each argument, by name.
        tensors: sample values, in order.
        dynamic: for each tensor the dimensions that may vary.
        batch: the tensors themselves, if forward may branch on their values; the program is of the branches that it
            takes for them.

    Raises:
        ValueBranchError: forward branches on values.
        CaptureError: torch.export cannot trace the module; names the user's line.
    """
    auto = torch.export.Dim.AUTO
    shapes = {"tensors": tuple(dict.fromkeys(dims, auto) for dims in dynamic)}
    _refuse_known(module)

    def trace(run: Run, *, whole_numbers: bool = True) -> tuple[torch.export.ExportedProgram, Spec, Sequence[Decision]]:
        results: list[Spec] = []
        answers = None if batch is None else Answers(module, batch)
        flat = Flat(module, signature, arguments, results.append, run if answers is None else answers.begun(run))
        with tracing(module, answers=answers, whole_numbers=whole_numbers), _shared_memory():
            program = _export(flat, tensors, shapes if tensors else None)
            cached = asks_for_cache(module)
        spec = _with_unread_cache(flat, tensors, results) if cached else results[-1]
        return program, spec, () if answers is None else answers.decisions

    try:
        return without_draws(trace)
    except CaptureError as error:
        if not _took_int_for_dtype(error):
            raise
    return without_draws(functools.partial(trace, whole_numbers=False))


def _took_int_for_dtype(error: CaptureError) -> bool:
    """Whether the `int` that a trace puts in the place of Python's was used as a dtype: torch and numpy know it not."""
    cause = error.__cause__
    return isinstance(cause, TypeError) and any(name in str(cause) for name in (_Whole.__name__, "numpy.object_"))


def _export(flat: Flat, tensors: Sequence[torch.Tensor], shapes: Any) -> torch.export.ExportedProgram:
    try:
        with quiet(), detached_no_grad():
            return torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)
    except CaptureError as error:
        raise _located(error) from error
    except OntrainError:
        raise
    except Exception as error:  # the user's module and torch's tracer may raise anything
        raise _explained(error) from error


def _with_unread_cache(flat: Flat, tensors: Sequence[torch.Tensor], results: list[Spec]) -> Spec:
    """The structure of the last result with what refuses to be read where the module would have put a cache."""
    spec, count = results[-1], len(results)
    if not spec.children:
        return spec
    private("torch._subclasses.fake_tensor.FakeTensorMode")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    inputs, state = stand_ins(mode, flat, [tensor.shape for tensor in tensors], tensors)
    try:
        with quiet(), tracing(flat.module, caches=True), exporting(_not_compiled), mode:
            torch.func.functional_call(flat, state, tuple(inputs))
    except Exception as error:  # of any kind that a user's forward raises on tensors without values
        if len(results) == count:  # and not what no graph could return: only its place matters
            raise _unplaced(f"forward with the cache, on tensors without values: {_first_line(error)}") from error
    whole = with_unread(spec, results[-1])
    if whole is None:
        raise _unplaced("the result with the cache has another structure than the result without it")
    return whole


def _unplaced(reason: str) -> CaptureError:
    return CaptureError(
        "the model's configuration asks for a cache of keys and values, and its place in the result is not known",
        reason=reason,
        way_out="call the model with use_cache=False or use_cache=True",
    )


def _not_compiled(*_: Any, **__: Any) -> NoReturn:
    raise CaptureError("forward calls torch.cond, torch.while_loop or torch.compile")


@contextmanager
def tracing(
    module: nn.Module, *, caches: bool = False, answers: Answers | None = None, whole_numbers: bool = True
) -> Iterator[None]:
    """Let forward be run by a trace: what it changes is undone afterwards, and what a trace cannot see is refused.

    Args:
        module: whose forward it is.
        caches: whether models make the caches that their configuration asks for.
        answers: to questions about values.
        whole_numbers: whether `int(tensor)` varies in the files of the module's packages.
    """
    with ExitStack() as stack:
        # An autocast around the call becomes one inside, which the program records as a block.
        for device in _AUTOCAST:
            stack.enter_context(torch.autocast(device, enabled=False))
        without = nullcontext() if caches else without_cache(module)
        whole = _whole_numbers(module) if whole_numbers else nullcontext()
        answering, silent = (nullcontext(), None) if answers is None else (answers.given(), answers.silent)
        for guard in (_random_state(), _attributes(module), without, _traceable_masks(), _no_conversions(),
                      varying_lengths(), _lengths(module), whole, traced_autograd(), answering,
                      passed_checks(silent), equality_by_elements(), EagerDtypes()):  # fmt: skip
            stack.enter_context(guard)
        yield


class Flat(nn.Module):
    """A module as a function of tensors to tensors.

    Args:
        returned: is given the structure of what the module returned.
        run: calls the module's forward.
    """

    def __init__(
        self,
        module: nn.Module,
        signature: inspect.Signature,
        arguments: Sequence[tuple[str, Spec]],
        returned: Callable[[Spec], None],
        run: Run,
    ) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        # A function, because torch.export puts containers among the attributes back as they were.
        self._returned, self._run = returned, run
        self._call: Callable[..., Any] = lambda named: call(module, signature, named)
        self._arguments = list(arguments)
        self._containers = Containers(module)
        self._autocast = [(d, torch.get_autocast_dtype(d)) for d in _AUTOCAST if torch.is_autocast_enabled(d)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tensors of the module's result for those of its arguments."""
        restart()
        left = list(tensors)
        named = {}
        for name, spec in self._arguments:
            count = spec.tensors()
            named[name], left = unflatten(spec, left[:count]), left[count:]
        # A module may keep a mask or a position table in an attribute; torch refuses to trace one that still holds
        # a traced tensor at the end.
        with ExitStack() as stack:
            stack.enter_context(_attributes(self.module, state=False))
            self._containers.refer_to_traced()
            stack.enter_context(_assigned_buffers(self.module))
            for device, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype))
            leaves, spec = flatten(self._run(lambda: self._call(named)))
        self._returned(spec)
        self._check_objects(named, tensors)
        check_plain(spec)
        check_functions(leaves)
        return tuple(leaves)

    def _check_objects(self, named: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Refuse a forward that gives an object among its arguments other tensors: the caller would not see them."""
        start = 0
        for name, spec in self._arguments:
            before = tensors[start : start + spec.tensors()]
            start += spec.tensors()
            if not has_objects(spec):
                continue
            after, now = flatten(named[name])
            if now != spec or any(a is not b for a, b in zip(after, before, strict=True)):
                raise CaptureError(
                    f"forward changes the object that it gets as {name!r}",
                    reason="a graph returns new tensors, and leaves the objects of its caller as they are",
                    way_out="return what is new, and leave the argument as it is",
                )


_AUTOCAST = ("cpu", "cuda")


@contextmanager
def _attributes(module: nn.Module, *, state: bool = True) -> Iterator[None]:
    """Give every submodule's attributes their values back, containers their items; buffers only with `state`."""
    before = []
    for submodule in module.modules():
        attributes = {
            name: (value, _items(value))
            for name, value in submodule.__dict__.items()
            if state or name not in MODULE_STATE
        }
        before.append((submodule, attributes))
    try:
        yield
    finally:
        for submodule, attributes in before:
            _warn_of_counting(submodule, attributes)
            for name in [n for n in submodule.__dict__ if n not in attributes and (state or n not in MODULE_STATE)]:
                del submodule.__dict__[name]
            for name, (value, items) in attributes.items():
                submodule.__dict__[name] = value
                if items is None:
                    continue
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(items)


def _warn_of_counting(module: nn.Module, before: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (value, _) in before.items():
        now = module.__dict__.get(name)
        if type(value) in (int, float) and type(now) is type(value) and now != value:
            warnings.warn(
                f"forward changes the attribute {name!r} of {type(module).__name__} from {value} to {now}; a graph "
                "keeps the value that it had during capture, and the attribute stays as it is: count in a buffer",
                stacklevel=2,
            )


@contextmanager
def _assigned_buffers(module: nn.Module) -> Iterator[None]:
    """Make `self.buffer = new` a write to the buffer: torch.export records it for the outermost module only."""
    before = [
        (submodule, name, buffer)
        for submodule in module.modules()
        for name, buffer in of("torch.nn.Module._buffers", submodule).items()
    ]
    yield
    for submodule, name, buffer in before:
        new = of("torch.nn.Module._buffers", submodule).get(name)
        if new is buffer:
            continue
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
def _no_conversions() -> Iterator[None]:
    """Let `self.layer.to(dtype)` in a forward pass where the layer has the dtype: torch cannot trace the swap."""
    convert = nn.Module.to

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, _, layout = private("torch._C._nn._parse_to")(*args, **kwargs)
        state = [*self.parameters(), *self.buffers()]
        floats = [tensor for tensor in state if tensor.is_floating_point() or tensor.is_complex()]
        same = all(tensor.dtype == (dtype or tensor.dtype) for tensor in floats) and layout is None
        if same and all(tensor.device == (device or tensor.device) for tensor in state):
            return self
        return convert(self, *args, **kwargs)

    with wrapped({"torch.nn.Module.to": lambda _: to}):
        yield


@contextmanager
def _lengths(module: nn.Module) -> Iterator[None]:
    """Let `len(tensor)` vary in the files of the module's own classes: Python's `len` makes a number of any size."""

    def length(value: Any) -> Any:
        return value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else builtins.len(value)

    scopes = {id(scope): scope for submodule in module.modules() if (scope := _scope(submodule)) is not None}
    with injected(scopes.values(), "len", length):
        yield


class _Whole(type):
    """Makes `int(tensor)` a number that varies, where Python's own would have to know it."""

    def __call__(cls, value: Any = 0, *args: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return value
        if isinstance(value, torch.SymFloat):
            return torch.sym_int(value)
        if isinstance(value, torch.Tensor) and not value.is_complex():
            number: Any = value.item()
            return cls(number) if isinstance(number, torch.SymInt | torch.SymFloat) else builtins.int(number)
        return builtins.int(value, *args)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, builtins.int)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, builtins.int)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is builtins.int

    def __hash__(cls) -> builtins.int:
        return hash(builtins.int)


class _Int(builtins.int, metaclass=_Whole):
    """`int` in the files of a module's package while it is traced."""


@contextmanager
def _whole_numbers(module: nn.Module) -> Iterator[None]:
    """Let `int(tensor)` vary in the files of the module's packages: Python's `int` makes a number of any tensor."""
    files = [scope for submodule in module.modules() if (scope := _scope(submodule)) is not None]
    packages = {str(scope.get("__name__")).split(".")[0] for scope in files} - {"ontrain"}
    begun = tuple(packages)  # most of some thousand names are told by their beginning
    loaded = [
        vars(file) for name, file in [*sys.modules.items()]
        if name.startswith(begun) and name.partition(".")[0] in packages and file is not None
    ]  # fmt: skip
    with injected({id(scope): scope for scope in (*files, *loaded)}.values(), "int", _Int):
        yield


@contextmanager
def _shared_memory() -> Iterator[None]:
    """Let the branches of torch.cond read parameters that share memory, as those of a session do.

    torch refuses it for what a write through one would do to another; what writes is refused by itself.
    """
    dynamo = "torch._dynamo.output_graph"
    info = available(f"{dynamo}.AliasingInfo")
    apart = info and info(False, "")
    with wrapped({f"{dynamo}.SubgraphTracer.has_aliasing": lambda _: lambda *_, **__: apart} if apart else {}):
        yield


def _scope(module: nn.Module) -> dict[str, Any] | None:
    file = inspect.unwrap(type(module).forward)
    scope: dict[str, Any] | None = getattr(file, "__globals__", None)
    return None if scope is None or str(scope.get("__name__")).split(".")[0] == "torch" else scope


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what torch.export's own code warns of and logs; errors are raised all the same."""
    talkative = [logger for logger in map(logging.getLogger, TALKATIVE_LOGGERS) if not logger.disabled]
    with warnings.catch_warnings(), ExitStack() as after:
        for logger in talkative:  # a hundred lines of traceback before the error that says where and why
            logger.disabled = True
            after.callback(setattr, logger, "disabled", False)
        # Up to torch 2.12 an export that fails leaves its hook there, and no later graph could be kept in the cache.
        hooks = available("torch.nn.modules.module._global_buffer_registration_hooks") or {}
        after.callback(lambda there: [hooks.pop(hook) for hook in [*hooks] if hook not in there], frozenset(hooks))
        # It prints the part of the graph that it had, too.
        after.enter_context(replaced({"torch.export._trace.print": lambda *_, **__: None}))
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*export.*", category=UserWarning)
        yield


def _refuse_known(module: nn.Module) -> None:
    for name, submodule in module.named_modules():
        tracks = (
            getattr(submodule, "track_running_stats", False)
            and submodule.training
            and isinstance(submodule, private("torch.nn.modules.batchnorm._BatchNorm"))
        )
        if tracks and submodule.momentum is None:
            raise CaptureError(
                f"batch normalisation {name!r} has momentum=None",
                reason="its cumulative average divides by a count that is data, and a graph's momentum is a constant",
                way_out="give it a momentum, or call .eval() on it",
            )


def _located(error: CaptureError) -> CaptureError:
    """One of our own errors with the line of forward from which it came."""
    source = error.source or user_frame(error.__traceback__)
    return type(error)(error.problem, node=error.node, source=source, reason=error.reason, way_out=error.way_out)


def _explained(error: BaseException) -> CaptureError:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    source = next((line for cause in reversed(chain) if (line := user_frame(cause.__traceback__))), None)
    text = "\n".join(str(cause) for cause in chain)
    if any(isinstance(cause, _DATA_DEPENDENT) for cause in chain) or "data-dependent" in text.lower():
        return ValueBranchError(
            "the module branches on the values of a tensor, or makes a tensor whose size depends on them",
            source=source,
            reason=f"a graph has one path for all batches ({_first_line(error)})",
            way_out=f"train it with ORTModule, which captures each path that batches take; {WAY_OUT}",
        )
    if "fake tensor in the exported program" in text:
        return CaptureError(
            "forward takes a tensor out of torch's sight",
            source=source,
            reason="reading `.data`, or making a tensor of a tensor's values, hides where the result comes from",
            way_out="use .detach() in place of .data",
        )
    if "Cache" in text:
        way_out = "call the model with use_cache=False, and return tensors only"
    else:
        way_out = "write the line with tensor operators whose shapes follow from the inputs' shapes"
    return CaptureError(
        f"torch.export cannot trace the module: {_first_line(error)}",
        source=source,
        reason=f"{type(error).__name__} while tracing",
        way_out=way_out,
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
