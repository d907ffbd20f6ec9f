"""`InferenceSession`: a model run by stock onnxruntime or by one of ontrain's own providers, under one set of names."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ontrain.errors import GraphError, InputError, OntrainError, OptionError, ProviderError
from ontrain.files import suspect
from ontrain.inference.arguments import at_hand
from ontrain.inference.binding import IOBinding
from ontrain.inference.delegation import delegating
from ontrain.inference.fed import fed_value, run_by_values
from ontrain.inference.inner_values import exposed, inner_names
from ontrain.inference.lending import Changes, lent
from ontrain.inference.model_source import model_source
from ontrain.inference.options import RunOptions, SessionOptions, checked_options, config_entry, copied_options
from ontrain.inference.ort_format import is_ort_format
from ontrain.inference.provider_lists import Candidate, Providers, candidates, check_known, stock_providers
from ontrain.inference.stock_errors import not_loaded, not_run
from ontrain.inference.upstream_errors import also, told_by_onnxruntime, upstream
from ontrain.inference.written import not_written, warn_of_lost_profile
from ontrain.limits import TooLargeError
from ontrain.rounds import StoppedError
from ontrain.stock import stock
from ontrain.stock_values import ort_value, speaks_numpy

__all__ = ["IOBinding", "InferenceSession", "RunOptions", "SessionOptions", "stock_providers"]

if TYPE_CHECKING:
    import onnx

_PLAIN = frozenset("biuf")
_StockSession: Any = stock().InferenceSession
_switching = threading.Lock()
_CIRCLE = "a function calls itself"


class InferenceSession(_StockSession):  # type: ignore[misc]
    """Loads an ONNX model and runs it: onnxruntime's `InferenceSession`, which may also run on ontrain's providers.

    On onnxruntime's providers all methods are onnxruntime's own. On ontrain's, the methods of the same names do the
    same. Errors are ontrain's, and of the class that onnxruntime raises, too, so that `except InvalidArgument` of
    `ontrain.capi.onnxruntime_pybind11_state` goes on working.

    Threads may call `run` at the same time. On ontrain's providers each run has working memory of its own, and a new
    combination of shapes is planned by one thread while the others go on. Dropouts and batch normalisations run in the
    modes that the file says; random numbers begin at the seeds that its operators state, else anywhere, and go on from
    run to run.

    Args:
        path_or_bytes: an `.onnx` file, its bytes, or an `onnx.ModelProto`.
        sess_options: `ontrain.SessionOptions`, or onnxruntime's.
        providers: execution providers in order of preference, each a name or (name, options); default are
            onnxruntime's. A provider that is not here is warned of and left out. One of ontrain's runs a model whole;
            where it cannot, the next of the list gets the model, with a warning.
        provider_options: one dictionary a provider.
        kwargs: `disabled_optimizers`, `enable_fallback`, `read_config_from_model` as in onnxruntime; and
            `strict_providers=True`, which refuses a provider that is not here.

    Raises:
        InputError: the file is missing or is no ONNX model.
        GraphError: the same, from one of ontrain's providers; or the model holds what ontrain does not know.
        OptionError: the list of providers cannot be read, one of them does not know an option, or, with
            `strict_providers`, a provider is not here.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: Any = None,
        providers: Providers = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._own: Any = None
        sess_options = checked_options(sess_options)
        self._strict = bool(kwargs.pop("strict_providers", False))
        self._source, self._options_given, self._kwargs = model_source(path_or_bytes), sess_options, kwargs
        # onnxruntime's sessions have these two, and Optimum reads them.
        self._model_path = self._source if isinstance(self._source, str) else None
        self._model_bytes = self._source if isinstance(self._source, bytes) else None
        self._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        self._open(providers, provider_options)

    def set_providers(
        self, providers: Providers = None, provider_options: Sequence[Mapping[str, object]] | None = None
    ) -> None:
        """Let other providers run the model from now on; see the arguments of the class."""
        falls_back, arguments = self._enable_fallback, self._kwargs
        self._kwargs = {**arguments, "enable_fallback": 0}
        try:
            self._open(providers, provider_options)
        finally:
            self._enable_fallback, self._kwargs = falls_back, arguments

    def _open(self, providers: Providers, provider_options: Sequence[Mapping[str, object]] | None) -> None:
        check_known(providers, self._strict)
        self._wider: dict[frozenset[str], InferenceSession] = {}
        self._next = candidates(providers, provider_options)
        if config_entry(self._options_given, "session.disable_cpu_ep_fallback") == "1":
            del self._next[1:]
        self._open_next()

    def _open_next(self) -> None:
        """Give the model to the first candidate left that can load it."""
        while True:
            candidate = self._next.pop(0)
            try:
                self._load(candidate)
                return
            except OntrainError as error:
                if not isinstance(error, GraphError | ProviderError | upstream("NotImplemented")):
                    raise
                self._pass_on(candidate, error)

    def _pass_on(self, candidate: Candidate, error: OntrainError) -> None:
        """Warn that the next candidate gets the model; where there is none, raise the error."""
        if not self._next or not self._enable_fallback:
            raise error
        following = self._next[0].own or ", ".join(self._next[0].providers)
        warnings.warn(
            f"{candidate.own or 'onnxruntime'} cannot run this model, so {following} does: {error}", stacklevel=5
        )

    def _load(self, candidate: Candidate) -> None:
        if candidate.own is not None:
            from ontrain.inference.own_calls import OwnSession

            with lent(self._options_given, Changes()) as options:
                self._own = OwnSession(
                    self._source, candidate.own, candidate.provider_options, options,
                    evaluates=not self._next, following=self._following(),
                    disabled_optimizers=self._kwargs.get("disabled_optimizers"),
                )  # fmt: skip
            self._candidate = candidate
            self._describe()
            return
        try:
            source, changes = self._source, Changes()
            content = suspect(source)
            if content is not None:
                from ontrain.inference.guarded import guarded

                source, changes = guarded(source, content, self._options_given)
        except GraphError as error:
            raise also(error, upstream("InvalidGraph" if _CIRCLE in error.problem else "Fail")) from error
        warn_of_lost_profile(self._options_given)
        with (
            lent(self._options_given, changes) as options,
            told_by_onnxruntime(lambda error: not_written(options, error) or not_loaded(error)),
        ):
            super().__init__(source, options, candidate.providers, candidate.provider_options, **self._kwargs)
        self._own, self._candidate = None, candidate
        # Asked once: a run of a small model takes microseconds.
        self._input_types = {value.name: value.type for value in self.get_inputs()}
        self._output_types = {value.name: value.type for value in self.get_outputs()}
        self._speaks_numpy = all(map(speaks_numpy, self._output_types.values()))
        self._output_names = list(self._output_types)
        # The binding's own call, without the checks of onnxruntime's Python: they take as long as a small model.
        self._call = getattr(getattr(self, "_sess", None), "run", None) if self._speaks_numpy else None

    def _describe(self) -> None:
        """Set what onnxruntime's sessions keep under private names, and programs read all the same."""
        own = self._own
        self._inputs_meta, self._outputs_meta = own.get_inputs(), own.get_outputs()
        self._output_types = {value.name: value.type for value in self._outputs_meta}
        self._overridable_initializers, self._model_meta = own.get_overridable_initializers(), own.get_modelmeta()
        self._providers, self._provider_options = own.get_providers(), own.get_provider_options()
        self._sess_options = own.get_session_options()

    def _following(self) -> Any:
        """Onnxruntime's provider that runs what one of ontrain's lacks, if it comes next in the list."""
        from ontrain.inference.guarded import is_known
        from ontrain.inference.stepwise import Following

        if not self._next or self._next[0].own is not None or not self._enable_fallback:
            return None
        after = self._next[0]
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in after.providers]
        libraries = list(getattr(self._options_given, "custom_libraries", ()))

        def opened(model: bytes) -> InferenceSession:
            options = SessionOptions()
            for path in libraries:
                options.register_custom_ops_library(path)
            return InferenceSession(model, options, after.providers, after.provider_options)

        return Following(names[0], opened) if libraries else Following(names[0], opened, is_known)

    def get_optimization_statistics(self) -> dict[str, int]:
        """Return how many places of the graph each pass of ontrain's changed, by the passes' names.

        Passes over a plan count once a plan ran, and of several plans the one in which they changed most.

        Raises:
            OptionError: onnxruntime's own providers run the model; they tell no counts.
        """
        if self._own is None:
            raise OptionError(
                "onnxruntime does not tell what its optimisers changed",
                way_out="look at the file that SessionOptions.optimized_model_filepath names, or use one of ontrain's "
                "providers",
            )
        statistics: dict[str, int] = self._own.get_optimization_statistics()
        return statistics

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: outputs wanted; None (or none) for all. Inner values of the main graph may be named, too: a
                session that has them as outputs is made at the first such run.
            input_feed: by input name arrays of numpy (also of ml_dtypes' dtypes), tensors of torch and whatever else
                has `__dlpack__`, lists, numbers, `OrtValue`s; on onnxruntime's providers also sequences, maps, strings
                and sparse tensors.
            run_options: `ontrain.RunOptions`.

        Returns:
            One array per output; a list for a sequence, a dictionary for a map.

        Raises:
            InputError: an input is missing, unknown, or does not fit; or an output is unknown.
            ProviderError: the model fails while it runs.
        """
        if output_names is not None and type(output_names) is not list:
            output_names = at_hand(output_names)
        if self._own is not None:
            return self._run_own(output_names, input_feed, run_options)
        feeds = input_feed
        types = self._input_types
        is_plain = type(feeds) is dict and feeds.keys() == types.keys() and all(map(_is_plain, feeds.values()))
        if not is_plain and isinstance(input_feed, Mapping):
            feeds = {name: fed_value(value, types.get(name, "")) for name, value in input_feed.items()}
        try:
            if is_plain and run_options is None and self._call is not None:
                try:
                    at_once: list[Any] = self._call(output_names or self._output_names, feeds, None)
                    return at_once
                except upstream("EPFail"):
                    pass  # onnxruntime has another provider to go on with
            types = self._output_types
            if self._speaks_numpy or all(speaks_numpy(types.get(name, "")) for name in output_names or types):
                results: list[Any] = super().run(output_names, feeds, run_options)
                return results
            return run_by_values(self, output_names or list(types), feeds, run_options)
        except InputError:
            raise
        except Exception as error:  # onnxruntime's errors share no base but Exception
            inner = self._inner(output_names) if isinstance(error, upstream("InvalidArgument")) else None
            if inner is not None:
                return inner.run(output_names, input_feed, run_options)
            raise also(not_run(self, error, output_names, input_feed), type(error)) from error

    def _run_own(self, output_names: Any, input_feed: Any, run_options: Any) -> list[Any]:
        inner = self._inner(output_names)
        if inner is not None:
            return inner.run(output_names, input_feed, run_options)
        own, candidate = self._own, self._candidate
        try:
            results: list[Any] = own.run(output_names, input_feed, run_options)
        except (StoppedError, TooLargeError):
            raise
        except (GraphError, ProviderError) as error:
            with _switching:  # one of several threads gives the model to the next provider
                if own is self._own:
                    self._pass_on(candidate, error)
                    self.disable_fallback()
                    self._open_next()
            return self.run(output_names, input_feed, run_options)
        return results

    def _inner(self, output_names: Sequence[str] | None) -> InferenceSession | None:
        """The session for a run that asks for inner values of the model, None if it asks for none."""
        if not output_names:
            return None
        known = self._output_types
        wanted = frozenset([name for name in output_names if isinstance(name, str) and name not in known])
        if not wanted:
            return None
        session = self._wider.get(wanted)
        if session is None:
            if self._own is None and is_ort_format(self._source):
                return None
            proto, folder = self._proto()
            if not wanted <= inner_names(proto):
                return None
            options = copied_options(self._options_given, folder)
            session = InferenceSession(
                exposed(proto, sorted(wanted)),
                options,
                self.get_providers(),
                list(self.get_provider_options().values()),
            )
            self._wider[wanted] = session
        return session

    def _proto(self) -> tuple[onnx.ModelProto, str | None]:
        """The model as a message, and the folder where its external data lie if they are not in the message."""
        if self._own is not None:
            return self._own.proto(), None
        import onnx

        if isinstance(self._source, bytes):
            return onnx.ModelProto.FromString(self._source), None
        return onnx.load_model(self._source, load_external_data=False), str(Path(self._source).resolve().parent)

    def io_binding(self) -> Any:
        """Return an `IOBinding`: inputs and outputs that stay bound from run to run."""
        return IOBinding(self)

    def run_tensors(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """Run the model and return tensors of torch, which share the memory that the provider has written.

        Args:
            output_names: outputs wanted; None (or none) for all.
            input_feed: as for `run`.

        Returns:
            One `torch.Tensor` per output, on the provider's device, also of dtypes that numpy lacks.

        Raises:
            InputError: an input is missing, unknown, or does not fit; or an output is unknown.
            ProviderError: the model fails while it runs, or an output is no tensor.
        """
        output_names = at_hand(output_names)
        import torch

        from ontrain.capture import to_array
        from ontrain.inference.fed_tensors import fed_tensor

        if self._own is not None:
            tensors: list[Any] = self._own.run_tensors(output_names, input_feed)
            return tensors
        feeds = {
            name: value
            if isinstance(value, stock().OrtValue)
            else ort_value(to_array(fed_tensor(name, value, self._input_types.get(name, ""))))
            for name, value in input_feed.items()
        }
        return [torch.utils.dlpack.from_dlpack(value) for value in self.run_with_ort_values(output_names, feeds)]

    def disable_fallback(self) -> None:
        """Let a provider's failure be an error, where else the next provider of the list would get the model."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Undo `disable_fallback`."""
        self._enable_fallback = True


for _name, _method in delegating(_StockSession).items():
    setattr(InferenceSession, _name, _method)


def _is_plain(value: object) -> bool:
    """Whether it is an array that onnxruntime takes as it is."""
    return type(value) is np.ndarray and value.dtype.isbuiltin == 1 and value.dtype.kind in _PLAIN
