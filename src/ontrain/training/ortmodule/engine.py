"""What an ORTModule keeps: captures by the structure of the call, and from a call's arguments to its result."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from ontrain.capture import Captured, capture
from ontrain.capture.structure import bind, flatten, leaf_paths, plain_leaves
from ontrain.errors import CaptureError, InputError
from ontrain.graph import updates_of
from ontrain.providers import get_provider
from ontrain.session.module import ModuleSession
from ontrain.training.ortmodule.debug import DebugOptions, logger
from ontrain.training.ortmodule.function import Call, Mode, Run
from ontrain.training.ortmodule.watch import Watch, check_hooks

__all__ = ["Engine", "Entry"]

_SITES = 64
"""Call structures kept, the least recently used goes first."""
_SHAPES = 4096
_MANY_CAPTURES = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Entry:
    """A captured module, its session, and the user's tensors behind the graph's inputs."""

    def __init__(self, captured: Captured, provider: str, device: torch.device, debug: DebugOptions) -> None:
        self.captured = captured
        self.outputs = captured.output_names
        self.names = [*captured.parameters, *captured.buffers]
        self.tensors: list[torch.Tensor] = [*captured.parameters.values(), *captured.buffers.values()]
        self.parameters = list(captured.parameters.items())
        self.pointers = [t.data_ptr() for t in self.tensors]
        named = dict(zip(self.names, self.tensors, strict=True))
        journal = functools.partial(debug.journal, captured.training)
        self.session = ModuleSession(captured.model, get_provider(provider, str(device)), named, device, journal)
        updated = {updates_of(v) for v in captured.model.graph.outputs}
        self.buffers = {name: t for name, t in named.items() if name in updated}
        self.read_buffers = self.session.read_buffers()
        self._modes: dict[tuple[bool, ...], Mode] = {}

    def moved(self) -> bool:
        """Follow tensors whose memory was replaced; True if one changed its layout, so that nothing here fits."""
        for i, tensor in enumerate(self.tensors):
            pointer = tensor.data_ptr()
            if pointer != self.pointers[i]:
                if not self.session.memory.replace(self.names[i], tensor):
                    return True
                self.pointers[i] = pointer
        return False

    def mode(self, inputs: Sequence[torch.Tensor]) -> Mode:
        """What a call is differentiated by: follows requires_grad of parameters and inputs."""
        flags = tuple([p.requires_grad for _, p in self.parameters] + [t.requires_grad for t in inputs])
        found = self._modes.get(flags)
        if found is None:
            names = [name for name, _ in self.parameters] + self.session.inputs
            wrt = tuple(name for name, wanted in zip(names, flags, strict=True) if wanted)
            active = tuple(self.session.differentiable(wrt)) if wrt else ()
            found = self._modes[flags] = Mode(wrt, active, self._first_guess(active))
        return found

    def _first_guess(self, active: tuple[str, ...]) -> tuple[str, ...]:
        """A module that returns a loss is differentiated by it; else by all that it returns."""
        ranks = {v.name: len(v.shape or ()) for v in self.captured.model.graph.outputs}
        scalars = tuple(name for name in active if ranks[name] == 0)
        return scalars[:1] if scalars else active


class _Site:
    """A way of writing the call: which capture it is of, and the order of its tensors there."""

    def __init__(self, entry: Entry, places: Mapping[str, range]) -> None:
        self.entry = entry
        self.order = [i for name, _ in entry.captured.call.arguments for i in places.get(name, ())]
        self._accepted: set[tuple[torch.Size, ...]] = set()

    def accepts(self, shapes: tuple[torch.Size, ...]) -> bool:
        """Whether the capture holds for tensors of these shapes."""
        if shapes in self._accepted:
            return True
        named = dict(zip(self.entry.captured.input_names, (shapes[i] for i in self.order), strict=True))
        if self.entry.captured.guards.violated(named) is not None:
            return False
        if len(self._accepted) >= _SHAPES:
            self._accepted.clear()
        self._accepted.add(shapes)
        return True


class Engine:
    """Captures a module when a call's structure is new, and runs calls.

    A capture holds for: the training mode of every submodule, the arguments given, their nesting and plain values,
    dtypes and ranks of tensors, and autocast. It does not depend on shapes, requires_grad, or how arguments are passed.
    """

    def __init__(self, module: nn.Module, provider: str, debug: DebugOptions) -> None:
        self.module, self._provider, self._debug = module, provider, debug
        self._signature = inspect.signature(module.forward)
        self._watch = Watch(module)
        self._sites: OrderedDict[Any, list[_Site]] = OrderedDict()
        self._entries: dict[Any, list[Entry]] = {}
        self._alike: dict[Any, int] = {}
        self._lock = threading.Lock()
        self.captures = 0

    @property
    def entries(self) -> list[Entry]:
        """All captures held."""
        return [entry for entries in self._entries.values() for entry in entries]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module's forward on a call's arguments."""
        with self._lock:
            # Under the lock, because a capture has other parameters in the module for as long as it takes.
            if self._watch.changed():
                self._forget()
        tensors: list[torch.Tensor] = []
        key: list[Any] = [self._watch.modes(), _autocast(), len(args)]
        for value in args:
            _walk(value, tensors, key)
        for name, value in kwargs.items():
            key.append(name)
            _walk(value, tensors, key)
        _refuse_transforms(tensors)
        with self._lock:
            site = self._site(tuple(key), args, kwargs, tensors)
        return self._run(site.entry, [tensors[i] for i in site.order])

    def _run(self, entry: Entry, inputs: list[torch.Tensor]) -> Any:
        session = entry.session
        mode = entry.mode(inputs) if torch.is_grad_enabled() else None
        if mode is None or not mode.active:
            plan = session.plan(inputs)
            with torch.no_grad(), torch.autocast(session.device.type, enabled=False):
                outputs, _ = session.forward(plan, inputs, _draw(plan.stochastic))
            return entry.captured.unflatten([outputs[name] for name in entry.outputs])
        plan = session.plan(inputs, mode.wrt, mode.seeds)
        call = Call(
            session,
            mode,
            mode.seeds,
            entry.outputs,
            inputs,
            plan,
            entry.buffers,
            entry.read_buffers,
            _draw(plan.stochastic),
        )
        named = dict(zip((*entry.names, *session.inputs), (*entry.tensors, *inputs), strict=True))
        with torch.autocast(session.device.type, enabled=False):
            outputs = Run.apply(call, tuple(named[n] for n in plan.reads), *[named[n] for n in mode.wrt])  # type: ignore[no-untyped-call]
        return entry.captured.unflatten(outputs)

    def _site(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> _Site:
        shapes = tuple([t.shape for t in tensors])
        sites = self._sites.get(key)
        if sites is not None:
            self._sites.move_to_end(key)
            for site in sites:
                if site.accepts(shapes):
                    if site.entry.moved():
                        self._forget()
                        break
                    return site
        named = {n: v for n, v in bind(self._signature, args, kwargs).items() if not self._default(n, v)}
        places, start = {}, 0
        # bind keeps the order in which arguments are written, which is also that of `tensors`.
        for name, value in named.items():
            count = len(flatten(value)[0])
            places[name] = range(start, start + count)
            start += count
        entries = self._entries.setdefault((key[:2], *_canonical(named)), [])
        for entry in entries:
            site = _Site(entry, places)
            if site.accepts(shapes):
                break
        else:
            entries.append(self._capture(args, kwargs, tensors))
            site = _Site(entries[-1], places)
        self._sites.setdefault(key, []).append(site)
        if len(self._sites) > _SITES:
            self._drop_oldest()
        return site

    def _drop_oldest(self) -> None:
        self._sites.popitem(last=False)
        alive = {id(site.entry) for sites in self._sites.values() for site in sites}
        kept = {key: [e for e in entries if id(e) in alive] for key, entries in self._entries.items()}
        self._entries = {key: entries for key, entries in kept.items() if entries}

    def _capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Entry:
        device = self._device(tensors)
        check_hooks(self.module)
        self.captures += 1
        self._warn_of_numbers(args, kwargs)
        with torch.inference_mode(False), torch.enable_grad():
            try:
                # A size of one may be one to be broadcast: it is captured as such.
                named = [
                    {a: f"dim{a}_of_{i}" for a, size in enumerate(t.shape) if size > 1} for i, t in enumerate(tensors)
                ]
                captured = capture(self.module, args, kwargs, dynamic=named)
            except CaptureError as error:
                if not any(named):
                    raise
                captured = capture(self.module, args, kwargs)
                warnings.warn(
                    f"{type(self.module).__name__} is captured anew for each shape: {error.problem}", stacklevel=6
                )
        # Tracing runs forward, which may set attributes itself.
        held = [*captured.constants, *(one for entry in self.entries for one in entry.captured.constants)]
        self._watch = Watch(self.module, held)
        logger.info(
            "captured %s in %s mode: export %.2f s, translation %.2f s", type(self.module).__name__,
            "training" if captured.training else "evaluation", captured.seconds["export"],
            captured.seconds["translate"],
        )  # fmt: skip
        return Entry(captured, self._provider, device, self._debug)

    def _warn_of_numbers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warn when one structure was captured many times for other plain numbers."""
        key: list[Any] = [len(args), *kwargs]
        for value in (*args, *kwargs.values()):
            _walk(value, [], key)
        alike = tuple([None if isinstance(one, int | float) else one for one in key])
        self._alike[alike] = self._alike.get(alike, 0) + 1
        if self._alike[alike] == _MANY_CAPTURES:
            warnings.warn(
                f"{type(self.module).__name__} was captured {_MANY_CAPTURES} times for one structure of arguments: "
                "plain numbers are part of a graph. Pass numbers that change as tensors.",
                stacklevel=8,
            )

    def _device(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        """Where module and inputs are.

        Raises:
            InputError: on more than one device, or a tensor is sparse or without memory.
        """
        for i, tensor in enumerate(tensors):
            if tensor.layout is not torch.strided:
                raise InputError(
                    f"tensor {i} of the call is sparse ({tensor.layout})", reason="a graph works on dense tensors",
                    way_out="give tensor.to_dense()",
                )  # fmt: skip
        found: dict[torch.device, str] = {}
        for name, one in (*self.module.named_parameters(), *self.module.named_buffers()):
            found.setdefault(one.device, f"parameter or buffer {name!r}")
        for i, tensor in enumerate(tensors):
            found.setdefault(tensor.device, f"tensor {i} of the call")
        if any(device.type == "meta" for device in found) and len(found) == 1:
            raise InputError(
                "the module and its input are on the meta device", reason="tensors there have no values",
                way_out="give both memory: model.to_empty(device='cpu') and a real batch",
            )  # fmt: skip
        if len(found) > 1:
            raise InputError(
                "the module and its input are on different devices",
                reason=", ".join(f"{what} is on {device}" for device, what in found.items()),
                way_out="move the input with .to(device), and the whole module with .to(device)",
            )
        return next(iter(found), torch.device("cpu"))

    def _default(self, name: str, value: Any) -> bool:
        """Whether an argument is given as what it would be anyway."""
        parameter = self._signature.parameters.get(name)
        return parameter is not None and type(value) in _PLAIN and value is parameter.default

    def _forget(self) -> None:
        self._sites.clear()
        self._entries.clear()
        self._watch = Watch(self.module)


def _walk(value: Any, tensors: list[torch.Tensor], key: list[Any]) -> None:
    """Append a value's tensors, and to the key everything else that a capture depends on."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        key.append(value.dtype)
        key.append(value.ndim)
        if value.layout is not torch.strided:
            key.append(value.layout)
    elif type(value) in _PLAIN:
        key.append(type(value))
        key.append(value)
    elif isinstance(value, tuple | list):
        key.append((type(value), len(value)))
        for one in value:
            _walk(one, tensors, key)
    elif isinstance(value, Mapping):
        key.append((type(value), tuple(value)))
        for one in value.values():
            _walk(one, tensors, key)
    else:
        found, spec = flatten(value)
        tensors += found
        key.append((type(value), tuple(leaf_paths(spec)), tuple((t.dtype, t.ndim) for t in found)))
        for one in plain_leaves(spec):
            key += [one] if type(one) in _PLAIN else [_Same(one), _numbers(one)]


def _numbers(value: Any) -> tuple[Any, ...]:
    """The plain attributes of an object, which forward may read."""
    return tuple((name, one) for name, one in getattr(value, "__dict__", {}).items() if type(one) in _PLAIN)


class _Same:
    """Compares an object by identity, and keeps it so that its identity is not given to another."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _canonical(named: Mapping[str, Any]) -> list[Any]:
    """What a capture depends on of named arguments, whatever the order they are given in."""
    parts: list[Any] = []
    for name in sorted(named):
        key: list[Any] = [name]
        _walk(named[name], [], key)
        parts.append(tuple(key))
    return parts


def _refuse_transforms(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse what runs a forward on stand-ins for tensors, or follows tangents through it.

    Raises:
        InputError: within a function transformed by torch.func, forward-mode differentiation, or a trace.
    """
    # torch.compiler.is_compiling and proxy modes are also true while another thread captures.
    if torch._C._is_tracing() or torch.compiler.is_dynamo_compiling() or any(type(t) is FakeTensor for t in tensors):
        what = "a trace by torch.jit, torch.export or torch.compile"
    elif torch._C._functorch.peek_interpreter_stack() is not None:
        what = "a function transformed by torch.func"
    elif forward_ad._current_level >= 0:
        what = "forward-mode differentiation"
    else:
        return
    raise InputError(
        f"an ORTModule is called within {what}", reason="its graph runs on real tensors, and only backward follows it",
        way_out="use the plain module there, which is the attribute .module",
    )  # fmt: skip


def _autocast() -> tuple[Any, ...]:
    """The device types and dtypes that autocast is on for."""
    return tuple([(one, torch.get_autocast_dtype(one)) for one in ("cpu", "cuda") if torch.is_autocast_enabled(one)])


def _draw(wanted: bool) -> int:
    """A seed out of torch's generator: what torch.manual_seed and a saved random state determine."""
    return int(torch.empty((), dtype=torch.int64).random_()) if wanted else 0
