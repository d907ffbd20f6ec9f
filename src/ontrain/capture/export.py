"""torch.export run so that it sees tensors only and leaves the module, and torch's random state, as they were."""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NoReturn

import torch
from torch import nn

from ontrain.capture.attached import AttachedBuffer, attached_buffers
from ontrain.capture.autograd import check_functions
from ontrain.capture.chances import Course
from ontrain.capture.containers import Containers
from ontrain.capture.decisions import WAY_OUT, Answers, Decision, TwoDevicesError, ValueBranchError
from ontrain.capture.fake import exporting, stand_ins
from ontrain.capture.frozen import FrozenParameters
from ontrain.capture.generators import DrawnNumberError, Run, branching_on_draws, without_draws
from ontrain.capture.hooks import InstalledHook
from ontrain.capture.inspection import restart
from ontrain.capture.iterators import refused_iterators
from ontrain.capture.key_values import asks_for_cache, with_unread
from ontrain.capture.masks import DrawnMask, Masks
from ontrain.capture.no_grad import detached_no_grad
from ontrain.capture.number_types import took_number_type_for_dtype
from ontrain.capture.outside import OutsideTensors
from ontrain.capture.owners import Owners
from ontrain.capture.parts import own_parts
from ontrain.capture.questions import operators_noted
from ontrain.capture.reads import Reads
from ontrain.capture.source import user_frame
from ontrain.capture.sparse_state import HeldMatrix, dense_state
from ontrain.capture.structure import CallSpec, Spec, call, check_plain, flatten, has_objects, unflatten
from ontrain.capture.tracing import (
    AUTOCAST,
    as_eager,
    assigned_buffers,
    same_parts,
    shared_memory,
    tracing,
    unchanged_attributes,
    went_for_compilers,
)
from ontrain.capture.unfit_numbers import unfit_numbers_asked
from ontrain.capture.ways_out import BROKEN, draws_from_a_generator
from ontrain.capture.writes import Tables, Write
from ontrain.errors import CaptureError, OntrainError
from ontrain.internals import (
    TALKATIVE_LOGGERS,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    GuardOnDataDependentSymNode,
    OpOverload,
    available,
    mark_parameter,
    private,
    replaced,
    version_of,
)

__all__ = ["PREFIX", "Draws", "Exported", "Flat", "export", "quiet"]

PREFIX = "module."
"""What the exported program has before the module's own names."""

_NESTED = re.compile(r"nested_?tensor|torch\.nested\.|jagged", re.IGNORECASE)
"""What torch's error, or the user's line, says of tensors whose rows have lengths of their own."""
_DATA_DEPENDENT = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)


class Draws(Enum):
    """What is known of random numbers that forward may branch on.

    Python's and numpy's are looked for if there may be some. Where there are, the first trace would be thrown away.
    """

    NONE = "forward may draw none"
    SOME = "there may be some"
    OF_PYTHON = "there are some"
    OF_TORCH = "there are some of torch's generator"


@dataclass(frozen=True)
class Leavings:
    """What forward leaves behind beside its result.

    Attributes:
        attached: the buffers that it leaves with a gradient.
        writes: what it writes to other Python objects.
        rewritten: the numbers of the input tensors that it writes to.
        reads: the attributes that it reads, if they were noted, see `Reads.by_attributes`.
        hooks: those that it registers.
        followed: the numbers of the input tensors that it requires a gradient of.
        arguments: those whose dictionaries and lists it changes.
    """

    attached: Sequence[AttachedBuffer] = ()
    writes: Sequence[Write] = ()
    rewritten: Sequence[int] = ()
    reads: Mapping[int, frozenset[str]] = field(default_factory=dict)
    hooks: Sequence[InstalledHook] = ()
    followed: Sequence[int] = ()
    arguments: Sequence[str] = ()


@dataclass(frozen=True)
class Exported:
    """A module as a program.

    Attributes:
        program: torch's.
        output_spec: the structure of its result.
        decisions: the conditions on values under which forward is the program.
        left: what forward leaves in the module, in other objects and in its arguments.
        course: the random numbers, and answers about them, with which forward is the program.
        masks: those that forward draws by numpy, as the program's calls of `ontrain::mask` number them.
        held: conditions on sizes that the user's code asks, which hold for the program.
        outside: the tensors of others that forward reads.
    """

    program: torch.export.ExportedProgram
    output_spec: Spec
    decisions: Sequence[Decision]
    left: Leavings = field(default_factory=Leavings)
    course: Course = field(default_factory=Course)
    masks: Sequence[DrawnMask] = ()
    held: Sequence[Any] = ()
    outside: OutsideTensors | None = None


def export(
    module: nn.Module,
    arguments: CallSpec,
    tensors: Sequence[torch.Tensor],
    dynamic: Sequence[Mapping[int, str]],
    batch: Sequence[torch.Tensor] | None = None,
    draws: Draws = Draws.NONE,
    *,
    masked: bool = False,
    writes: bool = False,
    reads: bool = False,
    asked: Collection[OpOverload] = (),
) -> Exported:
    """Export a module in its own mode as a function of tensors.

    Args:
        module: left as it was: attributes, buffers, configuration, gradients.
        arguments: how the module is called.
        tensors: sample values, in order.
        dynamic: for each tensor the dimensions that may vary.
        batch: the tensors themselves, if forward may branch on their values; the program is of the branches that it
            takes for them.
        draws: whether forward may branch on random numbers; the program is of the branches that it takes now.
        masked: whether the caller draws the masks that forward draws by numpy.
        writes: whether the program returns the tensors in what forward writes to Python objects, too.
        reads: whether to note which attributes of the module forward reads.
        asked: operators for which numbers that vary are those of the batch.

    Raises:
        ValueBranchError: forward branches on values.
        DrawnNumberError: forward draws random numbers from Python's or numpy's generators, and uses them otherwise.
        CaptureError: torch.export cannot trace the module; names the user's line.
    """
    auto = torch.export.Dim.AUTO
    shapes = {"tensors": tuple(dict.fromkeys(dims, auto) for dims in dynamic)}
    masks = Masks(allowed=masked)

    def trace(run: Run, *, numbers_vary: bool = True, eager: bool = False) -> Exported:
        results: list[Spec] = []
        left: list[Leavings] = []
        held: list[Any] = []
        answers = None if batch is None else Answers(module, batch)
        flat = Flat(module, arguments, results.append, run if answers is None else answers.begun(run), eager=eager,
                    leaves=left.append, begins=masks.drawn.clear,
                    writes=writes, reads=Reads(module) if reads else None)  # fmt: skip
        with (
            dense_state(module) as flat.matrices,
            tracing(module, answers=answers, numbers_vary=numbers_vary, held=held.append),
            masks.traced(),
            shared_memory(),
            unfit_numbers_asked(asked),
            OutsideTensors(module) as outside,
        ):
            program = _export(flat, tensors, shapes if tensors else None)
            cached = asks_for_cache(module)
        spec = _with_unread_cache(flat, tensors, results, masks, batch) if cached else results[-1]
        decisions = () if answers is None else answers.decisions
        return Exported(program, spec, decisions, left[-1], masks=tuple(masks.drawn),
                        held=tuple(dict.fromkeys(held)), outside=outside)  # fmt: skip

    try:
        return _drawing(trace, draws)
    except CaptureError as error:
        if took_number_type_for_dtype(error):
            again = functools.partial(trace, numbers_vary=False)
        elif went_for_compilers(error):
            again = functools.partial(trace, eager=True)
        else:
            raise
    # Outside of the handler: what fails now has another cause.
    return _drawing(again, draws)


def _drawing(trace: Callable[[Run], Exported], draws: Draws) -> Exported:
    """Export a module that may branch on random numbers."""
    if draws in (Draws.NONE, Draws.SOME):
        try:
            return without_draws(trace)
        except DrawnNumberError:
            if draws is Draws.NONE:
                raise
    branching = branching_on_draws(trace, from_torch=draws is Draws.OF_TORCH)
    if branching is None:
        return without_draws(trace)  # which says where
    exported, course = branching
    return replace(exported, course=course)


def _export(flat: Flat, tensors: Sequence[torch.Tensor], shapes: Any) -> torch.export.ExportedProgram:
    try:
        with quiet(), own_parts(flat), detached_no_grad(), operators_noted(), _computed_anew(shapes):
            return torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)
    except CaptureError as error:
        raise _located(error) from error
    except OntrainError:
        raise
    except Exception as error:  # the user's module and torch's tracer may raise anything
        raise _explained(error) from error


def _computed_anew(shapes: Any) -> AbstractContextManager[Any]:
    """Return a context in which a trace computes each result without values, if sizes vary.

    Torch keeps such results, and looks one up by comparing sizes. That takes longer than computing it where sizes are
    expressions: a quarter of the trace of a GPT-2, a third of a Swin's.
    """
    patch = available("torch._dynamo.config.patch")
    if patch is None or not any((shapes or {}).get("tensors", ())):
        return nullcontext()
    context: AbstractContextManager[Any] = patch(fake_tensor_cache_enabled=False)
    return context


def _with_unread_cache(
    flat: Flat, tensors: Sequence[torch.Tensor], results: list[Spec], masks: Masks, batch: Sequence[torch.Tensor] | None
) -> Spec:
    """The structure of the last result with what refuses to be read where the module would have put a cache.

    Forward runs once more, on tensors without values; one that branches on values runs on the batch instead.
    """
    spec, count = results[-1], len(results)
    if not spec.children:
        return spec
    private("torch._subclasses.fake_tensor.FakeTensorMode")
    try:
        _run_with_cache(flat, tensors, masks, FakeTensorMode(allow_non_fake_inputs=True))
    except Exception as error:  # of any kind that a user's forward raises on tensors without values
        if len(results) == count and batch is not None:
            try:
                _run_with_cache(flat, batch, masks, None)
            except Exception as failure:  # of any kind that forward raises
                if len(results) == count:
                    raise _unplaced(f"forward with the cache: {_first_line(failure)}") from failure
        elif len(results) == count:  # and not what no graph could return: only its place matters
            raise _unplaced(f"forward with the cache, on tensors without values: {_first_line(error)}") from error
    whole = with_unread(spec, results[-1])
    if whole is None:
        raise _unplaced("the result with the cache has another structure than the result without it")
    return whole


def _run_with_cache(flat: Flat, tensors: Sequence[torch.Tensor], masks: Masks, mode: FakeTensorMode | None) -> None:
    """Run forward as while it is exported, but with the cache: in a mode of tensors without values, or on copies."""
    with ExitStack() as stack:
        if mode is None:
            inputs = [tensor.detach().clone() for tensor in tensors]
            named = (*flat.named_parameters(), *flat.named_buffers())
            state = {name: tensor.detach().clone() for name, tensor in named}
            stack.enter_context(torch.random.fork_rng({t.device.index for t in inputs if t.is_cuda}))
            stack.enter_context(torch.no_grad())
        else:
            inputs, state = stand_ins(mode, flat, [tensor.shape for tensor in tensors], tensors)
        for context in (quiet(), tracing(flat.module, caches=True), masks.traced(), exporting(_not_compiled)):
            stack.enter_context(context)
        if mode is not None:
            stack.enter_context(mode)
        torch.func.functional_call(flat, state, tuple(inputs))


def _unplaced(reason: str) -> CaptureError:
    return CaptureError(
        "the model's configuration asks for a cache of keys and values, and its place in the result is not known",
        reason=reason,
        way_out="call the model with use_cache=False or use_cache=True",
    )


def _not_compiled(*_: Any, **__: Any) -> NoReturn:
    raise CaptureError("forward calls torch.cond, torch.while_loop or torch.compile")


class Flat(nn.Module):
    """A module as a function of tensors to tensors.

    Args:
        returned: is given the structure of what the module returned.
        run: calls the module's forward.
        eager: whether a forward that asks whether it is compiled is told that it is not.
        leaves: is told what forward leaves behind beside its result.
        begins: is called when forward begins.
        writes: whether the tensors in what it writes, and the inputs that it writes to, are returned behind the others.
        reads: notes which attributes of the module forward reads.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: CallSpec,
        returned: Callable[[Spec], None],
        run: Run,
        *,
        eager: bool = False,
        leaves: Callable[[Leavings], None] | None = None,
        begins: Callable[[], None] = restart,
        writes: bool = False,
        reads: Reads | None = None,
    ) -> None:
        super().__init__()
        self._writes, self._reads = writes, reads
        self.module, self._eager = module, eager
        self.training = module.training
        # A function, because torch.export puts containers among the attributes back as they were.
        self._returned, self._run = returned, run
        self._call: Callable[..., Any] = lambda named: call(module, arguments, named)
        self._arguments, self._repeated = list(arguments.arguments), arguments.repeated
        self._marked = arguments.parameters
        self._containers = Containers(module)
        self.matrices: list[HeldMatrix] = []
        self._leaves, self._begins = leaves, begins
        self._autocast = [(d, torch.get_autocast_dtype(d)) for d in AUTOCAST if torch.is_autocast_enabled(d)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tensors of the module's result for those of its arguments."""
        restart()
        self._begins()
        if self._repeated is not None:
            tensors = tuple([tensors[place] for place in self._repeated])
        for place in self._marked:
            mark_parameter(tensors[place])
        left = list(tensors)
        named = {}
        for name, spec in self._arguments:
            count = spec.tensors()
            named[name], left = unflatten(spec, left[:count]), left[count:]
        # A module may keep a mask or a position table in an attribute; torch refuses to trace one that still holds
        # a traced tensor at the end.
        with ExitStack() as stack:
            installed = stack.enter_context(unchanged_attributes(self.module, state=False))
            self._containers.refer_to_traced()
            stack.enter_context(assigned_buffers(self.module, refuse_new=self._writes))
            stack.enter_context(same_parts(self.module))
            for matrix in self.matrices:
                matrix.assemble()
            for device, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype))
            if self._eager:
                stack.enter_context(as_eager())
            tables = Tables(self.module, self._containers.originals)
            stack.callback(tables.restore)
            owners, versions = Owners(self.module, tensors), list(map(version_of, tensors))
            reads = self._reads
            noted = nullcontext() if reads is None else reads.noted()
            with FrozenParameters(self.module, tensors) as frozen, noted, refused_iterators(tables.before):
                result = self._run(lambda: self._call(named))
            leaves, spec = flatten(result)
            spec = owners.told(spec, leaves)
            changes = tables.changes()
            rewritten = [place for place, tensor in enumerate(tensors) if version_of(tensor) != versions[place]]
            arguments = self._changed_arguments(named, tensors)
            if self._leaves is not None:
                attached, writes = list(attached_buffers(self.module)), [write for write, _ in changes]
                known = {} if reads is None else reads.by_attributes()
                self._leaves(
                    Leavings(attached, writes, rewritten, known, installed, sorted(frozen.followed), arguments)
                )
            written = [tensor for _, parts in changes for tensor in parts] + [tensors[place] for place in rewritten]
        self._returned(spec)
        check_plain(spec)
        check_functions(leaves)
        return (*leaves, *(written if self._writes else ()))

    def _changed_arguments(self, named: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> list[str]:
        """The arguments whose dictionaries and lists forward changes.

        Raises:
            CaptureError: it gives an object among its arguments other tensors: the caller would not see them.
        """
        start, changed = 0, []
        for name, spec in self._arguments:
            before = tensors[start : start + spec.tensors()]
            start += spec.tensors()
            if not spec.children:
                continue
            after, now = flatten(named[name])
            if now == spec and all(a is b for a, b in zip(after, before, strict=True)):
                continue
            changed.append(name)
            if has_objects(spec):
                raise CaptureError(
                    f"forward changes the object that it gets as {name!r}",
                    reason="a graph returns new tensors, and leaves the objects of its caller as they are",
                    way_out="return what is new, and leave the argument as it is",
                )
        return changed


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what torch.export's own code warns of and logs; errors are raised all the same."""
    talkative = [logger for logger in map(logging.getLogger, TALKATIVE_LOGGERS) if not logger.disabled]
    with warnings.catch_warnings(), ExitStack() as after:
        for logger in talkative:  # a hundred lines of traceback before the error that says where and why
            logger.disabled = True
            after.callback(setattr, logger, "disabled", False)
        # Up to torch 2.12 an export that fails leaves its hook there, and no later graph could be kept in the cache.
        hooks = available("torch.nn.modules.module._global_buffer_registration_hooks")
        if hooks is not None:  # it is there, and empty, where nobody has registered any
            after.callback(lambda there: [hooks.pop(hook) for hook in [*hooks] if hook not in there], frozenset(hooks))
        # It prints the part of the graph that it had, too.
        after.enter_context(replaced({"torch.export._trace.print": lambda *_, **__: None}))
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*export.*", category=UserWarning)
        yield


def _located(error: CaptureError) -> CaptureError:
    """One of our own errors with the line of forward from which it came."""
    source = error.source or user_frame(error.__traceback__)
    return type(error)(error.problem, node=error.node, source=source, reason=error.reason, way_out=error.way_out)


def _causes(error: BaseException) -> list[BaseException]:
    """An error, and what it came of, the first cause last."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def _explained(error: BaseException) -> CaptureError:
    chain = _causes(error)
    source = next((line for cause in reversed(chain) if (line := user_frame(cause.__traceback__))), None)
    text = "\n".join(str(cause) for cause in chain)
    if any(isinstance(cause, _DATA_DEPENDENT) for cause in chain) or "data-dependent" in text.lower():
        return ValueBranchError(
            "the module branches on the values of a tensor, or makes a tensor whose size depends on them",
            source=source,
            reason=f"a graph has one path for all batches ({_first_line(error)})",
            way_out=WAY_OUT,
        )
    if "fake tensor in the exported program" in text:
        return CaptureError(
            "forward takes a tensor out of torch's sight",
            source=source,
            reason="reading `.data`, or making a tensor of a tensor's values, hides where the result comes from",
            way_out="use .detach() in place of .data",
        )
    if "at least two devices" in text or "is not on the expected device" in text:
        return TwoDevicesError(
            f"forward computes with tensors of two devices ({_first_line(error)})", source=source,
            reason="as in eager PyTorch a tensor that forward makes without device= is on the default device",
            way_out="name the device where forward makes a tensor (device=x.device), and move the whole module there",
        )  # fmt: skip
    if "torch._C.Generator" in text:  # of torch 2.11, which traces no call with one
        return draws_from_a_generator(source)
    if _NESTED.search(f"{text}\n{source}"):
        return CaptureError(
            f"forward makes a nested tensor, which torch.export cannot trace ({_first_line(error)})",
            source=source,
            reason="what a graph computes has one length in each dimension",
            way_out="pad the rows by torch.nn.utils.rnn.pad_sequence, and mask by their lengths; or keep the rows one "
            "after the other with their offsets, and take sums over them by index_add; or " + BROKEN,
        )
    if "Cache" in text:
        way_out = "call the model with use_cache=False, and return tensors only"
    else:
        way_out = "write the line with tensor operators whose shapes follow from the inputs' shapes; or " + BROKEN
    return CaptureError(
        f"torch.export cannot trace the module: {_first_line(error)}",
        source=source,
        reason=f"{type(error).__name__} while tracing",
        way_out=way_out,
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
