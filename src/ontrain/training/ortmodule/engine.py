"""What an ORTModule keeps: captures by the structure of the call, and from a call's arguments to its result."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ontrain.capture import (
    Captured,
    ChangedStateError,
    Count,
    Course,
    Kept,
    bind,
    capture,
    flatten,
    refuse_as_eager,
    refuse_scripted,
    telling_grad_mode,
    tells_positions,
)  # fmt: skip
from ontrain.errors import CaptureError
from ontrain.internals import available
from ontrain.locks import Lock
from ontrain.passes import Recomputation
from ontrain.training.inspection import any_subscribed
from ontrain.training.ortmodule.counting import Following, following
from ontrain.training.ortmodule.debug import DebugOptions
from ontrain.training.ortmodule.derived import left_attributes
from ontrain.training.ortmodule.entry import Entry, Site, as_real
from ontrain.training.ortmodule.function import Call, without_autocast
from ontrain.training.ortmodule.given_state import GivenState, computed_attributes, given_parameters
from ontrain.training.ortmodule.keeping import Carried, attributes_carried, check_left, leave, refuse_carried
from ontrain.training.ortmodule.key import PLAIN, canonical, walk
from ontrain.training.ortmodule.lazy import LazyOutput
from ontrain.training.ortmodule.paths import OtherPathError, PathDraws, new_path, on_path, warn_of_courses
from ontrain.training.ortmodule.refusals import common_device, refuse_transforms
from ontrain.training.ortmodule.settling import leaves_attributes, settled
from ontrain.training.ortmodule.surroundings import surroundings
from ontrain.training.ortmodule.watch import Watch, check_hooks

__all__ = ["Engine"]

_SITES = 64
"""Call structures kept, the least recently used goes first."""
_BRANCHES = 32
"""Captures kept of one structure, for sizes that forward branches on or loops over; the oldest goes first."""
_MANY_CAPTURES = 8
_FORMER = 2
"""For how many former values of a module's attributes captures are kept. Each set of captures has memory of its own."""
_COLOURS, _SMALLEST_IMAGE = (3, 4), 16
"""Channels of what is taken for images, and the least height and width."""


def _varying(tensor: torch.Tensor, *, resized: bool) -> Iterable[int]:
    """The axes whose sizes a capture leaves open.

    A size of one may be one to be broadcast: it is captured as such. Images keep height and width until others come:
    networks cut them into windows and merge these, and torch.export reasons for a minute about sizes it does not know.
    """
    image = tensor.dim() == 4 and tensor.is_floating_point() and tensor.shape[1] in _COLOURS and not resized
    if image and min(tensor.shape[2:]) >= _SMALLEST_IMAGE:
        return [0] if tensor.shape[0] > 1 else []
    return [axis for axis, size in enumerate(tensor.shape) if size > 1]


class Engine:
    """Captures a module when a call's structure is new, and runs calls.

    A capture holds for: the training mode of every submodule, the arguments given, their nesting and plain values,
    dtypes and ranks of tensors, and what is set for all of torch. It does not depend on shapes and requires_grad, and
    on how arguments are passed only where a hook of the module or a decorator of its forward can tell.

    Args:
        lazy: whether outputs beside a loss are computed only when somebody looks at them.
        recomputation: activations that backward computes again instead of finding them in memory.
        paths: whether each path of a module that branches on values is captured, once a call takes it.
    """

    def __init__(
        self, module: nn.Module, provider: str, debug: DebugOptions, *, lazy: bool,
        recomputation: Recomputation | None = None, paths: bool = True,
    ) -> None:  # fmt: skip
        self._recomputation, self._paths = recomputation, paths
        self.module, self._provider, self._debug, self._lazy = module, provider, debug, lazy
        self._signature = inspect.signature(module.forward)
        self._watch = Watch(module)
        self._sites: OrderedDict[Hashable, list[Site]] = OrderedDict()
        self._entries: dict[Hashable, list[Entry]] = {}
        # What was captured of the module when its attributes had other values, the latest last.
        self._former: list[tuple[Watch, OrderedDict[Hashable, list[Site]], dict[Hashable, list[Entry]]]] = []
        self._alike: dict[Hashable, int] = {}
        self._lock = Lock()
        self.captures = 0
        self._told: set[tuple[int, str]] = set()
        self._carried = Carried()
        self._left: list[Kept] = []
        self._given: GivenState | None = None
        self._replaced: set[str] = set()
        self._written: dict[int, torch.Tensor] = {}
        self._writes = False  # whether each call writes to parameters
        self._like = functools.partial(
            Engine, provider=provider, debug=debug, lazy=lazy, recomputation=recomputation, paths=paths
        )

    @property
    def entries(self) -> list[Entry]:
        """All captures held."""
        return [entry for entries in self._entries.values() for entry in entries]

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module's forward on a call's arguments."""
        check_left(self._left)
        with self._lock:
            # Under the lock, because a capture has other parameters in the module for as long as it takes.
            changed = self._watch.changed()
            if changed:
                refuse_scripted(self.module)
                self._written.update((id(tensor), tensor) for tensor in self._watch.written())
            substitutes = given_parameters(self.module, self._replaced) if changed or not self._entries else {}
            if changed and not substitutes:
                self._take_up()
        if substitutes:
            if self._given is None:
                self._given = GivenState(self.module, self._like)
            return self._given(substitutes, args, kwargs)
        tensors: list[torch.Tensor] = []
        key: list[Any] = [self._watch.modes(), surroundings(), None, len(args)]
        for value in args:
            walk(value, tensors, key)
        for name, value in kwargs.items():
            key.append(name)
            walk(value, tensors, key)
        tensors = [t.plain() if isinstance(t, LazyOutput) else t for t in tensors]
        key[2] = self._asked(tensors)
        refuse_transforms(tensors)
        tried: dict[Entry, OtherPathError] = {}
        undo: Callable[[], None] | None = None
        draws = PathDraws()
        while True:
            with self._lock:
                try:
                    site = self._site(tuple(key), args, kwargs, tensors, tried, draws)
                except ChangedStateError:
                    undo = self._changing(undo, args, kwargs)
                    self._forget()
                    continue
            try:
                result = self._run(site, tensors, draws.masks)
            except OtherPathError as error:
                tried[site.entry] = error
                draws.undo()
                continue
            leave(site.entry.left)
            for set_anew in site.entry.derived:
                set_anew()
            if site.entry.followed:
                sizes = site.sizes([tensor.shape for tensor in tensors])
                for counting in site.entry.followed:
                    counting.apply(sizes)
            return result

    def _changing(
        self, undo: Callable[[], None] | None, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> Callable[[], None] | None:
        """In the handler of an error for changed state: let the module begin, or else its graphs write to parameters.

        Args:
            undo: takes back what the module began with, if that was tried.
            args: positional arguments of the call.
            kwargs: its keyword arguments.

        Raises:
            ChangedStateError: the error at hand, if both were tried, or each call changes attributes as well.
        """
        if undo is None and not self._writes:
            undo = settled(self.module, args, kwargs)
            if undo is not None:
                return undo
        if undo is not None:
            undo()
        if self._writes or not leaves_attributes(self.module, args, kwargs):
            raise
        self._writes = True
        return None

    def _varies(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor outside of the module is an input of its graphs, and no constant."""
        return tensor.requires_grad or isinstance(tensor, nn.Parameter) or id(tensor) in self._written

    def _asked(self, tensors: Sequence[torch.Tensor]) -> tuple[object, ...]:
        """What a capture depends on of gradients, where forward's code asks for it."""
        names = self._watch.read
        grads = torch.is_grad_enabled() if names & {"is_grad_enabled", "requires_grad"} else None
        leaves = (*tensors, *self.module.parameters()) if "requires_grad" in names else ()
        return grads, tuple([leaf.requires_grad for leaf in leaves])

    def _run(self, site: Site, tensors: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> Any:
        entry, session = site.entry, site.entry.session
        inputs = [*_inputs(site, tensors), *masks]
        mode = entry.mode(inputs) if torch.is_grad_enabled() else None
        if mode is None or not mode.active:
            plan = session.plan(inputs)
            seed = _draw(plan.executable.stochastic)
            with torch.no_grad(), without_autocast(session.device.type):
                outputs, _ = on_path(entry.decisions, entry.buffers, session, plan, inputs, seed)
                entry.inspected.hand_out(outputs)
            return entry.result([outputs[name] for name in entry.outputs], site.ordered(tensors))
        self._carried.check(entry)
        seeds = mode.seeds
        planned = functools.partial(entry.planned, mode)
        plan = session.plan(inputs, mode.targets, seeds, planned(seeds))
        call = Call(
            session, mode, seeds, entry.outputs, inputs, plan, planned, entry.deferred, entry.buffers,
            entry.read_buffers, entry.inspected, entry.decisions, _draw(plan.executable.stochastic),
            dict(zip(entry.places, (*entry.tensors, *inputs), strict=True)), entry.differentiated.gradients,
            following=entry.following, cloned=entry.cloned,
        )  # fmt: skip
        with without_autocast(session.device.type):
            results = call.run()
        self._carried.note(entry, call)
        return entry.result(results, site.ordered(tensors))

    def _site(
        self, key: tuple[Hashable, ...], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor],
        tried: Mapping[Entry, OtherPathError], draws: PathDraws,
    ) -> Site:  # fmt: skip
        """Return the way to a capture that may hold for a call; those that were tried and do not hold are passed by."""
        try:
            shapes = tuple([t.shape for t in tensors])
        except RuntimeError:  # a nested tensor has none
            common_device(self.module, tensors)
            raise
        sites = self._sites.get(key)
        if sites is not None:
            self._sites.move_to_end(key)
            for site in sites[::-1]:
                if site.entry in tried or not site.accepts(shapes):
                    continue
                if site.entry.moved():
                    draws.undo()
                    self._forget()
                    break
                if _leads(site, tensors, draws):
                    # Next time, what held last is tried first.
                    sites.remove(site)
                    sites.append(site)
                    return site
        named = {n: v for n, v in bind(self._signature, args, kwargs).items() if not self._default(n, v)}
        places, start = {}, 0
        # bind keeps the order in which arguments are written, which is also that of `tensors`.
        for name, value in named.items():
            count = len(flatten(value)[0])
            places[name] = range(start, start + count)
            start += count
        told = key if tells_positions(self.module) else key[:3]
        entries = self._entries.setdefault((told, *canonical(named)), [])
        for entry in entries:
            site = Site(entry, places)
            if entry in tried or not site.accepts(shapes):
                continue
            if entry.moved():
                draws.undo()
                self._forget()
                return self._site(key, args, kwargs, tensors, tried, draws)
            if _leads(site, tensors, draws):
                break
        else:
            masked = [Site(entry, places) for entry in entries if entry.captured.masks]
            draws.skip_masks(next((_masks(site, tensors) for site in masked if site.accepts(shapes)), None))
            resized = any(entry not in tried and not Site(entry, places).accepts(shapes) for entry in entries)
            course = next((entry.captured.course for entry in entries if entry.captured.course), None)
            entry = self._capture(args, kwargs, tensors, resized=resized, first=not tried and not course, course=course)
            entries.append(new_path(entry, tried))
            site = Site(entries[-1], places)
            warn_of_courses(type(self.module).__name__, [entry.captured.course for entry in entries])
            if not _leads(site, tensors, draws):
                if entry.captured.masks and not any(other.accepts(shapes) for other in masked):
                    # Only now is known what forward draws before it branches on what it draws.
                    return self._site(key, args, kwargs, tensors, tried, draws)
                raise CaptureError(
                    f"{type(self.module).__name__} branches on random numbers that others draw, too",
                    source=entry.captured.course.source, reason="another thread drew from the generator meanwhile",
                    way_out="draw from a generator that no other thread draws from",
                )  # fmt: skip
            del entries[:-_BRANCHES]
        sites = self._sites.setdefault(key, [])
        sites.append(site)
        del sites[:-_BRANCHES]
        if len(self._sites) > _SITES:
            self._drop_oldest()
        return site

    def _drop_oldest(self) -> None:
        self._sites.popitem(last=False)
        alive = {id(site.entry) for sites in self._sites.values() for site in sites}
        living = {key: [e for e in entries if id(e) in alive] for key, entries in self._entries.items()}
        self._entries = {key: entries for key, entries in living.items() if entries}

    def _capture(
        self, args: tuple[object, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], *, resized: bool,
        first: bool, course: Course | None = None,
    ) -> Entry:  # fmt: skip
        """Capture the module for a call.

        Args:
            resized: calls of this structure came in other sizes.
            first: it takes no other path than an earlier call.
            course: the random numbers of an earlier call that the module branched on.
        """
        device = common_device(self.module, tensors)
        check_hooks(self.module)
        self.captures += 1
        if first:
            self._warn_of_numbers(args, kwargs)
        trace = functools.partial(
            capture,
            self.module,
            args,
            kwargs,
            observed=any_subscribed(),
            sized_by_values=True,
            paths=self._paths,
            course=course,
            complex_pairs=True,
            varies=self._varies,
            writes_parameters=self._writes,
            attributes=True,
        )
        grads = torch.is_grad_enabled()
        # Hooks of a checkpoint around the call are to see what the call saves, and not what a trace does. Without any
        # there are none within, because torch.func does not work under hooks.
        hooks = available("torch._C._autograd._top_saved_tensors_default_hooks")
        hooked = hooks is not None and hooks(False) is not None
        unseen = torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged) if hooked else nullcontext()
        # With gradients on, unless forward asks its own values whether they are followed.
        autograd = torch.enable_grad() if grads or "requires_grad" not in self._watch.read else torch.no_grad()
        with torch.inference_mode(False), autograd, telling_grad_mode(grads), unseen:
            try:
                captured = self._traced(trace, tensors, resized=resized)
            except CaptureError as error:
                refuse_as_eager(self.module, args, kwargs, error)
                raise
        left = attributes_carried(self.module, captured, args, kwargs)
        # Tracing runs forward, which may set attributes itself.
        followed = self._followed(captured.counts)
        graphs = [captured, *(entry.captured for entry in self.entries)]
        constants = [tensor for graph in graphs for tensor in graph.constants]
        varying = [tensor for graph in graphs for tensor in graph.varying.values()]
        counted = [*followed, *(counting for entry in self.entries for counting in entry.followed)]
        leaving = [place for graph in graphs for place, _ in left_attributes(graph, left)]
        for place in leaving:  # a new attribute would be a change of the module
            place.module.__dict__.setdefault(place.name, None)
        places = [*(c.place for c in counted if c.adds), *((id(p.module.__dict__), p.name) for p in leaving)]
        self._watch = Watch(self.module, constants, places, varying)
        self._replaced |= computed_attributes(self.module, captured.varying.values())
        entry = Entry(captured, self._provider, device, self._debug, lazy=self._lazy, recomputation=self._recomputation,
                      followed=followed, left=left)  # fmt: skip
        self._left = list({(id(k.module), k.name): k for k in (*self._left, *left)}.values())
        if not self._paths:  # as where the module may run in pieces
            refuse_carried(entry)
        return entry

    def _traced(self, trace: Callable[..., Captured], tensors: Sequence[torch.Tensor], *, resized: bool) -> Captured:
        """Trace the module for all sizes, or for the call's own where that cannot be."""
        named = [{a: f"dim{a}_of_{i}" for a in _varying(t, resized=resized)} for i, t in enumerate(tensors)]
        try:
            return trace(dynamic=named)
        except CaptureError as error:
            if not any(named) or isinstance(error, ChangedStateError):
                raise
            captured = trace()
            warnings.warn(
                f"{type(self.module).__name__} is captured anew for each shape: {error.problem}", stacklevel=7
            )
            return captured

    def _warn_of_numbers(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Warn when one structure was captured many times for other plain numbers."""
        key: list[Any] = [len(args), *kwargs]
        for value in (*args, *kwargs.values()):
            walk(value, [], key)
        alike = tuple([None if isinstance(part, int | float) else part for part in key])
        self._alike[alike] = self._alike.get(alike, 0) + 1
        if self._alike[alike] == _MANY_CAPTURES:
            warnings.warn(
                f"{type(self.module).__name__} was captured {_MANY_CAPTURES} times for one structure of arguments: "
                "plain numbers are part of a graph. Pass numbers that change as tensors.",
                stacklevel=8,
            )

    def _default(self, name: str, value: object) -> bool:
        """Whether an argument is given as what it would be anyway."""
        parameter = self._signature.parameters.get(name)
        return parameter is not None and type(value) in PLAIN and value is parameter.default

    def _followed(self, counts: Sequence[Count]) -> list[Following]:
        followed = following(counts, self._watch.functions)
        for counting in followed:
            place = id(counting.count.module), counting.count.name
            if not counting.adds and place not in self._told:
                self._told.add(place)
                warnings.warn(
                    f"{counting.count}: each other value of it is captured anew; count in a buffer, "
                    "self.register_buffer(name, torch.tensor(0)), and compute with that",
                    stacklevel=7,
                )
        return followed

    def _take_up(self) -> None:
        """Go on with what was captured of the module when it was as it is now, if it was so lately.

        Attributes come and go: Lightning notes in the module whether it trains or validates.
        """
        if not self._watch.has_state():
            self._forget()
            return
        former = next((former for former in self._former if not former[0].changed()), None)
        self._former = [f for f in self._former if f is not former][1 - _FORMER :]
        self._former.append((self._watch, self._sites, self._entries))
        self._watch, self._sites, self._entries = former or (Watch(self.module), OrderedDict(), {})

    def _forget(self) -> None:
        self._former, self._sites, self._entries = [], OrderedDict(), {}
        self._watch = Watch(self.module)


def _inputs(site: Site, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [as_real(tensor) for tensor in site.ordered(tensors)]


def _masks(site: Site, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]] | None:
    """What draws the masks of a call; None where forward draws none."""
    return functools.partial(site.entry.masks, _inputs(site, tensors)) if site.entry.captured.masks else None


def _leads(site: Site, tensors: Sequence[torch.Tensor], draws: PathDraws) -> bool:
    return draws.lead_to(site.entry.captured.course, _masks(site, tensors))


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _draw(wanted: bool) -> int:
    """A seed out of torch's generator: what torch.manual_seed and a saved random state determine."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if wanted else 0
