"""`capture`: an nn.Module and sample inputs become one graph, its parameters inputs under their own names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from ontrain.capture.alone import alone
from ontrain.capture.cache import CaptureCache, open_cache
from ontrain.capture.cache.codec import Content
from ontrain.capture.captured import Captured
from ontrain.capture.chances import Course
from ontrain.capture.counts import counts
from ontrain.capture.decisions import WAY_OUT, RandomBranchError, ValueBranchError
from ontrain.capture.export import PREFIX, Draws, Exported, export, quiet
from ontrain.capture.guards import GUARDS, Guards
from ontrain.capture.inspection import Mark, inspected_outputs, recording
from ontrain.capture.layouts import parameters_among, repeated
from ontrain.capture.names import Names, State
from ontrain.capture.phases import Clock, tell_phases
from ontrain.capture.sample_inputs import enlarged, name_inputs, varying_dimensions
from ontrain.capture.structure import CallSpec, Spec, bind, flatten
from ontrain.capture.translate import Translated, translate
from ontrain.capture.unfit_numbers import UnfitNumberError
from ontrain.capture.ways_out import refuse_lazy, refuse_scripted
from ontrain.capture.writes import known_writes
from ontrain.errors import CaptureError
from ontrain.graph import Role, role_of
from ontrain.internals import OpOverload

__all__ = ["capture"]


def capture(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    input_names: Sequence[str] | None = None,
    dynamic: Sequence[Mapping[int, str]] | None = None,
    output_names: Sequence[str] | None = None,
    prefix: str = "",
    observed: bool = False,
    sized_by_values: bool = False,
    paths: bool = False,
    course: Course | None = None,
    complex_pairs: bool = False,
    varies: Callable[[torch.Tensor], bool] = lambda _: False,
    writes_parameters: bool = False,
    writes: bool = False,
    reads: bool = False,
) -> Captured:
    """Capture a module, in the mode it is in, as a graph. The module and torch's random state stay as they are.

    A run of the graph changes buffers as forward does, by giving their next values, but never an input in place.

    Args:
        module: any module that torch.export can trace. In training mode dropout drops and batch normalisation
            uses the batch's statistics and updates its own.
        args: positional arguments of a sample call. They may be nested; values that are no tensors are baked in.
        kwargs: its keyword arguments, likewise.
        input_names: one for each tensor in (args, kwargs), in order; forward's parameter names by default.
        dynamic: for each tensor input the dimensions that may vary, {axis: name}; equal names are equal sizes.
        output_names: of the tensors in the result, in order; "output_0" and so on by default.
        prefix: left out of the names of parameters and buffers that begin with it; for a module that wraps the user's.
        observed: whether the caller hands the values that are inspected to their observers.
        sized_by_values: whether sizes may depend on the values of tensors, as that of `x[mask]` does. The graph then
            needs a session that learns such sizes as it runs.
        paths: whether the graph of a module that branches on values may be of the path that the sample call takes. The
            caller then sees to it that `decisions` hold in a run, and that it draws what `masks` and `course` say.
        course: of another capture of the module, if there is one: such random numbers are looked for at once.
        complex_pairs: whether parameters, buffers, inputs and outputs may be complex. In the graph such a tensor has a
            last dimension of two, as `torch.view_as_real` shows it.
        varies: says which tensors that are neither inputs nor the module's own (a plain attribute, a global, a
            parameter of a module in a list) are parameters of the graph. It holds the values of the others.
        writes_parameters: whether forward may write to parameters; those that want no gradient are among the buffers.
        writes: whether the tensors in what forward writes to Python objects are outputs, too; the graph then holds for
            calls alone that have one tensor in several places where this one has.
        reads: whether to note which attributes of the module and its submodules forward reads.

    Raises:
        CaptureError: the module branches on data, uses an operator without translation, or returns what is no tensor.
        InputError: the sample call does not fit the module's forward.
        OptionError: `input_names` or `dynamic` do not fit the inputs.
    """
    refuse_scripted(module, prefix)
    refuse_lazy(module, prefix)
    signature = inspect.signature(module.forward)
    kwargs = kwargs or {}
    parts = [(name, *flatten(value)) for name, value in bind(signature, args, kwargs).items()]
    tensors = [tensor for _, leaves, _ in parts for tensor in leaves]
    positional = sum(name not in kwargs for name, _, _ in parts)
    arguments = tuple((name, spec) for name, _, spec in parts)
    spec = CallSpec(signature, arguments, positional, repeated(tensors) if writes else None, parameters_among(tensors))
    state = State(module, prefix)
    names = Names(
        inputs=name_inputs(spec, input_names, state.first),
        outputs=list(output_names or ()),
        dynamic=varying_dimensions(dynamic, tensors),
        prefix=PREFIX,
        own_prefix=prefix,
        first=state.first,
        order=[*state.parameters, *state.buffers],
        frozen=frozenset(name for name, parameter in state.parameters.items() if not parameter.requires_grad),
        sized_by_values=sized_by_values,
        complex_pairs=complex_pairs,
        varies=varies,
        writes_parameters=writes_parameters,
        writes=writes,
    )
    call = _Call(module, spec, enlarged(tensors, names.dynamic), tensors, names, state, reads)
    draws = Draws.OF_TORCH if course and course.from_torch else Draws.OF_PYTHON if course else Draws.SOME
    with alone(module, state.kind):
        return _captured(call, draws, paths=paths, observed=observed)


@dataclass(frozen=True)
class _Call:
    """The call by which a module is captured.

    Attributes:
        module: in the mode it is in.
        spec: the arguments.
        samples: tensors for the trace, in order.
        batch: the tensors of the call themselves.
        names: what things are called in the graph.
        state: the module's parameters and buffers.
        reads: whether to note which attributes forward reads.
    """

    module: nn.Module
    spec: CallSpec
    samples: list[torch.Tensor]
    batch: list[torch.Tensor]
    names: Names
    state: State
    reads: bool

    def captured(
        self, model: ir.Model, output_spec: Spec, guards: Guards, specialised: list[str], seconds: dict[str, float],
        **traced: Any,
    ) -> Captured:  # fmt: skip
        """Return the module as a graph; `traced` is what a graph from the cache has nothing of."""
        roles = {str(value.name): role_of(value) for value in model.graph.inputs}
        state, training = self.state, self.module.training
        tell_phases(f"captured {state.kind} in {'training' if training else 'evaluation'} mode", seconds)
        tensors = {**state.buffers, **state.parameters}
        return Captured(
            model=model,
            input_names=list(self.names.inputs),
            call=self.spec,
            output_spec=output_spec,
            parameters={name: p for name, p in state.parameters.items() if roles.get(name) is Role.PARAMETER},
            buffers={name: tensor for name, tensor in tensors.items() if roles.get(name) is Role.BUFFER},
            names=state.first,
            unused=[name for name in state.parameters if name not in roles],
            training=training,
            guards=guards,
            specialised=specialised,
            seconds=seconds,
            **traced,
        )


def _captured(call: _Call, draws: Draws, *, paths: bool, observed: bool) -> Captured:
    """The module as a graph, from the cache or by a trace."""
    module, names = call.module, call.names
    folder = open_cache() if not observed else None
    cache = CaptureCache(folder, module, call.spec, call.samples, names) if folder is not None else None
    clock = Clock("cache", "export", "translate")
    marks: list[Mark] = []
    known = cache.load() if cache is not None else None
    clock.lap("cache")
    if known is not None:
        return call.captured(known.model, known.output_spec, known.guards, known.specialised, clock.seconds)
    with recording() if observed else nullcontext(marks) as marks:
        exported = _exported(call, draws, paths=paths)
    clock.lap("export")
    if not exported.output_spec.tensors():
        raise CaptureError("the module returns no tensor", way_out="return the loss or the output from forward")
    with quiet():
        exported, translated = _translated(call, exported, draws, paths=paths)
    model, output_spec = translated.model, exported.output_spec
    # With what torch assumed while it wrote the program anew.
    guards = model.meta[GUARDS] = Guards.of(exported.program, names.inputs, exported.held)
    clock.lap("translate")
    left = exported.left
    writes = known_writes(left.writes, guards.symbols())
    hooks = [hook for hook in left.hooks if hook.is_lasting]
    leaves = left.attached or left.writes or left.rewritten or left.followed or left.arguments or hooks
    outside = translated.varying or translated.masks
    whole = not (leaves or exported.decisions or exported.course or outside)
    if cache is not None and whole:
        cache.store(lambda *traced: Content(model, guards, output_spec, translated.specialised, *traced))
        clock.lap("cache")
    return call.captured(
        model, output_spec, guards, translated.specialised, clock.seconds,
        constants=translated.constants, varying=translated.varying, inspected=inspected_outputs(model, marks),
        decisions=translated.path, counts=list(counts(writes)),
        returns_writes=names.writes, course=exported.course, masks=translated.masks, attached=left.attached,
        writes=writes, rewritten=left.rewritten, reads=left.reads, hooks=hooks,
        followed=left.followed, changed_arguments=left.arguments,
    )  # fmt: skip


def _exported(call: _Call, draws: Draws, *, paths: bool, asked: Collection[OpOverload] = ()) -> Exported:
    """Export the module; where it branches on values, as the path that this batch takes.

    Unless it may be one of several paths it must be the only one: `torch.rand(()) < 0.0` holds for no batch.

    Args:
        call: by which it is captured.
        draws: whether forward may branch on random numbers.
        paths: whether the program may be one of several.
        asked: operators for which numbers that vary are those of the batch.
    """
    may, names = draws if paths else Draws.NONE, call.names
    trace = functools.partial(
        export, call.module, call.spec, call.samples, names.dynamic, masked=paths, writes=names.writes,
        reads=call.reads, asked=asked,
    )  # fmt: skip
    try:
        return trace(None, may)
    except ValueBranchError as error:
        refusal = error
    try:
        exported = trace(call.batch, may)
    except ValueBranchError as error:
        if paths:
            raise
        raise _with_paths(error) from error.__cause__
    if exported.decisions and not paths:
        raise _with_paths(refusal) from refusal.__cause__
    return exported


def _translated(call: _Call, exported: Exported, draws: Draws, *, paths: bool) -> tuple[Exported, Translated]:
    """A trace as a graph; another trace where forward branches on numbers that torch draws."""
    try:
        return _with_constants(call, exported, draws, paths=paths)
    except RandomBranchError:
        again = None if exported.course.from_torch or not paths else _branching_on_torch(call)
        if again is None:
            raise
    return again, _translation(call, again)


def _with_constants(call: _Call, exported: Exported, draws: Draws, *, paths: bool) -> tuple[Exported, Translated]:
    """A trace as a graph; further traces, for fewer calls, where a translation takes no number that varies."""
    asked: set[OpOverload] = set()
    while True:
        try:
            return exported, _translation(call, exported)
        except UnfitNumberError as error:
            if error.operator in asked:
                raise
            refusal = error
        asked.add(refusal.operator)
        try:
            exported = _exported(call, draws, paths=paths, asked=asked)
        except ValueBranchError as error:  # of the road that was not to be taken
            raise refusal from error


def _translation(call: _Call, exported: Exported) -> Translated:
    return translate(exported.program, call.names, exported.decisions, exported.masks, exported.outside)


def _with_paths(error: ValueBranchError) -> ValueBranchError:
    """A refusal of branches on values, for a caller that has one path for all batches."""
    way_out = error.way_out
    if way_out == WAY_OUT:
        way_out = f"train it with ORTModule, which captures each path that batches take; {WAY_OUT}"
    return type(error)(error.problem, node=error.node, source=error.source, reason=error.reason, way_out=way_out)


def _branching_on_torch(call: _Call) -> Exported | None:
    """Export the module again, with numbers of torch's generator among those that it may branch on."""
    try:
        exported = _exported(call, Draws.OF_TORCH, paths=True)
    except CaptureError:  # of the road that was not to be taken
        return None
    return exported if exported.course else None
