"""Inference of an ONNX file on one of ontrain's own providers, behind the methods of onnxruntime's session."""

from __future__ import annotations

import functools
import itertools
import secrets
import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.autodiff import asks_for_derivatives
from ontrain.capture import NARROW, FiledModel, load_filed, to_array
from ontrain.errors import GraphError, OptionError, ProviderError
from ontrain.files import Source, read_proto, with_types
from ontrain.graph import StateKind, all_nodes, describe, source_of
from ontrain.inference.descriptions import ModelMetadata, NodeArg, element_type, metadata_of, node_arg_of, output_args
from ontrain.inference.optimisation import Optimisation, counted
from ontrain.inference.short_ways import ShortWays
from ontrain.inference.sized import SizedGraph
from ontrain.inference.small_models import SmallModel
from ontrain.inference.stepwise import Engine, Following, StepwiseGraph, lacks
from ontrain.inference.stepwise.values import Value
from ontrain.inference.timeline import run_plan
from ontrain.inference.typed_graph import states_numbers, takes_numbers, typed_graph
from ontrain.inference.whole_graph import WholeGraph
from ontrain.limits import TooLargeError
from ontrain.locks import Lock
from ontrain.passes import Padding, PassReport, Serving
from ontrain.providers import Executable, ExecutionProvider, State, StateSpec, get_provider
from ontrain.session import FILE, PLANS, Plan, Planner, Recent, Signature, check_feeds, explained

__all__ = ["GraphSession"]

Array = np.ndarray[Any, Any]
_SERVING = ("TorchExecutionProvider",)
"""Providers for which formulas of attention become one operator, and that leave out rows of padding."""
_Kinds = Hashable | None
"""Names, dtypes, sizes and devices of a batch; None where something of it is no tensor."""


class GraphSession:
    """Runs a file's graph on a provider, with one plan for each combination of input shapes.

    Inputs that are axes, sizes or modes of operators are part of the combination with their values. A graph that no
    plan holds whole runs by regions and steps; see `ontrain.inference.stepwise`.

    Attributes:
        device: where feeds and results are.
        may_hand_over: whether onnxruntime may run the whole model in the provider's place.

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
        proto, _ = read_proto(source, leaves=not self._optimisation.path)
        self._metadata = metadata_of(proto)
        filed = load_filed(proto, foreign=following is not None)
        self._evaluates, self._following, self._switching = evaluates, following, Lock()
        of_numbers = states_numbers(proto)
        model = typed_graph(filed, proto) if of_numbers and not self._lacks_any(filed) else None
        if model is None or asks_for_derivatives(model.graph):
            self._optimisation.copy(proto)
        else:
            filed, model, self._reports = self._optimisation.load(filed, model)
        self._filed = filed
        self._state = _loaded(self._provider, filed)
        self._seed, self._runs = _seed(filed.raw), itertools.count()
        self._signatures: Recent[Hashable, Signature] = Recent(PLANS)
        self._latest: tuple[_Kinds, Plan[Executable], bool] | None = None
        """What the batch of the last plan is like, that plan, and whether it is of the graph as it was filed."""
        derives = asks_for_derivatives((filed.raw if model is None else model).graph)
        padding = self._options.get("padding", "computed")
        serving = Serving(padding=padding) if provider in _SERVING and not derives else None
        compiler = functools.partial(self._provider.compile, state=self._state)
        self._planner = Planner(self._provider, compiler, self.device, counts_rows=serving is not None)
        capabilities = self._provider.capabilities
        self.may_hand_over = capabilities.joins and padding == "computed"
        self._short = ShortWays(capabilities.at_once, SmallModel.of(proto) if self.may_hand_over else None)
        fed = [value for value in proto.graph.input if value.name in filed.input_names]
        self._inputs = [node_arg_of(value) for value in fed]
        self._narrow: dict[str, ir.DataType] = {}
        self._inner_names: dict[str, str] = {}
        self._whole: WholeGraph | None = None
        self._sized: SizedGraph | None = None
        self._stepwise: StepwiseGraph | None = None
        if model is not None:
            self._name_outputs(model, proto)
            self._whole = WholeGraph(model, filed.input_names, self._planner, self._optimisation.off, serving)
            return
        self._outputs = [node_arg_of(value) for value in with_types(proto)]
        self._stepwise = self._in_steps()
        if of_numbers and takes_numbers(filed.raw.graph) and not derives and not self._lacks_any(filed):
            off = self._optimisation.off()
            self._sized = SizedGraph(filed.raw, filed.input_names, self._planner, off, serving)

    def _name_outputs(self, model: ir.Model, proto: onnx.ModelProto) -> None:
        """Note what outputs are called and hold: in the file, in the typed graph, and for whoever asks."""
        outputs = list(zip(model.graph.outputs, proto.graph.output, strict=True))
        for value, output in outputs:
            if value.dtype is None:  # what a fed axis makes is not inferred before its value is there
                value.dtype = element_type(output.type.tensor_type.elem_type)
        names = {output.name: value.name or "" for value, output in outputs}
        self._inner_names = names if any(told != inner for told, inner in names.items()) else {}
        self._narrow = {
            output.name: value.dtype for value, output in outputs
            if value.dtype is not None and value.dtype in NARROW
        }  # fmt: skip
        changed = any(counted(self._reports).values())
        self._outputs = output_args(model, proto, self._filed.input_names, changed=changed)

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
        assert self._whole is not None
        signature = self._signature(feeds, kinds)
        try:
            plan = self._whole.plan(signature, feeds)
        except TooLargeError:
            raise
        except (GraphError, ProviderError):
            with self._switching:
                if self._stepwise is None:
                    self._stepwise = self._in_steps()
            return None
        if kinds is not None and self._whole.is_settled(signature):
            self._settle(kinds, plan, whole=True)
        return plan

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


def _loaded(provider: ExecutionProvider, filed: FiledModel) -> State:
    """A file's weights in the provider's memory; the file's own bytes go as soon as they are copied."""
    initial = filed.initial
    state = provider.create_state(
        [StateSpec(n, tuple(t.shape), from_torch_dtype(t.dtype), StateKind.CONSTANT) for n, t in initial.items()]
    )
    for name in [*initial]:
        state[name] = initial.pop(name)
    return state


def _seed(model: ir.Model) -> int:
    """Where random numbers begin: at the seeds that operators state, if any does, else at one of the system's."""
    stated = [node.attributes["seed"].value for node in all_nodes(model.graph) if "seed" in node.attributes]
    return zlib.crc32(repr(stated).encode()) if stated else secrets.randbits(32)
