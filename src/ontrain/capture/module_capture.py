"""`capture`: an nn.Module and sample inputs become one graph, its parameters inputs under their own names."""

from __future__ import annotations

import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from ontrain.capture.cache import CaptureCache, open_cache
from ontrain.capture.cache.codec import Content
from ontrain.capture.chances import Course
from ontrain.capture.counts import Count
from ontrain.capture.decisions import Decisions, RandomBranchError, ValueBranchError
from ontrain.capture.export import PREFIX, Draws, Exported, export, quiet
from ontrain.capture.global_hooks import hooks_of_parts
from ontrain.capture.guards import GUARDS, Guards
from ontrain.capture.inspection import INSPECTED, Inspected, Mark, recording
from ontrain.capture.kept import Kept
from ontrain.capture.masks import DrawnMask
from ontrain.capture.names import COMPLEX, Names
from ontrain.capture.phases import tell_phases
from ontrain.capture.structure import CallSpec, Spec, bind, flatten, leaf_paths, unflatten
from ontrain.capture.translate import translate
from ontrain.capture.ways_out import refuse_scripted
from ontrain.errors import CaptureError, OptionError
from ontrain.graph import Role, role_of, source_of, subgraphs
from ontrain.internals import available, without_dispatch_modes
from ontrain.interrupts import interrupts_wait
from ontrain.locks import Lock
from ontrain.sizes import Size

__all__ = ["Captured", "capture"]

_alone = Lock(holds_forks=True)
"""Held while a module is captured: torch.export replaces functions of torch's own. Two traces would mix, and a child
would never get those functions back."""


@dataclass
class Captured:
    """A module as a graph.

    Attributes:
        model: inputs are the user's, then parameters, then buffers; outputs are the user's, then the buffers' next
            values. A frozen parameter has the metadata "ontrain.requires_grad" = "0".
        input_names: names of the tensor inputs, in order.
        call: the arguments of the captured call; its `flatten` takes the tensors out of a later call.
        output_spec: the structure of the module's result.
        parameters: the module's own parameters that the graph uses, by their first name in the module.
        buffers: the same for buffers, including those that `state_dict` leaves out, and for frozen parameters that
            forward writes to.
        names: the graph's name of a parameter or buffer, by any of its names in the module.
        unused: parameters that the result does not depend on.
        training: whether the module was in training mode.
        guards: what forward assumed of sizes.
        specialised: a message for each dimension asked to vary that the model fixes.
        constants: tensors of the module, neither parameters nor buffers, whose values the graph holds.
        varying: such tensors that are parameters of the graph.
        inspected: values inside the module that somebody wants to see; they are further outputs of the model.
        decisions: conditions on values under which the graph is the module's forward.
        counts: numbers among the module's attributes that forward changes; the graph has those from before.
        retained: tensors that forward leaves in the module, for the next call or for whoever reads them.
        course: random numbers that forward branches on, and the branches of the graph.
        masks: those that forward draws by numpy, in order; they are further inputs of the model, and whoever runs it
            draws them.
        returns_attributes: whether outputs of the graph are tensors that forward leaves in attributes.
        seconds: what each phase took.
    """

    model: ir.Model
    input_names: list[str]
    call: CallSpec
    output_spec: Spec
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, torch.Tensor]
    names: dict[str, str]
    unused: list[str]
    training: bool
    guards: Guards
    specialised: list[str] = field(default_factory=list)
    constants: list[torch.Tensor] = field(default_factory=list)
    varying: dict[str, torch.Tensor] = field(default_factory=dict)
    inspected: Inspected = field(default_factory=Inspected)
    decisions: Decisions = field(default_factory=Decisions)
    counts: Sequence[Count] = ()
    retained: Sequence[Kept] = ()
    course: Course = field(default_factory=Course)
    masks: Sequence[DrawnMask] = ()
    returns_attributes: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of tied parameters and buffers, to the one that the graph has."""
        first: set[str] = set()
        registered = {}
        for name, own in self.names.items():
            if own in first:
                registered[name] = own
            first.add(own)
        return registered

    @property
    def output_names(self) -> list[str]:
        """Names of the tensors in the module's result, in order."""
        return [str(value.name) for value in self.model.graph.outputs[: self.output_spec.tensors()]]

    @property
    def attributes(self) -> list[tuple[Kept, list[str]]]:
        """What forward leaves in attributes, and the names of the outputs that it consists of."""
        left = [place for place in self.retained if place.is_output] if self.returns_attributes else []
        names = iter([str(value.name) for value in self.model.graph.outputs[self.output_spec.tensors() :]])
        return [(place, [next(names) for _ in range(place.spec.tensors())]) for place in left if place.spec]

    @property
    def complex_outputs(self) -> list[str]:
        """Those of `output_names` that are complex: in the graph they are pairs of real numbers."""
        count = self.output_spec.tensors()
        return [str(value.name) for value in self.model.graph.outputs[:count] if COMPLEX in value.metadata_props]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of `input_names`.

        Raises:
            InputError: the call differs from the captured one in more than its tensors.
        """
        return self.call.flatten(args, kwargs)

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Return the module's result with these values for its tensors, in the order of `output_names`."""
        return unflatten(self.output_spec, outputs)


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
    attributes: bool = False,
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
        attributes: whether tensors that forward leaves in attributes, and that autograd follows, are outputs, too.

    Raises:
        CaptureError: the module branches on data, uses an operator without translation, or returns what is no tensor.
        InputError: the sample call does not fit the module's forward.
        OptionError: `input_names` or `dynamic` do not fit the inputs.
    """
    refuse_scripted(module, prefix)
    signature = inspect.signature(module.forward)
    kwargs = kwargs or {}
    parts = [(name, *flatten(value)) for name, value in bind(signature, args, kwargs).items()]
    tensors = [tensor for _, leaves, _ in parts for tensor in leaves]
    positional = sum(name not in kwargs for name, _, _ in parts)
    spec = CallSpec(signature, tuple((name, spec) for name, _, spec in parts), positional)
    state = _State(module, prefix)
    names = Names(
        inputs=_input_names(spec, input_names, state.first),
        outputs=list(output_names or ()),
        dynamic=_dynamic(dynamic, tensors),
        prefix=PREFIX,
        own_prefix=prefix,
        first=state.first,
        order=[*state.parameters, *state.buffers],
        frozen=frozenset(name for name, parameter in state.parameters.items() if not parameter.requires_grad),
        sized_by_values=sized_by_values,
        complex_pairs=complex_pairs,
        varies=varies,
        writes_parameters=writes_parameters,
        attributes=attributes,
    )
    samples = _enlarged(tensors, names.dynamic)
    waits = interrupts_wait(f"{state.kind} is captured")
    with _alone, waits, _deep_recursion(), _no_compilation(), without_dispatch_modes(), hooks_of_parts(module):
        draws = Draws.OF_TORCH if course and course.from_torch else Draws.OF_PYTHON if course else Draws.SOME
        return _traced(module, spec, samples, names, state, tensors, draws, paths=paths, observed=observed)


_FRAMES = 3
"""How many times as many frames a trace may take as forward itself: torch.export stands between two modules."""


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Let modules in modules be traced as deep as eager PyTorch runs them."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_FRAMES * limit)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == _FRAMES * limit:
            sys.setrecursionlimit(limit)


def _no_compilation() -> AbstractContextManager[Any]:
    """Return a context in which TorchDynamo compiles nothing in other threads: it would see what a trace replaces."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return nullcontext()
    lock: AbstractContextManager[Any] | None = available("torch._dynamo.convert_frame.compile_lock")
    return nullcontext() if lock is None else lock


def _traced(
    module: nn.Module, spec: CallSpec, samples: list[torch.Tensor], names: Names, state: _State,
    batch: list[torch.Tensor], draws: Draws, *, paths: bool, observed: bool,
) -> Captured:  # fmt: skip
    """The module as a graph, from the cache or by a trace."""
    folder = open_cache() if not observed else None
    cache = CaptureCache(folder, module, spec, samples, names) if folder is not None else None
    clock = _Clock()
    marks: list[Mark] = []
    known = cache.load() if cache is not None else None
    clock.lap("cache")
    if known is not None:
        return _captured(known.model, known.output_spec, known.guards, known.specialised, [], spec, state, names,
                         module.training, clock.seconds)  # fmt: skip
    with recording() if observed else nullcontext(marks) as marks:
        exported = _exported(module, spec, samples, names, batch, draws, paths=paths)
    clock.lap("export")
    if not exported.output_spec.tensors():
        raise CaptureError("the module returns no tensor", way_out="return the loss or the output from forward")
    with quiet():
        try:
            translated = translate(exported.program, names, exported.decisions, exported.masks, exported.outside)
        except RandomBranchError:
            if exported.course.from_torch or not paths:
                raise
            again = _branching_on_torch(module, spec, samples, names, batch)
            if again is None:
                raise
            exported = again
            translated = translate(exported.program, names, exported.decisions, exported.masks, exported.outside)
    model, masks = translated.model, translated.masks
    program, output_spec, counted = exported.program, exported.output_spec, exported.counts
    guards = Guards.of(program, names.inputs, exported.held)  # with what torch assumed while it wrote the program anew
    model.meta[GUARDS] = guards
    clock.lap("translate")
    outside = translated.varying or masks
    whole = not (exported.decisions or counted or exported.course or exported.retained or outside)
    if cache is not None and whole:
        cache.store(lambda *traced: Content(model, guards, output_spec, translated.specialised, *traced))
        clock.lap("cache")
    captured = _captured(model, output_spec, guards, translated.specialised, translated.constants, spec, state, names,
                         module.training, clock.seconds)  # fmt: skip
    captured.inspected, captured.decisions = _inspected(model, marks), translated.path
    captured.counts, captured.varying = _known(counted, guards), translated.varying
    captured.returns_attributes = names.attributes
    captured.course, captured.retained, captured.masks = exported.course, exported.retained, masks
    return captured


def _exported(
    module: nn.Module, spec: CallSpec, samples: list[torch.Tensor], names: Names, batch: list[torch.Tensor],
    draws: Draws, *, paths: bool,
) -> Exported:  # fmt: skip
    """Export the module; where it branches on values, as the path that this batch takes.

    Unless it may be one of several paths it must be the only one: `torch.rand(()) < 0.0` holds for no batch.
    """
    may = draws if paths else Draws.NONE
    try:
        return export(module, spec, samples, names.dynamic, None, may, masked=paths, attributes=names.attributes)
    except ValueBranchError as error:
        refusal = error
    exported = export(module, spec, samples, names.dynamic, batch, may, masked=paths, attributes=names.attributes)
    if exported.decisions and not paths:
        raise refusal
    return exported


def _branching_on_torch(
    module: nn.Module, spec: CallSpec, samples: list[torch.Tensor], names: Names, batch: list[torch.Tensor]
) -> Exported | None:
    """Export the module again, with numbers of torch's generator among those that it may branch on."""
    try:
        exported = _exported(module, spec, samples, names, batch, Draws.OF_TORCH, paths=True)
    except CaptureError:  # of the road that was not to be taken
        return None
    return exported if exported.course else None


def _known(counts: Sequence[Count], guards: Guards) -> list[Count]:
    """Counts by numbers and by sizes of the inputs. A warning tells of those by values of tensors."""
    named = [count.named() for count in counts]
    known = [count for count in named if not isinstance(count.after, Size) or count.after.symbols() <= guards.symbols()]
    for count in named:
        if count not in known:
            warnings.warn(
                f"forward changes the attribute {count.name!r} of {type(count.module).__name__} by the values of "
                "tensors; a graph leaves it as it is. Keep the number in a buffer.",
                stacklevel=2,
            )
    return known


_INNER = {"If": "torch.cond", "Loop": "torch.while_loop"}


def _inspected(model: ir.Model, marks: Sequence[Mark]) -> Inspected:
    """Which outputs hold the values of which marks, in the order in which forward came by them."""
    outputs = [value for value in model.graph.outputs if INSPECTED in value.metadata_props]
    inner = next((node for node in model.graph if subgraphs(node)), None) if marks else None
    if inner is not None:
        warnings.warn(
            f"values inside {_INNER.get(inner.op_type, inner.op_type)} ({source_of(inner)}) are not inspected: they "
            "are computed or not, or many times; return them from it to see them",
            stacklevel=2,
        )
    numbers = {int(value.metadata_props[INSPECTED]): str(value.name) for value in outputs}
    return Inspected({numbers[number]: marks[number] for number in sorted(numbers)})


def _captured(
    model: ir.Model, output_spec: Spec, guards: Guards, specialised: list[str], constants: list[torch.Tensor],
    spec: CallSpec, state: _State, names: Names, training: bool, seconds: dict[str, float],
) -> Captured:  # fmt: skip
    roles = {str(value.name): role_of(value) for value in model.graph.inputs}
    tell_phases(f"captured {state.kind} in {'training' if training else 'evaluation'} mode", seconds)
    return Captured(
        model=model,
        input_names=list(names.inputs),
        call=spec,
        output_spec=output_spec,
        parameters={name: p for name, p in state.parameters.items() if roles.get(name) is Role.PARAMETER},
        buffers={
            name: tensor
            for name, tensor in (*state.buffers.items(), *state.parameters.items())
            if roles.get(name) is Role.BUFFER
        },
        names=state.first,
        unused=[name for name in state.parameters if name not in roles],
        training=training,
        guards=guards,
        specialised=specialised,
        constants=constants,
        seconds=seconds,
    )


class _Clock:
    """What each phase took, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"cache": 0.0, "export": 0.0, "translate": 0.0}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap for a phase."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now


class _State:
    """A module's parameters and buffers by the names they have in the graph, and that name by any of the module's.

    Its `kind` is the class of the user's own module.
    """

    def __init__(self, module: nn.Module, prefix: str) -> None:
        self.kind = type(module.get_submodule(prefix.removesuffix("."))).__name__
        parameters = list(module.named_parameters(remove_duplicate=False))
        buffers = list(module.named_buffers(remove_duplicate=False))
        taken: dict[int, str] = {}
        self.first: dict[str, str] = {}
        for name, tensor in (*parameters, *buffers):
            self.first[name] = taken.setdefault(id(tensor), name.removeprefix(prefix))
        self.parameters: dict[str, nn.Parameter] = {self.first[name]: parameter for name, parameter in parameters}
        self.buffers: dict[str, torch.Tensor] = {self.first[name]: buffer for name, buffer in buffers}


def _input_names(spec: CallSpec, wanted: Sequence[str] | None, taken: Mapping[str, str]) -> list[str]:
    own = [path for name, spec_of in spec.arguments for path in leaf_paths(spec_of, name)]
    if wanted is not None and len(wanted) != len(own):
        raise OptionError(
            f"{len(wanted)} input names for {len(own)} tensor inputs ({', '.join(own)})", way_out="name each of them"
        )
    names = list(wanted if wanted is not None else (f"{name}.input" if name in taken else name for name in own))
    if len({*names, *taken.values()}) != len(names) + len(set(taken.values())):
        raise OptionError(
            f"the input names {names} are not unique, or one is that of a parameter", way_out="rename the input"
        )
    return names


def _dynamic(dynamic: Sequence[Mapping[int, str]] | None, tensors: Sequence[torch.Tensor]) -> list[dict[int, str]]:
    if dynamic is None:
        return [{} for _ in tensors]
    if len(dynamic) != len(tensors):
        raise OptionError(
            f"dynamic describes {len(dynamic)} inputs, the call has {len(tensors)} tensors",
            way_out="give {} for an input that does not vary",
        )
    axes = [dict(wish or {}) for wish in dynamic]
    for i, (wish, tensor) in enumerate(zip(axes, tensors, strict=True)):
        for axis in wish:
            if not 0 <= axis < tensor.ndim:
                raise OptionError(f"dynamic names dimension {axis} of input {i}, which has {tensor.ndim} dimensions")
    return axes


def _enlarged(tensors: Sequence[torch.Tensor], dynamic: Sequence[Mapping[int, str]]) -> list[torch.Tensor]:
    """Samples whose varying dimensions are two at least: torch takes 0 and 1 for constants."""
    named = [(name, t.shape[axis]) for t, dims in zip(tensors, dynamic, strict=True) for axis, name in dims.items()]
    small = {name for name, size in named if size < 2}
    grown = []
    for tensor, dims in zip(tensors, dynamic, strict=True):
        # A tensor made in inference mode can be in no trace that records gradients; its copy can.
        sample = tensor.clone() if tensor.is_inference() else tensor.detach()
        for axis, name in dims.items():
            if name in small:
                shape = [*sample.shape]
                shape[axis] = 2
                first = sample.narrow(axis, 0, 1) if sample.shape[axis] else sample.new_zeros(1)
                sample = first.expand(shape).contiguous()
        grown.append(sample.requires_grad_(tensor.requires_grad))
    return grown
