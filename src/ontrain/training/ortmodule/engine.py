"""What an ORTModule keeps: captures by the structure of the call, and from a call's arguments to its result."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ontrain.capture import (
    LAYOUT,
    STRIDES,
    Captured,
    ChangedStateError,
    Course,
    bind,
    flatten,
    layout,
    parameters_among,
    refuse_lazy,
    refuse_scripted,
    repeated,
    tells_positions,
)
from ontrain.errors import CaptureError
from ontrain.locks import Lock
from ontrain.passes import Recomputation
from ontrain.training.ortmodule.call_cache import BRANCHES, CallCache
from ontrain.training.ortmodule.counting import Following, following
from ontrain.training.ortmodule.courses import Course as WriteCourse
from ontrain.training.ortmodule.debug import DebugOptions
from ontrain.training.ortmodule.entry import Entry, Site
from ontrain.training.ortmodule.forms import Buffers, FormerState, Forms
from ontrain.training.ortmodule.given_state import GivenState, computed_attributes, given_parameters
from ontrain.training.ortmodule.installed_hooks import InstalledHooks
from ontrain.training.ortmodule.keeping import Carried, refuse_carried
from ontrain.training.ortmodule.kept_state import KeptState, KeptStateError, Place
from ontrain.training.ortmodule.key import PLAIN, canonical, walk
from ontrain.training.ortmodule.lazy import LazyOutput
from ontrain.training.ortmodule.left import Left, check_left
from ontrain.training.ortmodule.own_mode import FOLLOWED, MODES
from ontrain.training.ortmodule.paths import OtherPathError, new_path, warn_of_courses
from ontrain.training.ortmodule.plain_numbers import PlainNumbers
from ontrain.training.ortmodule.recaptures import Recaptures
from ontrain.training.ortmodule.refusals import common_device, refuse_transforms, refuse_views
from ontrain.training.ortmodule.repeating import Repetition, repetitions, warn_of_arguments
from ontrain.training.ortmodule.request import Request
from ontrain.training.ortmodule.running import drawing_masks, run
from ontrain.training.ortmodule.settling import leaves_attributes, settled
from ontrain.training.ortmodule.surroundings import surroundings
from ontrain.training.ortmodule.trace import Axes, FixedSizes, trace_call
from ontrain.training.ortmodule.watch import Watch, check_hooks, hooks_within, put_back, warn_of_hooks

__all__ = ["Engine"]

_THREAD = frozenset({"current_thread", "get_ident", "get_native_id"})
"""Names of functions that tell which thread calls."""
_FORMER = 2
"""For how many former values of a module's attributes captures are kept. Each set of captures has memory of its own."""


class Engine:
    """Captures a module when a call's structure is new, and runs calls.

    A capture holds for: the training mode of every submodule, the arguments given, their nesting and plain values,
    dtypes and ranks of tensors, and what is set for all of torch. It does not depend on shapes and requires_grad, and
    on how arguments are passed only where a hook of the module or a decorator of its forward can tell.

    Args:
        lazy: whether outputs beside a loss are computed only when somebody looks at them.
        recomputation: activations that backward computes again instead of finding them in memory.
        paths: whether each path of a module that branches on values is captured, once a call takes it.
        places: entries that the module has as arguments and in its result.
    """

    def __init__(
        self, module: nn.Module, provider: str, debug: DebugOptions, *, lazy: bool,
        recomputation: Recomputation | None = None, paths: bool = True, places: Sequence[Place] = (),
    ) -> None:  # fmt: skip
        self._recomputation, self._paths, self._places = recomputation, paths, tuple(places)
        self.module, self._provider, self._debug, self._lazy = module, provider, debug, lazy
        self._signature = inspect.signature(module.forward)
        self._cache = CallCache(module)
        # What was captured of the module when its attributes had other values, the latest last.
        self._former: list[CallCache] = []
        self._forms = Forms(module)
        self._numbers, self._recaptures = PlainNumbers(type(module).__name__), Recaptures(type(module).__name__)
        self._lock = Lock()
        self._captures = 0
        self._carried = Carried()
        self._told: set[tuple[int, Any]] = set()
        self._left: dict[tuple[int, Any], Left] = {}
        self._given: GivenState | None = None
        self._kept: KeptState | None = None
        self._replaced: set[str] = set()
        self._written: dict[int, torch.Tensor] = {}
        self._installed = InstalledHooks()
        self._writes = False  # whether each call writes to parameters
        self._changes = False  # whether attributes changed between calls
        self._by_thread = False  # whether entries stand under the thread that calls
        self._like = functools.partial(
            Engine, provider=provider, debug=debug, lazy=lazy, recomputation=recomputation, paths=paths, places=places
        )

    @property
    def entries(self) -> list[Entry]:
        """All captures held."""
        return [*self._cache.entries, *(self._kept.engine.entries if self._kept is not None else ())]

    @property
    def captures(self) -> int:
        """How often the module was captured for its calls."""
        return self._captures + (self._kept.engine.captures if self._kept is not None else 0)

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module's forward on a call's arguments."""
        state = self._kept
        if state is not None and state.is_current():
            return state(args, kwargs)
        state = self._kept = None
        check_left(self._left.values())
        with self._lock:
            # Under the lock, because a capture has other parameters in the module for as long as it takes.
            changed = self._cache.watch.changed()
            if changed:
                if self._recaptures.are_many:
                    self._recaptures.explain(self._cache.watch.differences())
                refuse_scripted(self.module)
                self._written.update((id(tensor), tensor) for tensor in self._cache.watch.written())
            substitutes = given_parameters(self.module, self._replaced) if changed or self._cache.is_empty else {}
            if changed and not substitutes:
                self._take_up()
        if substitutes:
            if self._given is None:
                self._given = GivenState(self.module, self._like)
            return self._given(substitutes, args, kwargs)
        request = self._request(args, kwargs)
        undo: Callable[[], None] | None = None
        while True:
            with self._lock:
                try:
                    site = self._site(request)
                except ChangedStateError:
                    buffers = self._forms.buffers()
                    undo = self._changing(undo, args, kwargs)
                    if undo is None:
                        self._forget()
                    else:
                        self._set_aside(buffers)
                    continue
                except KeptStateError as error:
                    request.draws.undo()
                    self._forget()
                    state = self._kept = KeptState(self.module, error.places, self._like)
            if state is not None:
                return state(args, kwargs)
            try:
                result = run(site, request.tensors, request.draws.masks, self._carried)
            except OtherPathError as error:
                request.refuse(site, error)
                self._installed.take_back()
                continue
            self._follow_up(site, request.shapes)
            return result

    def _request(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> Request:
        """Return a call with all that its capture depends on.

        Raises:
            InputError: a tensor is on another device than the module, or has no shape.
            CaptureError: a transformation of torch.func is at work.
        """
        tensors: list[torch.Tensor] = []
        key: list[Any] = [self._cache.watch.modes(), surroundings(), None, len(args)]
        for value in args:
            walk(value, tensors, key)
        for name, value in kwargs.items():
            key.append(name)
            walk(value, tensors, key)
        tensors = [t.plain() if isinstance(t, LazyOutput) else t for t in tensors]
        key[2] = self._asked(tensors)
        refuse_transforms(tensors)
        try:
            shapes = tuple([t.shape for t in tensors])
        except RuntimeError:  # a nested tensor has none
            common_device(self.module, tensors)
            raise
        return Request(args, kwargs, tensors, shapes, tuple(key))

    def _follow_up(self, site: Site, shapes: Sequence[torch.Size]) -> None:
        """Do what forward does to Python objects beside the writes of its graph."""
        self._installed.keep()
        for set_anew in site.entry.derived:
            set_anew()
        if not self._numbers.are_told:
            self._recaptures.count(self._captures, site.entry.captured.seconds)
        written_once = [str(r.write) for r in site.entry.repeated if r.course is WriteCourse.ONCE]
        if written_once:
            self._recaptures.explain(written_once)
            self._forget()  # the next call finds what this one has written
        if site.entry.followed:
            sizes = site.sizes(shapes)
            for counting in site.entry.followed:
                counting.apply(sizes)

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
        """What a capture depends on that forward's code asks: of gradients, the arguments, the thread and torch.

        And which arguments are one tensor.
        """
        names = self._cache.watch.read
        layouts = tuple([layout(t, exact=bool(names & STRIDES)) for t in tensors]) if names & LAYOUT else ()
        grads = torch.is_grad_enabled() if names & (MODES | FOLLOWED | {"is_grad_enabled"}) else None
        inference = torch.is_inference_mode_enabled() if "is_inference_mode_enabled" in names else None
        leaves = (*tensors, *self.module.parameters()) if names & FOLLOWED else ()
        parameters = parameters_among(tensors) if names & {"Parameter", "Tensor"} else ()
        thread = threading.get_ident() if self._by_thread or names & _THREAD else None
        answers = tuple([ask() for ask in self._cache.watch.questions])
        followed = tuple([leaf.requires_grad for leaf in leaves])
        return grads, inference, repeated(tensors), layouts, followed, parameters, thread, answers

    def _site(self, request: Request) -> Site:
        """Return the way to a capture that may hold for a call; those that were tried and do not hold are passed by."""
        while True:
            site = self._known_site(request) or self._new_site(request)
            if site is not None:
                return site

    def _has_moved(self, site: Site, request: Request) -> bool:
        """Whether a tensor of the module has another layout now; all captures are then forgotten."""
        if not site.entry.moved():
            return False
        request.draws.undo()
        self._forget()
        return True

    def _known_site(self, request: Request) -> Site | None:
        """The way that an earlier call of this key took, the latest first."""
        sites = self._cache.sites(request.key)
        for site in sites[::-1]:
            if not request.fits(site):
                continue
            if self._has_moved(site, request):
                return None
            if request.leads_to(site):
                # Next time, what held last is tried first.
                sites.remove(site)
                sites.append(site)
                return site
        return None

    def _new_site(self, request: Request) -> Site | None:
        """A way that no call of this key took: to a capture for calls that mean the same, or to a new one.

        Returns:
            None if captures were forgotten, taken up or made, so that all have to be looked through again.
        """
        structure, places = self._meaning(request)
        entries = self._cache.alike(structure)
        for site in (Site(entry, places) for entry in entries):
            if not request.fits(site):
                continue
            if self._has_moved(site, request):
                return None
            if request.leads_to(site):
                break
        else:

            def answers(captures: Sequence[Entry]) -> bool:
                return any(request.fits(Site(other, places)) for other in captures)

            if self._goes_back(structure, answers, request.args, request.kwargs):
                return None
            captured = self._site_of_new_capture(request, entries, places)
            if captured is None:
                return None
            site = captured
        self._cache.add(request.key, site)
        return site

    def _meaning(self, request: Request) -> tuple[Hashable, dict[str, range]]:
        """Return what a call says however it is written, and which of its tensors belong to which argument."""
        bound = bind(self._signature, request.args, request.kwargs)
        named = {name: value for name, value in bound.items() if not self._default(name, value)}
        places, start = dict[str, range](), 0
        # bind keeps the order in which arguments are written, which is also that of the tensors.
        for name, value in named.items():
            count = len(flatten(value)[0])
            places[name] = range(start, start + count)
            start += count
        told = request.key if tells_positions(self.module) else request.key[:3]
        return (told, *canonical(named)), places

    def _site_of_new_capture(self, request: Request, entries: list[Entry], places: Mapping[str, range]) -> Site | None:
        """Capture a call, and return the way to the capture.

        Args:
            request: the call.
            entries: the captures for calls that mean the same; the new one is added.
            places: the call's tensors, by argument.

        Returns:
            None if only now is known what forward draws before it branches on what it draws.

        Raises:
            CaptureError: another thread draws what the module branches on.
        """
        others = [Site(entry, places) for entry in entries]
        masked = [site for site in others if site.entry.captured.masks and site.accepts(request.shapes)]
        request.draws.skip_masks(next((drawing_masks(site, request.tensors) for site in masked), None))
        misfits = [s for s in others if s.entry not in request.tried and not s.accepts(request.shapes)]
        course = next((entry.captured.course for entry in entries if entry.captured.course), None)
        first = not request.tried and not course
        axes = max((entry.next_axes for entry in entries), default=Axes.ALL)
        entry = self._capture(
            request.args, request.kwargs, request.tensors, axes=axes, misfits=[site.fixed_sizes() for site in misfits],
            first=first, course=course,
        )  # fmt: skip
        entries.append(new_path(entry, request.tried))
        site = Site(entries[-1], places)
        warn_of_courses(type(self.module).__name__, [entry.captured.course for entry in entries])
        if not request.leads_to(site):
            if entry.captured.masks and not masked:
                return None
            raise CaptureError(
                f"{type(self.module).__name__} branches on random numbers that others draw, too",
                source=entry.captured.course.source, reason="another thread drew from the generator meanwhile",
                way_out="draw from a generator that no other thread draws from",
            )  # fmt: skip
        del entries[:-BRANCHES]
        return site

    def _capture(
        self, args: tuple[object, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], *, axes: Axes,
        misfits: Sequence[FixedSizes], first: bool, course: Course | None = None,
    ) -> Entry:  # fmt: skip
        """Capture the module for a call.

        Args:
            axes: those whose sizes the graph leaves open.
            misfits: the sizes that captures which do not hold for the call want of its tensors.
            first: it takes no other path than an earlier call.
            course: the random numbers of an earlier call that the module branched on.
        """
        device = common_device(self.module, tensors)
        check_hooks(self.module)
        refuse_lazy(self.module)
        self._captures += 1
        if first:
            self._numbers.count(args, kwargs)
        hooks = hooks_within(self.module)
        own_modes = not self._cache.watch.read.isdisjoint(MODES | FOLLOWED)
        under_no_grad = own_modes and not torch.is_grad_enabled()
        captured, next_axes = trace_call(
            self.module, args, kwargs, tensors, axes=axes, misfits=misfits,
            under_no_grad=under_no_grad, paths=self._paths, course=course,
            varies=self._varies, writes_parameters=self._writes, reads=self._changes,
        )  # fmt: skip
        refuse_views(captured)
        warn_of_hooks(self.module, self._installed.all)
        if not self._places:  # which forward changes as attributes of its own
            warn_of_arguments(captured)
        self._by_thread |= any(_is_of_thread(write.name) for write in captured.writes)
        # Tracing runs forward, which may set attributes itself.
        functions = self._cache.watch.functions
        followed = following(captured.counts, functions)
        counted_places = {counting.place for counting in followed}
        repeated = repetitions(
            self.module, captured, args, kwargs, counted_places, functions, self._told, self._left, self._places
        )
        for write in (r.write for r in repeated if r.course is not WriteCourse.ONCE):
            write.prepare()  # a new attribute would be a change of the module
        self._installed.put(captured.hooks)
        with put_back(hooks):
            self._cache.watch = self._watching(captured, repeated, followed)
        self._replaced |= computed_attributes(self.module, captured.varying.values())
        entry = Entry(
            captured, self._provider, device, self._debug, lazy=self._lazy, recomputation=self._recomputation,
            followed=followed, repeated=repeated, next_axes=next_axes, under_no_grad=under_no_grad,
        )  # fmt: skip
        if not self._paths:  # as where the module may run in pieces
            refuse_carried(entry)
        return entry

    def _watching(self, captured: Captured, repeated: Sequence[Repetition], followed: Sequence[Following]) -> Watch:
        """Return what notices that the graphs no longer hold, a new one among them."""
        entries = self._cache.entries
        graphs = [captured, *(entry.captured for entry in entries)]
        constants = [tensor for graph in graphs for tensor in graph.constants]
        varying = [tensor for graph in graphs for tensor in graph.varying.values()]
        known = [*repeated, *(repetition for entry in entries for repetition in entry.repeated)]
        counted = [*followed, *(counting for entry in entries for counting in entry.followed)]
        unread = [*(c.place for c in counted), *(r.write.place for r in known if r.course is not WriteCourse.VALUE)]
        unread += [place.key for place in self._places]
        read = [r.write for r in known if r.course is WriteCourse.VALUE]
        ways = [way for r in known for way in r.ways]
        carried = [r.write for r in known if r.left is not None]
        return Watch(self.module, constants, unread, varying, read, ways, carried, _read_by(graphs))

    def _default(self, name: str, value: object) -> bool:
        """Whether an argument is given as what it would be anyway."""
        parameter = self._signature.parameters.get(name)
        return parameter is not None and type(value) in PLAIN and value is parameter.default

    def _take_up(self) -> None:
        """Go on with what was captured of the module when it was as it is now, if it was so lately.

        Attributes come and go: Lightning notes in the module whether it trains or validates.
        """
        if not self._cache.watch.has_state():
            self._forget()
            return
        self._changes = True
        former = next((former for former in self._former if not former.watch.changed()), None)
        self._former = [f for f in self._former if f is not former][1 - _FORMER :]
        self._former.append(self._cache)
        self._cache = CallCache(self.module) if former is None else former

    def _goes_back(
        self, structure: Hashable, answers: Callable[[Sequence[Entry]], bool], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:  # fmt: skip
        """Take up what was captured when buffers had other forms, if it answers a call and forward would form them."""
        former = self._forms.back(structure, answers, args, kwargs)
        if former is None:
            return False
        self._forms.add(FormerState(self._cache, former.left))
        self._former, self._cache = [], former.cache
        return True

    def _set_aside(self, buffers: Buffers) -> None:
        """Begin anew with buffers of other forms; what was captured with these ones is kept."""
        if self._cache.entries:
            self._forms.add(FormerState(self._cache, buffers))
        self._former, self._cache = [], CallCache(self.module)

    def _forget(self) -> None:
        self._former, self._cache = [], CallCache(self.module)
        self._forms.clear()


def _is_of_thread(name: object) -> bool:
    """Whether an entry stands under this thread, alone or with others: hooks of replicas keep theirs apart so."""
    thread = threading.current_thread()
    parts = name if isinstance(name, tuple) else (name,)
    return any(part in (thread.ident, thread.native_id, thread.name, thread) for part in parts)


def _read_by(captures: Sequence[Captured]) -> dict[int, frozenset[str]]:
    """The attributes that some capture reads, of the modules of which that is known of all captures."""
    known = [captured.reads for captured in captures]
    places = set(known[0]).intersection(*known[1:])
    return {place: frozenset().union(*(names[place] for names in known)) for place in places}
