"""Inference of an ONNX file on one of ontrain's own providers, behind the methods of onnxruntime's session."""

from __future__ import annotations

import functools
import itertools
import secrets
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.autodiff import asks_for_derivatives, with_derivatives
from ontrain.capture import NARROW, FiledModel, load_filed, to_array
from ontrain.errors import GraphError, OptionError, ProviderError
from ontrain.files import Source, infers_rank, read_proto, with_types
from ontrain.graph import StateKind, UntypedError, all_nodes, describe, fed_settings, source_of, with_values
from ontrain.inference.optimisation import Optimisation, counted
from ontrain.inference.short_ways import ShortWays
from ontrain.inference.sized import SizedGraph, Switches
from ontrain.inference.small_models import SmallModel
from ontrain.inference.stepwise import Engine, Following, StepwiseGraph, is_numeric, lacks, may_need_steps
from ontrain.inference.stepwise.values import Value
from ontrain.inference.timeline import run_plan
from ontrain.limits import TooLargeError
from ontrain.locks import Lock
from ontrain.passes import Journal, Padding, PassReport, Serving, serve
from ontrain.providers import Executable, StateSpec, get_provider
from ontrain.session import FILE, PLANS, Plan, Planner, Recent, Signature, Structure, check_feeds, explained

__all__ = ["GraphSession", "ModelMetadata", "NodeArg", "node_arg_of"]

Array = np.ndarray[Any, Any]
_SERVING = ("TorchExecutionProvider",)
"""Providers for which formulas of attention become one operator, and that leave out rows of padding."""
_FEW = 64
"""Elements that such an input has at most: axes, sizes, pads. A larger one is data."""

_Kinds = Hashable | None
"""Names, dtypes, sizes and devices of a batch; None where something of it is no tensor."""
_NO_VERSION = 2**63 - 1
"""What onnxruntime tells of a file that states no version of its model."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes one: name, type such as "tensor(float)", sizes or their names."""

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        """Return what onnxruntime's writes."""
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


@dataclass
class ModelMetadata:
    """What the file says about itself, under onnxruntime's names; like onnxruntime's, it may be written to."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class GraphSession:
    """Runs a file's graph on a provider, with one plan for each combination of input shapes.

    Inputs that are axes, sizes or modes of operators are part of the combination with their values. A graph that no
    plan holds whole runs by regions and steps; see `ontrain.inference.stepwise`.

    Attributes:
        device: where feeds and results are.

    Args:
        source: a path, the file's bytes, or a message.
        provider: name of one of ontrain's providers.
        options: its options: `device`, a torch device string; and on `TorchExecutionProvider` `padding`, which says
            what outputs hold for padding, see `ontrain.passes.serving.Serving`.
        evaluates: whether what the provider lacks is run by onnx's evaluator, node by node.
        following: the next provider of a list, which runs what this one lacks.
        optimisation: which passes run over the graph; by default all.

    Raises:
        InputError: there is no such file.
        GraphError: it is no ONNX model, or is damaged.
        OptionError: an unknown option.
    """

    def __init__(
        self, source: Source, provider: str, options: Mapping[str, object], *, evaluates: bool = True,
        following: Following | None = None, optimisation: Optimisation | None = None,
    ) -> None:  # fmt: skip
        self._name, self._options = provider, _checked(provider, options)
        self.device = torch.device(self._options["device"])
        self._optimisation, self._reports = optimisation or Optimisation(), list[PassReport]()
        joins = {} if self._optimisation.level or provider not in _SERVING else {"join": False}
        self._provider = get_provider(provider, self._options["device"], joins)
        proto, _ = read_proto(source)
        self._metadata = _metadata(proto)
        filed = load_filed(proto, foreign=following is not None)
        self._evaluates, self._following, self._switching = evaluates, following, Lock()
        of_numbers = all(map(_is_of_numbers, proto.graph.output))
        model = _typed(filed) if of_numbers and not self._lacks_any(filed) else None
        if model is not None and not _infers_numbers(model.graph, proto.graph):
            model = None
        if model is None or asks_for_derivatives(model.graph):
            self._optimisation.copy(proto)
        else:
            filed, model, self._reports = self._optimisation.load(filed, model)
        self._filed = filed
        self._state = self._provider.create_state(
            [
                StateSpec(n, tuple(t.shape), from_torch_dtype(t.dtype), StateKind.CONSTANT)
                for n, t in filed.initial.items()
            ]
        )
        for name, tensor in filed.initial.items():
            self._state[name] = tensor
        filed.initial.clear()
        self._seed, self._runs = _seed(filed.raw), itertools.count()
        self._stepwise: StepwiseGraph | None = None
        self._narrow: dict[str, ir.DataType] = {}
        self._inner_names: dict[str, str] = {}
        fed = [value for value in proto.graph.input if value.name in filed.input_names]
        self._structures: Recent[Hashable, Structure] = Recent(PLANS)
        self._signatures: Recent[Hashable, Signature] = Recent(PLANS)
        derives = asks_for_derivatives((filed.raw if model is None else model).graph)
        self._build = _with_derivatives if derives else None
        how = Serving(padding=self._options.get("padding", "computed")) if provider in _SERVING else None
        serving = how if self._build is None else None
        compiler = functools.partial(self._provider.compile, state=self._state)
        self._planner: Planner[Executable] = Planner(
            self._provider, compiler, self.device, counts_rows=serving is not None
        )
        self._sized: SizedGraph | None = None
        self._latest: tuple[_Kinds, Plan[Executable], bool] | None = None
        """What the batch of the last plan is like, that plan, and whether it is of the graph as it was filed."""
        capabilities = self._provider.capabilities
        whole = capabilities.joins and self._options.get("padding", "computed") == "computed"
        self._short = ShortWays(capabilities.at_once, SmallModel.of(proto) if whole else None)
        if model is None:
            self._inputs, self._outputs = ([node_arg_of(v) for v in values] for values in (fed, with_types(proto)))
            self._stepwise = self._in_steps()
            numbers = of_numbers and all(
                isinstance(v.type, ir.TensorType) and is_numeric(v) for v in filed.raw.graph.inputs
            )
            if numbers and not derives and not self._lacks_any(filed):
                off = self._optimisation.off()
                self._sized = SizedGraph(filed.raw, filed.input_names, self._planner, off, serving)
            return
        self._model = model
        outputs = list(self._model.graph.outputs)
        stated = {output.name: output.type.tensor_type.elem_type for output in proto.graph.output}
        for value in outputs:
            if value.dtype is None:  # what a fed axis makes is not inferred before its value is there
                value.dtype = _element_type(stated[value.name or ""])
        names = {o.name: v.name or "" for v, o in zip(outputs, proto.graph.output, strict=True)}
        self._inner_names = names if any(told != inner for told, inner in names.items()) else {}
        self._narrow = {o.name: v.dtype for v, o in zip(outputs, proto.graph.output, strict=True)
                        if v.dtype is not None and v.dtype in NARROW}  # fmt: skip
        inputs = [_node_arg(v) for v in self._model.graph.inputs if v.name in filed.input_names]
        self._inputs = [node_arg_of(v) for v in fed]
        dims = _dims_of_the_file(inputs, self._inputs)
        changed = any(counted(self._reports).values())
        self._outputs = [
            _stated(v, o, dims, proto, changed=changed) for v, o in zip(outputs, proto.graph.output, strict=True)
        ]
        self._settings = fed_settings(self._model.graph, filed.input_names)
        switches = Switches(self._model.graph, filed.input_names)
        self._switches = switches if switches.names else None
        if serving is not None:
            serve(self._model, serving)

    def compute(self, output_names: Sequence[str] | None, feeds: Mapping[str, Value]) -> list[Value]:
        """Run the graph.

        Args:
            output_names: outputs wanted, None for all.
            feeds: all inputs by name, on the device.

        Returns:
            One tensor per output, in memory that no later run writes to; the evaluator of onnx gives arrays, and so are
            numbers of fewer than eight bits, and strings. A list for a sequence, None for an optional value that is
            empty.

        Raises:
            InputError: an input does not fit.
            ProviderError: the model cannot be planned, or fails while it runs.
        """
        kinds, latest = _kinds(feeds), self._latest
        if latest is not None and latest[0] == kinds:
            plan: Plan[Executable] | None
            _, plan, whole = latest
        else:
            whole = self._stepwise is None
            plan = self._planned(feeds, kinds) if whole else self._once_sized(feeds, kinds)
        outputs: dict[str, Value]
        if plan is None:
            assert self._stepwise is not None
            outputs = self._stepwise.run(feeds)
        else:
            with explained(self._filed.raw.graph, feeds, self._name, "a run"):
                outputs = run_plan(plan.executable, feeds, (self._seed, next(self._runs)))
            if whole and self._inner_names:
                outputs = {name: outputs[inner] for name, inner in self._inner_names.items()}
        names = [o.name for o in self._outputs] if output_names is None else output_names
        if not self._narrow:
            return [outputs[name] for name in names]
        return [self._result(name, outputs[name]) for name in names]

    def at_once(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array] | None:
        """Run from arrays to arrays; None where there is no such way for the feeds."""
        return self._short.run(output_names, feeds)

    def compare(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], results: Sequence[Any]) -> None:
        """Let a small model's results be compared with these."""
        self._short.compare(output_names, feeds, results)

    def _settle(self, kinds: _Kinds, plan: Plan[Executable], *, whole: bool) -> None:
        """Keep a plan at hand for the batches that are like the last one."""
        self._latest = kinds, plan, whole
        if not self._narrow:
            self._short.settle(plan.executable, [o.name for o in self._outputs], self._inner_names if whole else {})

    def _result(self, name: str, result: Any) -> Any:
        """A result; one of numbers of a few bits, which torch has no dtype for, as an array."""
        dtype = self._narrow.get(name)
        return result if dtype is None or not isinstance(result, torch.Tensor) else to_array(result, dtype)

    def _planned(self, feeds: Mapping[str, torch.Tensor], kinds: _Kinds) -> Plan[Executable] | None:
        """The plan of the graph; None where no plan holds it whole, and it runs in steps from now on."""
        signature = self._signature(feeds, kinds)
        values = {name: to_array(feeds[name]) for name in self._settings if feeds[name].numel() <= _FEW}
        if self._switches is not None:
            values.update(self._switches.of(feeds) or {})
        try:
            structure = self._structure(values)
            plan = self._planner.plan(structure, signature, feeds)
            of_sizes = not self._settings and self._switches is None
            if kinds is not None and of_sizes and self._planner.is_settled(structure, signature):
                self._settle(kinds, plan, whole=True)
            return plan
        except TooLargeError:
            raise
        except (GraphError, ProviderError):
            with self._switching:
                if self._stepwise is None:
                    self._stepwise = self._in_steps()
            return None

    def _once_sized(self, feeds: Mapping[str, Value], kinds: _Kinds) -> Plan[Executable] | None:
        """The plan of a graph that has types once sizes are known; None where it runs in steps."""
        if self._sized is None:
            return None
        tensors = {name: fed for name, fed in feeds.items() if isinstance(fed, torch.Tensor)}
        if len(tensors) < len(feeds):
            return None
        signature = self._signature(tensors, kinds)
        plan = self._sized.plan(signature, tensors)
        if plan is not None and kinds is not None and self._sized.is_settled(signature):
            self._settle(kinds, plan, whole=False)
        return plan

    def _signature(self, feeds: Mapping[str, torch.Tensor], kinds: _Kinds) -> Signature:
        """What `check_feeds` says of feeds; of dtypes, devices and shapes that came before it is known."""
        signature = None if kinds is None else self._signatures.look(kinds)
        if signature is None:
            signature = check_feeds(self._filed.raw.graph, feeds, self.device, FILE)
            if kinds is not None:
                self._signatures.put(kinds, signature)
        return signature

    def _in_steps(self) -> StepwiseGraph:
        inputs = self._filed.raw.graph.inputs
        weights = {value: value.name or "" for value in inputs if value.name not in self._filed.input_names}
        engine = Engine(
            self._provider, self._state, weights, self.device, self._seed, evaluates=self._evaluates,
            following=self._following,
        )  # fmt: skip
        return StepwiseGraph(self._filed, engine)

    def _lacks_any(self, filed: FiledModel) -> bool:
        """Whether the next provider of the list is to run a part of the graph."""
        if self._following is None:
            return False
        lacking = [node for node in all_nodes(filed.raw.graph) if lacks(self._provider, node)]
        for node in lacking:
            if node.domain and not self._following.knows(node.domain, node.op_type):
                raise GraphError(
                    f"operator {node.domain}.{node.op_type} is unknown", node=describe(node), source=source_of(node),
                    reason=f"neither {self._name} nor {self._following.name} has it",
                    way_out="register the operator with @ontrain.op, or its library with register_custom_ops_library",
                )  # fmt: skip
        return bool(lacking)

    def optimisations(self) -> dict[str, int]:
        """Return how many places each pass changed: in the file, and in the plan in which it changed most."""
        most = dict[str, int]()
        for plan in self._planner.plans.values() if self._stepwise is None else ():
            for name, count in counted(plan.passes).items():
                most[name] = max(count, most.get(name, 0))
        loading = counted(self._reports)
        return {name: loading.get(name, 0) + most.get(name, 0) for name in (*loading, *most)}

    def assignment(self) -> list[tuple[str, list[ir.Node]]] | None:
        """Return which provider runs which nodes; None where the one runs all."""
        if self._stepwise is None or self._following is None:
            return None
        names = {False: self._name, True: self._following.name}
        return [(names[elsewhere], nodes) for elsewhere, nodes in self._stepwise.assignment()]

    def _structure(self, values: Mapping[str, Array]) -> Structure:
        """What is computed for these values of inputs that say how operators work."""
        key = tuple((name, value.tobytes()) for name, value in values.items())
        structure = self._structures.look(key)
        if structure is None:
            model = with_values(self._model, values) if values else self._model
            structure = Structure(
                key=key,
                forward_key=key,
                model=model,
                build=self._build,
                journal=functools.partial(Journal, "eval", self._optimisation.off()),
            )
            self._structures.put(key, structure)
        return structure

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs in the file's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs in the file's order."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """Return the provider's name in a list."""
        return [self._name]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options by the provider's name."""
        return {self._name: dict(self._options)}

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the file says about itself."""
        return self._metadata


def _kinds(feeds: Mapping[str, Value]) -> _Kinds:
    """What of a batch is seen without its numbers."""
    try:
        return tuple(feeds), tuple([(tensor.dtype, tensor.shape, tensor.device) for tensor in feeds.values()])
    except AttributeError:
        return None


def _checked(provider: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options of a provider, the device among them."""
    known = ["device", "padding"] if provider in _SERVING else ["device"]
    for key in options:
        if key not in known:
            told = "its options are" if len(known) > 1 else "the only option is"
            raise OptionError(f"{provider} has no option {key!r}", way_out=f"{told} {' and '.join(map(repr, known))}")
    chosen = {"device": "cpu", **{key: str(value) for key, value in options.items()}}
    if "padding" in chosen and chosen["padding"] not in get_args(Padding):
        raise OptionError(
            f"padding is {chosen['padding']!r}", way_out=f"choose one of {', '.join(map(repr, get_args(Padding)))}"
        )
    return chosen


def _typed(filed: FiledModel) -> ir.Model | None:
    """The graph with all types, None where these depend on what is fed."""
    graph = filed.raw.graph
    if not all(isinstance(v.type, ir.TensorType) and v.shape is not None and is_numeric(v) for v in graph.inputs):
        return None
    try:
        return filed.typed()
    except GraphError as error:
        if isinstance(error, UntypedError) or may_need_steps(graph):
            return None
        raise


def _is_of_numbers(value: onnx.ValueInfoProto) -> bool:
    """Whether an output is stated to be a tensor of numbers, or to be nothing, so that its type is inferred."""
    if value.type.WhichOneof("value") is None:
        return True
    return value.type.HasField("tensor_type") and value.type.tensor_type.elem_type != onnx.TensorProto.STRING


def _infers_numbers(graph: ir.Graph, stated: onnx.GraphProto) -> bool:
    """Whether outputs to which the file gives no type are tensors of numbers."""
    untyped = {output.name for output in stated.output if output.type.WhichOneof("value") is None}
    return all(isinstance(v.type, ir.TensorType) and is_numeric(v) for v in graph.outputs if v.name in untyped)


def _with_derivatives(journal: Journal, graph: ir.Model) -> ir.Model:
    return with_derivatives(graph)


def _seed(model: ir.Model) -> int:
    """Where random numbers begin: at the seeds that operators state, if any does, else at one of the system's."""
    stated = [node.attributes["seed"].value for node in all_nodes(model.graph) if "seed" in node.attributes]
    return zlib.crc32(repr(stated).encode()) if stated else secrets.randbits(32)


def _metadata(proto: onnx.ModelProto) -> ModelMetadata:
    custom = {entry.key: entry.value for entry in proto.metadata_props}
    version = proto.model_version if proto.HasField("model_version") else _NO_VERSION
    return ModelMetadata(
        proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.graph.doc_string, version, custom,
    )  # fmt: skip


def _node_arg(value: ir.Value) -> NodeArg:
    assert value.name is not None and value.dtype is not None
    dims = [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return NodeArg(value.name, f"tensor({value.dtype.name.lower()})", dims)


def _dims_of_the_file(inputs: Sequence[NodeArg], stated: Sequence[NodeArg]) -> dict[int | str | None, str | None]:
    """By the names that sizes got while the file was loaded, what the file has in their place."""
    pairs = [
        pair for own, told in zip(inputs, stated, strict=True) for pair in zip(own.shape, told.shape, strict=False)
    ]
    return {own: dim for own, dim in pairs if own != dim and not isinstance(dim, int)}


def _stated(
    value: ir.Value, output: onnx.ValueInfoProto, dims: Mapping[int | str | None, str | None], proto: onnx.ModelProto,
    *, changed: bool,
) -> NodeArg:  # fmt: skip
    """An output under the names of its sizes in the file; numbers that follow from the graph stand in for names.

    As in onnxruntime, where the file contradicts the graph, neither is told: not the sizes where their number differs,
    and no size that the two have different. A contradiction that onnxruntime does not see is told as the file has it.
    Where optimisation changed the graph, onnxruntime has inferred the sizes anew, and what the file says is forgotten.
    """
    inferred, stated = _node_arg(value), node_arg_of(output).shape
    own = stated if value.shape is None else [dims.get(dim, dim) for dim in inferred.shape]
    if output.type.tensor_type.HasField("shape"):
        clash = _clash(own, stated)
        if clash is not None and not infers_rank(proto, output.name):
            own, clash = stated, None
        if clash is None:
            own = [_told(size, dim) for size, dim in zip(own, stated, strict=True)]
        elif not changed:
            pairs = [] if len(own) != len(stated) else zip(own, stated, strict=True)
            own = [_agreed(size, dim, at < clash) for at, (size, dim) in enumerate(pairs)]
    return NodeArg(output.name, inferred.type, own)


def _clash(sizes: Sequence[int | str | None], stated: Sequence[int | str | None]) -> int | None:
    """The first place at which the file states another number than follows from the graph; 0 for another rank."""
    if len(sizes) != len(stated):
        return 0
    pairs = enumerate(zip(sizes, stated, strict=True))
    return next((at for at, pair in pairs if all(isinstance(n, int) for n in pair) and pair[0] != pair[1]), None)


def _agreed(size: int | str | None, stated: int | str | None, is_merged: bool) -> int | str | None:
    """What is left of a size where others clash: those before the clash have been merged."""
    return size if size == (_told(size, stated) if is_merged else stated) else None


def _told(size: int | str | None, stated: int | str | None) -> int | str | None:
    """What is told of a size that follows from the graph, and of which the file states a number, a name or nothing."""
    return size if isinstance(size, int) or stated is None else stated


def node_arg_of(value: onnx.ValueInfoProto) -> NodeArg:
    """Return the description of an input or output of the file."""
    kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
    dims: list[int | str | None] = [
        (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else dim.dim_param or None
        for dim in kind.tensor_type.shape.dim
    ]
    return NodeArg(value.name, _type_text(value.type), dims)


def _type_text(kind: onnx.TypeProto) -> str:
    """A type as onnxruntime writes it."""
    if kind.HasField("sequence_type"):
        return f"seq({_type_text(kind.sequence_type.elem_type)})"
    if kind.HasField("optional_type"):
        return f"optional({_type_text(kind.optional_type.elem_type)})"
    if kind.HasField("map_type"):
        key = _element_type(kind.map_type.key_type).name.lower()
        return f"map({key},{_type_text(kind.map_type.value_type)})"
    return f"tensor({_element_type(kind.tensor_type.elem_type).name.lower()})"


def _element_type(number: int) -> ir.DataType:
    try:
        return ir.DataType(number)
    except ValueError as error:
        raise GraphError(f"there is no element type {number}", reason="the file is damaged") from error
