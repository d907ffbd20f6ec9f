"""Runs of one model on one of ontrain's providers, in as many sessions as the feeds ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch

from ontrain.errors import GraphError, InputError, ProviderError, nearest
from ontrain.inference.arguments import check_arguments, heed_run
from ontrain.inference.descriptions import node_arg_of
from ontrain.inference.error_classes import of_a_run
from ontrain.inference.fed_tensors import fed_input, fed_tensor
from ontrain.inference.graph_inference import GraphSession
from ontrain.inference.handed_over import HandedOver
from ontrain.inference.inner_values import exposed, overridable, told_apart, without_scalars
from ontrain.inference.optimisation import Optimisation
from ontrain.inference.trace import Trace
from ontrain.inference.upstream_errors import also, upstream
from ontrain.rounds import StoppedError, stop_if_asked, stopped_by
from ontrain.session import MixedSizesError, ScalarError

__all__ = ["Runs"]


class Runs:
    """A model's runs: their feeds are checked, and a session is opened for feeds that the file's own does not take.

    Attributes:
        session: takes all inputs that have no initializers.
        overridable: the initializers that may be fed.

    Args:
        proto: the model with its data.
        read: gives the same model anew.
        opened: opens a session of a model.
        optimisation: which passes run over the graph.
        trace: records the runs.
        provider: the provider's name.
    """

    def __init__(
        self, proto: onnx.ModelProto, read: Callable[[], onnx.ModelProto],
        opened: Callable[[onnx.ModelProto, Optimisation], GraphSession], optimisation: Optimisation, trace: Trace,
        provider: str,
    ) -> None:  # fmt: skip
        handed_over = HandedOver.of(proto, read)
        self.session = opened(proto, optimisation)
        self._handed_over = handed_over if self.session.may_hand_over else None
        self.overridable = [node_arg_of(value) for value in overridable(proto)]
        self._read, self._opened, self._trace, self._provider = read, opened, trace, provider
        self._unsaved = dataclasses.replace(optimisation, path="")
        self._inputs, self._outputs = self.session.get_inputs(), self.session.get_outputs()
        self._kinds = {known.name: known.type for known in (*self._inputs, *self.overridable)}
        self._names = {value.name for value in self._inputs}
        self._own_values = {value.name for value in self.overridable}
        self._optional = [value.name for value in self._inputs if value.type.startswith("optional(")]
        self._known_outputs = {value.name for value in self._outputs}
        self._fed_weights: dict[frozenset[str], GraphSession] = {}
        self._apart: dict[GraphSession, GraphSession] = {}
        """By session another one of the same model, in which no two sizes have one name, and a scalar may have some."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any) -> list[Any]:
        """Return the outputs as `GraphSession.compute` has them.

        Raises:
            InputError: the model has no input or output of a name, or a feed does not fit.
            ProviderError: the model fails while it runs.
        """
        if self.overridable and type(feeds) is dict:
            feeds = {name: value for name, value in feeds.items() if value is not None or name not in self._own_values}
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

    def at_once(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Run on plain arrays like the last ones by the shortest way; None where there is none."""
        if self._trace.records:
            return None
        other = self._handed_over
        if other is None:
            return self.session.at_once(output_names, feeds)
        if other.outrun:
            return other.run(output_names, feeds) or self.session.at_once(output_names, feeds)
        return self.session.at_once(output_names, feeds) or other.run(output_names, feeds)

    def compare(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], results: list[Any]) -> list[Any]:
        """Compare the results of a run with those of shorter ways, and return those that the run is to have."""
        self.session.compare(output_names, feeds, results)
        return results if self._handed_over is None else self._handed_over.compare(output_names, feeds, results)

    def tensor(self, name: str, value: Any) -> torch.Tensor:
        """Return a value for an input as a tensor on the provider's device, sharing memory where that can be."""
        return fed_tensor(name, value, self._kinds.get(name, "")).to(self.session.device)

    def value(self, name: str, value: Any) -> Any:
        """Return what is fed for an input of any type: tensors, lists of them, None, strings, maps."""
        return fed_input(name, value, self._kinds.get(name, ""), self.session.device)

    def values(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return feeds as values; None, and what the model does not know, stay as they are.

        Raises:
            InputError: an input is missing, or its feed is no value at all.
        """
        self._check_missing(feeds)
        return {
            name: self.value(name, value) if value is not None and name in self._kinds else value
            for name, value in feeds.items()
        }

    def _traced(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        session = self._for(feeds) if self.overridable else self.session
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
            except (MixedSizesError, ScalarError) as error:
                return self._computed_apart(session, names, values, error)
        except StoppedError:
            raise
        except (InputError, GraphError, ProviderError) as error:
            raise of_a_run(error) from error

    def _computed_apart(
        self, session: GraphSession, names: list[str] | None, values: Mapping[str, Any],
        error: MixedSizesError | ScalarError,
    ) -> list[Any]:  # fmt: skip
        """Run with a size for each input where the file has one name for several, and with any for a scalar that has.

        Raises:
            MixedSizesError: so the model does not run either.
            ScalarError: likewise.
        """
        weights = next((fed for fed, known in self._fed_weights.items() if known is session), frozenset())
        try:
            model = told_apart(exposed(self._read(), (), weights))
            apart = self._opened(without_scalars(model) if isinstance(error, ScalarError) else model, self._unsaved)
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
        inputs, outputs = ([value.name for value in values] for values in (self._inputs, self._outputs))
        inputs += [value.name for value in self.overridable]
        for what, names, known in (("input", feeds, inputs), ("output", output_names or (), outputs)):
            for name in names:
                if name not in known:
                    error = InputError(f"the model has no {what} {name!r}", way_out=f"nearest: {nearest(name, known)}")
                    raise also(error, upstream("InvalidArgument"))
        self._check_missing(feeds)

    def _check_missing(self, feeds: Mapping[str, Any]) -> None:
        required = [value.name for value in self._inputs if value.name not in self._optional]
        missing = [name for name in required if name not in feeds]
        if missing:
            told = ", ".join(f"{value.name}: {value.type}{value.shape}" for value in self._inputs)
            raise InputError(
                f"the feeds have no {missing[0]!r}", way_out=f"feed {told}",
                reason=f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).",
            )  # fmt: skip

    def _for(self, feeds: Mapping[str, Any]) -> GraphSession:
        """The session that takes the initializers that are fed as inputs."""
        weights = frozenset(value.name for value in self.overridable if value.name in feeds)
        if not weights:
            return self.session
        session = self._fed_weights.get(weights)
        if session is None:
            session = self._opened(exposed(self._read(), (), weights), self._unsaved)
            self._fed_weights[weights] = session
        return session
