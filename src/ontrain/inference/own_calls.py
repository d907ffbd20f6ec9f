"""The calls of onnxruntime's sessions on one of ontrain's providers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ontrain.capture import to_array
from ontrain.errors import GraphError, InputError, OntrainError, OptionError, ProviderError, nearest
from ontrain.files import read_proto
from ontrain.inference.adapters import adapted, say_without_adapters
from ontrain.inference.arguments import check_arguments, heed_run
from ontrain.inference.binding import OwnBinding
from ontrain.inference.fed_tensors import fed_input, fed_tensor
from ontrain.inference.graph_inference import GraphSession, ModelMetadata, NodeArg, node_arg_of
from ontrain.inference.inner_values import exposed, overridable, told_apart
from ontrain.inference.optimisation import Optimisation
from ontrain.inference.options import (
    DISABLED,
    EXTERNAL_FOLDER,
    EXTERNAL_LEAST,
    EXTERNAL_NAME,
    SessionOptions,
    config_entry,
    say_once,
)  # fmt: skip
from ontrain.inference.ort_format import as_onnx, check_stated_format, is_ort_format
from ontrain.inference.shared_values import array_of, copied_value, numbers, shared_value
from ontrain.inference.stated_shapes import STRICT, check_stated_shapes
from ontrain.inference.stepwise import Following
from ontrain.inference.trace import Trace
from ontrain.inference.upstream_errors import also, upstream
from ontrain.inference.written import check_places
from ontrain.rounds import StoppedError, stop_if_asked, stopped_by
from ontrain.session import MixedSizesError
from ontrain.stock import stock

__all__ = ["AssignedNode", "AssignedSubgraph", "OwnSession"]

_MEANINGLESS = (
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "inter_op_num_threads", "intra_op_num_threads", "use_deterministic_compute", "use_per_session_threads",
)  # fmt: skip
"""Settings of a session that only onnxruntime's providers follow."""
_RECORDS = "session.record_ep_graph_assignment_info"
_HEEDED = (
    _RECORDS, "session.disable_cpu_ep_fallback", "session.load_model_format", "session.save_model_format",
    DISABLED, EXTERNAL_FOLDER, EXTERNAL_LEAST, EXTERNAL_NAME, STRICT,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class AssignedNode:
    """A node of the file, under onnxruntime's names."""

    name: str
    domain: str
    op_type: str


@dataclasses.dataclass(frozen=True)
class AssignedSubgraph:
    """Nodes that a provider runs one after another."""

    ep_name: str
    nodes: tuple[AssignedNode, ...]

    def get_nodes(self) -> list[AssignedNode]:
        """Return the nodes in the file's order."""
        return list(self.nodes)


class OwnSession:
    """A model on one of ontrain's providers, with the methods of onnxruntime's sessions.

    Args:
        source: a path, or the file's bytes.
        provider: name of one of ontrain's providers.
        provider_options: its options.
        options: `ontrain.SessionOptions`, or onnxruntime's.
        evaluates: whether operators that the provider lacks are run by onnx's evaluator; not where another provider
            may have them.
        following: onnxruntime's provider that follows in the list, which runs what the provider lacks.
        disabled_optimizers: names of passes, or of onnxruntime's optimisers, that are left out.

    Raises:
        GraphError: it is no ONNX model, or holds what ontrain does not know.
        OptionError: an unknown option, or a library of custom operators.
    """

    def __init__(
        self, source: str | bytes, provider: str, provider_options: Mapping[str, object], options: Any = None, *,
        evaluates: bool = True, following: Following | None = None, disabled_optimizers: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self._evaluates, self._following = evaluates, following
        self._optimisation = Optimisation.of(options, disabled_optimizers)
        self._trace = Trace(options, provider)
        self._provider, self._provider_options = provider, dict(provider_options)
        self._source, self._options = source, options if options is not None else SessionOptions()
        _heed(options, provider, following)
        check_places(options)
        _check_wanted(options)
        with self._trace.event("model_loading"), _loading():
            check_stated_format(self._source, options)
            proto = self.proto()
            check_stated_shapes(proto, options)
        _check_wanted(options)
        with self._trace.event("session_initialization"), _loading():
            self._session = self._opened(proto, self._optimisation)
        _check_wanted(options)
        self._nodes = tuple(AssignedNode(node.name, node.domain, node.op_type) for node in proto.graph.node)
        self._overridable = [node_arg_of(value) for value in overridable(proto)]
        self._kinds = {known.name: known.type for known in (*self.get_inputs(), *self._overridable)}
        self._names = {value.name for value in self.get_inputs()}
        self._optional = [value.name for value in self.get_inputs() if value.type.startswith("optional(")]
        self._known_outputs = {value.name for value in self.get_outputs()}
        self._fed_weights: dict[frozenset[str], GraphSession] = {}
        self._apart: dict[GraphSession, GraphSession] = {}
        """By session another one of the same model, in which no two sizes have one name."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles, as onnxruntime's sessions do."""
        raise TypeError("a session cannot be pickled or copied: make one in each process, of the model's path or bytes")

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """See `InferenceSession.run`."""
        results = self._run(output_names, adapted(input_feed, run_options), run_options)
        return [self.array(result) for result in results]

    def run_tensors(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[torch.Tensor]:
        """See `InferenceSession.run_tensors`."""
        return [self._as_tensor(result) for result in self._run(output_names, input_feed, None)]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run on `OrtValue`s, and return `OrtValue`s that share the memory of the results."""
        results = self._run(output_names, adapted(input_dict_ort_values, run_options), run_options)
        return [self.ort_value(result) for result in results]

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Run on what is bound."""
        if not isinstance(iobinding, OwnBinding):
            raise also(
                InputError(f"the binding is a {type(iobinding).__name__}", way_out="take session.io_binding()"),
                AttributeError,
            )
        if iobinding._calls is not self:
            raise also(
                InputError("the binding is of another session", way_out="take session.io_binding()"), RuntimeError
            )
        try:
            self._run_bound(iobinding, run_options)
        except OntrainError as error:  # whatever happens in such a run, onnxruntime calls a RuntimeError
            raise also(error, RuntimeError) from error

    def _run_bound(self, iobinding: OwnBinding, run_options: Any) -> None:
        names = list(iobinding.outputs)
        if not names:
            raise also(InputError("no output is bound", way_out="call bind_output"), upstream("InvalidArgument"))
        say_without_adapters("run_with_iobinding", run_options)
        results = self._run(names, iobinding.inputs, run_options)
        for at, (name, value) in enumerate(zip(names, results, strict=True)):
            memory = iobinding.outputs[name]
            if memory is None:
                continue
            result = self._as_tensor(value)
            if memory.shape != result.shape or memory.dtype != result.dtype:
                raise also(
                    InputError(
                        f"output {name!r} is {result.dtype} {list(result.shape)}",
                        reason=f"it is bound to memory of {memory.dtype} {list(memory.shape)}",
                    ),
                    upstream("InvalidArgument"),
                )
            memory.copy_(result)
            results[at] = memory
        iobinding.results = results

    def run_with_ortvaluevector(
        self, run_options: Any, feed_names: Sequence[str], feeds: Any, fetch_names: Sequence[str], fetches: Any,
        fetch_devices: Sequence[Any],
    ) -> None:  # fmt: skip
        """Run on onnxruntime's vectors of values: the results are appended to `fetches`, on the provider's device."""
        value = stock().OrtValue
        inputs = dict(zip(feed_names, map(value, feeds), strict=False))
        for result in self.run_with_ort_values(fetch_names, inputs, run_options):
            fetches.push_back(result._ortvalue)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run in a thread, and call `callback(results, user_data, error)` there; the error is "" for none."""
        say_without_adapters("run_async", run_options)
        check_arguments(output_names, input_feed, run_options)
        self._check_missing(input_feed)
        # What is no value at all is told the caller, what does not fit the callback, as in onnxruntime.
        feeds = {
            name: self.value(name, value) if value is not None and name in self._kinds else value
            for name, value in input_feed.items()
        }

        def work() -> None:
            try:
                results, told = list(map(self.array, self._run(output_names, feeds, run_options))), ""
            except Exception as error:  # noqa: BLE001 (whoever waits for the call has to be told)
                results, told = [], str(error)
            callback(results, user_data, told)

        threading.Thread(target=work, daemon=True).start()

    def _run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any
    ) -> list[torch.Tensor]:
        self._check(output_names, feeds, run_options)
        if run_options is None:
            return self._traced(output_names, feeds)
        heed_run(run_options, self._provider)
        with stopped_by(lambda: bool(run_options.terminate)):
            try:
                stop_if_asked()
                return self._traced(output_names, feeds)
            except StoppedError as error:
                raise also(error, upstream("Fail")) from error

    def _traced(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        session = self._for(feeds) if self._overridable else self._session
        if self._trace.records:
            with self._trace.run():
                return self._computed(session, output_names, feeds)
        return self._computed(session, output_names, feeds)

    def _computed(
        self, session: GraphSession, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
    ) -> list[Any]:
        try:
            values = {name: self.value(name, value) for name, value in feeds.items()}
            for name in self._optional:
                values.setdefault(name, None)
            names = list(output_names) if output_names else None
            try:
                return self._apart.get(session, session).compute(names, values)
            except MixedSizesError as error:
                return self._computed_apart(session, names, values, error)
        except StoppedError:
            raise
        except (InputError, GraphError, ProviderError) as error:
            raise _of_a_run(error) from error

    def _computed_apart(
        self, session: GraphSession, names: list[str] | None, values: Mapping[str, Any], error: MixedSizesError
    ) -> list[Any]:
        """Run with a size for each input where the file has one name for several.

        Raises:
            MixedSizesError: so the model does not run either.
        """
        weights = next((fed for fed, known in self._fed_weights.items() if known is session), frozenset())
        try:
            model = told_apart(exposed(self.proto(), (), weights))
            apart = self._opened(model, dataclasses.replace(self._optimisation, path=""))
            results = apart.compute(names, values)
        except StoppedError:
            raise
        except (InputError, GraphError, ProviderError) as second:
            raise also(error, upstream("Fail")) from second
        self._apart[session] = apart
        return results

    def _check(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any) -> None:
        if run_options is None and type(feeds) is dict and feeds.keys() == self._names:
            there = self._known_outputs
            if not output_names or (
                type(output_names) is list and all(type(name) is str and name in there for name in output_names)
            ):
                return
        check_arguments(output_names, feeds, run_options)
        inputs, outputs = ([value.name for value in values] for values in (self.get_inputs(), self.get_outputs()))
        inputs += [value.name for value in self._overridable]
        for what, names, known in (("input", feeds, inputs), ("output", output_names or (), outputs)):
            for name in names:
                if name not in known:
                    error = InputError(f"the model has no {what} {name!r}", way_out=f"nearest: {nearest(name, known)}")
                    raise also(error, upstream("InvalidArgument"))
        self._check_missing(feeds)

    def _check_missing(self, feeds: Mapping[str, Any]) -> None:
        required = [value.name for value in self.get_inputs() if value.name not in self._optional]
        missing = [name for name in required if name not in feeds]
        if missing:
            told = ", ".join(f"{value.name}: {value.type}{value.shape}" for value in self.get_inputs())
            raise InputError(
                f"the feeds have no {missing[0]!r}", way_out=f"feed {told}",
                reason=f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).",
            )  # fmt: skip

    def _for(self, feeds: Mapping[str, Any]) -> GraphSession:
        """The session that takes the initializers that are fed as inputs."""
        weights = frozenset(value.name for value in self._overridable if value.name in feeds)
        if not weights:
            return self._session
        session = self._fed_weights.get(weights)
        if session is None:
            model = exposed(self.proto(), (), weights)
            session = self._opened(model, dataclasses.replace(self._optimisation, path=""))
            self._fed_weights[weights] = session
        return session

    def _opened(self, model: onnx.ModelProto, optimisation: Optimisation) -> GraphSession:
        return GraphSession(
            model, self._provider, self._provider_options, evaluates=self._evaluates, following=self._following,
            optimisation=optimisation,
        )  # fmt: skip

    def get_optimization_statistics(self) -> dict[str, int]:
        """Return how many places of the graph each pass changed, of the plans that ran so far the most."""
        return self._session.optimisations()

    def proto(self) -> onnx.ModelProto:
        """Return the model with its data and with what the options put in, read anew: it is as large as its weights."""
        options = self._options
        is_ours = isinstance(options, SessionOptions)
        source = self._source
        if is_ort_format(source):
            source = as_onnx(source, options.custom_libraries if is_ours else ())
        proto, _ = read_proto(
            source, folder=config_entry(options, EXTERNAL_FOLDER) or None,
            brought=options.initializers if is_ours else (), contents=options.external_files if is_ours else None,
        )  # fmt: skip
        return _with_options(proto, options)

    def tensor(self, name: str, value: Any) -> torch.Tensor:
        """Return a value for an input as a tensor on the provider's device, sharing memory where that can be."""
        return fed_tensor(name, value, self._kinds.get(name, "")).to(self._session.device)

    def value(self, name: str, value: Any) -> Any:
        """Return what is fed for an input of any type: tensors, lists of them, None, strings, maps."""
        return fed_input(name, value, self._kinds.get(name, ""), self._session.device)

    def array(self, result: Any) -> Any:
        """Return a result as an array, of one of ml_dtypes' dtypes where numpy has none; a sequence as a list."""
        if isinstance(result, torch.Tensor):
            return to_array(result)
        if isinstance(result, list):
            return [self.array(item) for item in result]
        return result if result is None or isinstance(result, dict) else np.asarray(result)

    def ort_value(self, result: Any) -> Any:
        """Return a result as an `OrtValue` that shares its memory.

        Raises:
            InputError: it is a sequence, a map, or holds strings.
        """
        if isinstance(result, np.ndarray) and result.dtype.isbuiltin == 2:
            return copied_value(result)  # numbers of a few bits, which torch has no dtype for
        return shared_value(self._as_tensor(result))

    def _as_tensor(self, result: Any) -> torch.Tensor:
        if isinstance(result, torch.Tensor):
            return result
        return self.tensor("", numbers(result))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._session.device.type == "cuda":
            torch.cuda.current_stream(self._session.device).synchronize()

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs in the file's order."""
        return self._session.get_inputs()

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs in the file's order."""
        return self._session.get_outputs()

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the initializers that may be fed."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the file says about itself."""
        return self._session.get_modelmeta()

    def get_providers(self) -> list[str]:
        """Return the provider's name in a list, and that of the next one where it runs parts of the model."""
        parts = self._session.assignment() or ()
        others = [name for name, _ in parts if name != self._provider]
        return [*self._session.get_providers(), *dict.fromkeys(others)]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options by the provider's name."""
        return self._session.get_provider_options()

    def get_session_options(self) -> Any:
        """Return the options that the session was made with."""
        return self._options

    def get_provider_graph_assignment_info(self) -> list[AssignedSubgraph]:
        """Return which provider runs which nodes.

        Raises:
            OptionError: the session was not told to record it.
        """
        if config_entry(self._options, _RECORDS) != "1":
            error = OptionError(
                "the assignment of nodes to providers was not recorded",
                reason=f"Session configuration entry '{_RECORDS}' must be set to \"1\"",
                way_out=f"call add_session_config_entry({_RECORDS!r}, '1') on the session's options",
            )
            raise also(error, upstream("Fail"))
        assignment = self._session.assignment()
        if assignment is None:
            return [AssignedSubgraph(self._provider, self._nodes)]
        return [
            AssignedSubgraph(name, tuple(AssignedNode(n.name or "", n.domain, n.op_type) for n in nodes))
            for name, nodes in assignment
        ]

    def get_input_memory_infos(self) -> list[Any]:
        """Return where each input is to lie."""
        return [self._memory() for _ in self.get_inputs()]

    def get_output_memory_infos(self) -> list[Any]:
        """Return where each output lies."""
        return [self._memory() for _ in self.get_outputs()]

    def _memory(self) -> Any:
        upper = stock()
        device = self._session.device
        name = "Cuda" if device.type == "cuda" else "Cpu"
        return upper.OrtMemoryInfo(
            name, upper.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, device.index or 0, upper.OrtMemType.DEFAULT
        )

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        """Return an `OrtValue` with unwritten memory."""
        return stock().OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def get_tuning_results(self) -> list[Any]:
        """Return no results: what ontrain's tuning measured stands in a file of the machine, see `ontrain tuning`."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Take no results.

        Raises:
            OptionError: `error_on_invalid`, and there are some.
        """
        if results and error_on_invalid:
            raise OptionError(f"{self._provider} takes no tuning results of onnxruntime's")

    def end_profiling(self) -> str:
        """Write the trace, if the options asked for one, and return its path, else ""."""
        return self._trace.write()

    def get_profiling_start_time_ns(self) -> int:
        """Return when the trace began, comparable with `time.monotonic_ns()`."""
        return self._trace.start


def _heed(options: Any, provider: str, following: Following | None) -> None:
    """Say of settings that they mean nothing here; refuse what cannot be left out.

    Libraries of custom operators are for the provider that follows, which runs their operators.
    """
    if options is None:
        return
    plain = stock().SessionOptions()
    for name in _MEANINGLESS:
        if hasattr(plain, name) and getattr(options, name) != getattr(plain, name):
            say_once(f"The session option {name} means nothing to {provider}.")
    if not isinstance(options, SessionOptions):
        return
    for key in options.config_entries:
        if key not in _HEEDED:
            say_once(f"The session's entry {key} means nothing to {provider}.")
    if options.custom_libraries and following is None:
        raise OptionError(
            f"{provider} cannot load {os.path.basename(options.custom_libraries[0])!r}",
            reason="a library of custom operators has kernels for onnxruntime",
            way_out="let CPUExecutionProvider follow in the list of providers, or write the operators with @ontrain.op",
        )


def _check_wanted(options: Any) -> None:
    """End the loading of a model that nobody wants any more."""
    if isinstance(options, SessionOptions) and options.is_load_cancelled:
        error = OptionError("the model is not loaded", reason="its options' set_load_cancellation_flag was called")
        raise also(error, upstream("ModelLoadCanceled"))


def _with_options(proto: onnx.ModelProto, options: Any) -> onnx.ModelProto:
    """The model with sizes and weights that the options put in."""
    if not isinstance(options, SessionOptions):
        return proto
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            named, denoted = options.free_dimensions.get(dim.dim_param), options.denoted_dimensions
            stated = dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            sizes = [size for size in (stated, named, denoted.get(dim.denotation.lower())) if size is not None]
            if len(set(sizes)) > 1:
                error = OptionError(
                    f"a dimension of input {value.name!r} is to be {' and '.join(map(str, sizes))}",
                    reason="the file and the overrides by name and by denotation differ", way_out="leave one of them",
                )  # fmt: skip
                raise also(error, upstream("InvalidArgument"))
            if sizes:
                dim.dim_value = sizes[0]
    there = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in options.external_initializers:
        _check_external(name, there, options.initializers[name])
    for name, tensor in there.items():
        if name in options.initializers:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array_of(options.initializers[name]), name))
    return proto


def _check_external(name: str, there: Mapping[str, onnx.TensorProto], value: Any) -> None:
    """Refuse a value for an initializer that the model does not have like this, as onnxruntime does."""
    tensor = there.get(name)
    if tensor is None:
        problem, reason = f"the model has no initializer {name!r}", None
        way_out = f"nearest: {nearest(name, there)}"
    elif (tensor.data_type, list(tensor.dims)) != (value.element_type(), list(value.shape())):
        problem = f"initializer {name!r} is {ir.DataType(tensor.data_type)} {list(tensor.dims)}"
        reason = f"its value is {ir.DataType(value.element_type())} {list(value.shape())}"
        way_out = "give a value of this type and shape, or replace it by add_initializer"
    else:
        return
    error = OptionError(f"add_external_initializers: {problem}", reason=reason, way_out=way_out)
    raise also(error, upstream("Fail"))


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise also(error, upstream("NoSuchFile")) from error
    except GraphError as error:
        text = f"{error.problem}: {error.reason}"
        told = also(error, upstream(_kind_of_damage(text)))
        if "has inconsistent type" in text:  # onnxruntime's class depends on whether the file states the type, too
            told = also(told, upstream("Fail"))
        raise told from error
    except ProviderError as error:
        raise also(error, upstream("NotImplemented")) from error


def _kind_of_damage(text: str) -> str:
    """The name of the class that onnxruntime raises for a file with this damage."""
    kinds = {
        "no ONNX model": "InvalidProtobuf", "holds no graph": "InvalidArgument", "the external data of": "Fail",
        "is used before it is made": "InvalidArgument", "asks for opset": "Fail", "is of IR version": "Fail",
        "is defined twice": "Fail", "ShapeInferenceError": "Fail", "is unknown to ontrain": "Fail",
        "has no outputs": "InvalidArgument",
    }  # fmt: skip
    return next((kind for words, kind in kinds.items() if words in text), "InvalidGraph")


def _of_a_run(error: OntrainError) -> OntrainError:
    """An error of a run, also of the class that onnxruntime raises for it."""
    if isinstance(error, InputError):
        return also(error, upstream("InvalidArgument"))
    if isinstance(error, GraphError):
        return also(error, upstream("InvalidGraph"))
    for kind in ("RuntimeException", "Fail", "InvalidArgument"):  # a kernel of onnxruntime's raises one of these
        error = also(error, upstream(kind))
    return error
