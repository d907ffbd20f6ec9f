"""The calls of onnxruntime's sessions on one of ontrain's providers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from ontrain.capture import to_array
from ontrain.errors import InputError, OntrainError, OptionError
from ontrain.inference.adapters import adapted, say_without_adapters
from ontrain.inference.arguments import at_hand, check_arguments
from ontrain.inference.assignment import AssignedNode, AssignedSubgraph
from ontrain.inference.binding import OwnBinding
from ontrain.inference.descriptions import ModelMetadata, NodeArg
from ontrain.inference.error_classes import loading
from ontrain.inference.graph_inference import GraphSession
from ontrain.inference.heeded import RECORDS, check_wanted, heed
from ontrain.inference.optimisation import Optimisation
from ontrain.inference.options import SessionOptions, config_entry
from ontrain.inference.ort_format import check_stated_format
from ontrain.inference.overrides import read_model
from ontrain.inference.runs import Runs
from ontrain.inference.shared_values import (
    copied_value,
    listed_value,
    numbers,
    read_in_place,
    shared_value,
    text_value,
    written,
)
from ontrain.inference.stated_shapes import check_stated_shapes
from ontrain.inference.stepwise import Following
from ontrain.inference.trace import Trace
from ontrain.inference.upstream_errors import also, upstream
from ontrain.inference.written import check_places
from ontrain.session import collector
from ontrain.stock import stock

__all__ = ["OwnSession"]


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
        optimisation = Optimisation.of(options, disabled_optimizers)
        self._trace = Trace(options, provider)
        self._provider, self._source, settings = provider, source, dict(provider_options)
        self._options = options if options is not None else SessionOptions()
        heed(options, provider, following)
        check_places(options)
        check_wanted(options)
        with self._trace.event("model_loading"), loading():
            check_stated_format(source, options)
            proto = self.proto()
            check_stated_shapes(proto, options)
        check_wanted(options)

        def opened(model: onnx.ModelProto, optimisation: Optimisation) -> GraphSession:
            return GraphSession(
                model, provider, settings, evaluates=evaluates, following=following, optimisation=optimisation
            )

        with self._trace.event("session_initialization"), loading(), collector.paused():
            self._runs = Runs(proto, self.proto, opened, optimisation, self._trace, provider)
        check_wanted(options)
        self._session = self._runs.session
        self._nodes = tuple(AssignedNode(node.name, node.domain, node.op_type) for node in proto.graph.node)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles, as onnxruntime's sessions do."""
        raise TypeError("a session cannot be pickled or copied: make one in each process, of the model's path or bytes")

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """See `InferenceSession.run`."""
        plain = run_options is None and type(input_feed) is dict
        if plain:
            arrays = self._runs.at_once(output_names, input_feed)
            if arrays is not None:
                return arrays
        results = self._runs.run(output_names, adapted(input_feed, run_options), run_options)
        arrays = [self.array(result) for result in results]
        return self._runs.compare(output_names, input_feed, arrays) if plain else arrays

    def run_tensors(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[torch.Tensor]:
        """See `InferenceSession.run_tensors`."""
        return [self.as_tensor(result) for result in self._on_values(output_names, input_feed, None)]

    def _on_values(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any) -> list[Any]:
        """Run on tensors, `OrtValue`s and what else is fed, and return results as `GraphSession.compute` has them."""
        on_host = run_options is None and self._session.device.type == "cpu"
        arrays = read_in_place(feeds) if on_host else None
        if arrays is None:
            return self._runs.run(output_names, feeds, run_options)
        results = self._runs.at_once(output_names, arrays)
        if results is not None:
            return list(map(written, results))
        results = self._runs.run(output_names, feeds, None)
        own = list(map(self.array, results))
        others = self._runs.compare(output_names, arrays, own)
        return results if others is own else list(map(written, others))

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run on `OrtValue`s, and return `OrtValue`s that share the memory of the results."""
        output_names = at_hand(output_names)
        results = self._on_values(output_names, adapted(input_dict_ort_values, run_options), run_options)
        return self.ort_values(output_names or [value.name for value in self.get_outputs()], results)

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
            if not iobinding.outputs:
                raise also(InputError("no output is bound", way_out="call bind_output"), upstream("InvalidArgument"))
            say_without_adapters("run_with_iobinding", run_options)
            iobinding.take(self._on_values(list(iobinding.outputs), iobinding.inputs, run_options))
        except OntrainError as error:  # whatever happens in such a run, onnxruntime calls a RuntimeError
            raise also(error, RuntimeError) from error

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
        # What is no value at all is told the caller, what does not fit the callback, as in onnxruntime.
        feeds = self._runs.values(input_feed)

        def work() -> None:
            try:
                results, told = list(map(self.array, self._on_values(output_names, feeds, run_options))), ""
            except Exception as error:  # noqa: BLE001 (whoever waits for the call has to be told)
                results, told = [], str(error)
            callback(results, user_data, told)

        # No daemon: Python would end it at its exit, and within one of torch's operators that ends the process.
        threading.Thread(target=work).start()

    def get_optimization_statistics(self) -> dict[str, int]:
        """Return how many places of the graph each pass changed, of the plans that ran so far the most."""
        return self._session.optimisations()

    def proto(self) -> onnx.ModelProto:
        """Return the model with its data and with what the options put in, read anew: it is as large as its weights."""
        return read_model(self._source, self._options)

    def tensor(self, name: str, value: Any) -> torch.Tensor:
        """Return a value for an input as a tensor on the provider's device, sharing memory where that can be."""
        return self._runs.tensor(name, value)

    def value(self, name: str, value: Any) -> Any:
        """Return what is fed for an input of any type: tensors, lists of them, None, strings, maps."""
        return self._runs.value(name, value)

    def array(self, result: Any) -> Any:
        """Return a result as an array, of one of ml_dtypes' dtypes where numpy has none; a sequence as a list."""
        if isinstance(result, torch.Tensor):
            return to_array(result)
        if isinstance(result, list):
            return [self.array(item) for item in result]
        return result if result is None or isinstance(result, dict) else np.asarray(result)

    def ort_values(self, names: Iterable[str], results: Sequence[Any]) -> list[Any]:
        """Return results as `OrtValue`s, which share the memory of tensors of numbers.

        Args:
            names: of the outputs.
            results: of a run, in the same order.

        Raises:
            InputError: a result is a map, an empty optional value, or a sequence of unequal maps.
        """
        kinds = {value.name: value.type for value in self.get_outputs()}
        return [self._ort_value(result, kinds.get(name, "")) for name, result in zip(names, results, strict=True)]

    def _ort_value(self, result: Any, kind: str) -> Any:
        if isinstance(result, list):
            items = [item if isinstance(item, dict) else self._ort_value(item, "") for item in result]
            return listed_value(items, kind.removeprefix("optional("))
        if isinstance(result, np.ndarray) and result.dtype.kind in "OUS":
            return text_value(result)
        if isinstance(result, np.ndarray) and result.dtype.isbuiltin == 2:
            return copied_value(result)  # numbers of a few bits, which torch has no dtype for
        return shared_value(self.as_tensor(result))

    def as_tensor(self, result: Any) -> torch.Tensor:
        """Return a result as a tensor on the provider's device."""
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
        return list(self._runs.overridable)

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
        if config_entry(self._options, RECORDS) != "1":
            error = OptionError(
                "the assignment of nodes to providers was not recorded",
                reason=f"Session configuration entry '{RECORDS}' must be set to \"1\"",
                way_out=f"call add_session_config_entry({RECORDS!r}, '1') on the session's options",
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
