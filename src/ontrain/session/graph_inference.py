"""Inference of an ONNX file on one of ontrain's own providers, behind the methods of onnxruntime's session."""

from __future__ import annotations

import functools
import itertools
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.capture.onnx_file import load_onnx
from ontrain.capture.onnx_file.read import Source, read_proto
from ontrain.errors import GraphError, InputError, OptionError, nearest
from ontrain.graph.settings import fed_settings, with_values
from ontrain.graph.subgraphs import all_nodes
from ontrain.providers import Executable, StateSpec, get_provider
from ontrain.session.failures import explained
from ontrain.session.feeds import Signature, check_feeds
from ontrain.session.plans import PLANNING, PLANS, Plan, make_plan
from ontrain.session.recent import Recent

__all__ = ["GraphSession", "ModelMetadata", "NodeArg"]

Array = np.ndarray[Any, Any]
_Key = tuple[Signature, tuple[tuple[str, bytes], ...]]
"""Shapes, and the values of inputs that say how operators work."""
_FEW = 64
"""Elements that such an input has at most: axes, sizes, pads. A larger one is data."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes one: name, type such as "tensor(float)", sizes or their names."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What the file says about itself, under onnxruntime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class GraphSession:
    """Runs a file's graph on a provider, with one plan for each combination of input shapes.

    Inputs that are axes, sizes or modes of operators are part of the combination with their values.

    Args:
        source: a path, or the file's bytes.
        provider: name of one of ontrain's providers.
        options: its options; `device`, a torch device string, is the only one.

    Raises:
        InputError: there is no such file.
        GraphError: it is no ONNX model, or is damaged.
        OptionError: an unknown option.
    """

    def __init__(self, source: Source, provider: str, options: Mapping[str, Any]) -> None:
        for key in options:
            if key != "device":
                raise OptionError(f"{provider} has no option {key!r}", way_out="the only option is 'device'")
        self._name, self._options = provider, {"device": str(options.get("device", "cpu"))}
        self._device = torch.device(self._options["device"])
        self._provider = get_provider(provider, self._options["device"])
        proto, _ = read_proto(source)
        self._metadata = _metadata(proto)
        loaded = load_onnx(proto, training_mode=False)
        self._model = loaded.model
        outputs = list(self._model.graph.outputs)
        stated = {one.name: one.type.tensor_type.elem_type for one in proto.graph.output}
        for value in outputs:
            if value.dtype is None:  # what a fed axis makes is not inferred before its value is there
                value.dtype = ir.DataType(stated[value.name or ""])
        self._inputs = [_node_arg(v) for v in self._model.graph.inputs if v.name in loaded.input_names]
        self._outputs = [_node_arg(v) for v in outputs]
        self._state = self._provider.create_state(
            [StateSpec(n, tuple(t.shape), from_torch_dtype(t.dtype), "fixed") for n, t in loaded.initial.items()]
        )
        for name, tensor in loaded.initial.items():
            self._state[name] = tensor
        self._settings = fed_settings(self._model.graph, loaded.input_names)
        self._plans: Recent[_Key, Plan[Executable]] = Recent(PLANS)
        self._seed, self._runs = _seed(self._model), itertools.count()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """See `InferenceSession.run`."""
        if run_options is not None:
            raise OptionError("run_options are onnxruntime's own", reason=f"the model runs on {self._name}")
        feeds = {name: torch.as_tensor(np.asarray(value), device=self._device) for name, value in input_feed.items()}
        signature = check_feeds(self._model.graph, feeds, self._device)
        values = {name: np.asarray(input_feed[name]) for name in self._settings}
        values = {name: value for name, value in values.items() if value.size <= _FEW}
        key = signature, tuple((name, value.tobytes()) for name, value in values.items())
        plan = self._plans.look(key)
        if plan is None:
            with PLANNING:
                plan = self._plans.look(key) or self._plans.put(key, self._make(signature, values))
        with explained(self._model.graph, feeds, self._name, "a run"):
            found = plan.executable.run(feeds, rng=(self._seed, next(self._runs)))
        names = [o.name for o in self._outputs] if output_names is None else output_names
        return [_array(found[name]) for name in names]

    def _make(self, signature: Signature, values: Mapping[str, Array]) -> Plan[Executable]:
        model = with_values(self._model, values) if values else self._model
        return make_plan(model, signature, functools.partial(self._provider.compile, state=self._state))

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

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}: the model runs on ontrain's {self.__dict__.get('_name')}; "
            "onnxruntime's own providers have all of its methods"
        )


def _seed(model: ir.Model) -> int:
    """Where random numbers begin: at the seeds that operators state, if any does, else at one of the system's."""
    stated = [node.attributes["seed"].value for node in all_nodes(model.graph) if "seed" in node.attributes]
    return zlib.crc32(repr(stated).encode()) if stated else secrets.randbits(32)


def _metadata(proto: onnx.ModelProto) -> ModelMetadata:
    custom = {entry.key: entry.value for entry in proto.metadata_props}
    return ModelMetadata(
        proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.graph.doc_string,
        proto.model_version, custom,
    )  # fmt: skip


def _node_arg(value: ir.Value) -> NodeArg:
    assert value.name is not None
    if value.dtype is None:
        raise GraphError(
            f"the element type of {value.name!r} is not known",
            reason="it is no tensor, or an operator that makes it has no inference of types",
            way_out="use onnxruntime's own provider, CPUExecutionProvider",
        )
    dims = [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return NodeArg(value.name, f"tensor({value.dtype.name.lower()})", dims)


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def check_names(given: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raise InputError for a name that the model does not have."""
    for name in given:
        if name not in known:
            raise InputError(f"the model has no {what} {name!r}", way_out=f"nearest: {nearest(name, known)}")
