"""`InferenceSession`: an exported model, run by stock onnxruntime or by one of ontrain's own providers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from ontrain.errors import InputError, OptionError, ProviderError, nearest
from ontrain.graph.traps import sprung
from ontrain.providers import available_providers
from ontrain.session.graph_inference import GraphSession, check_names
from ontrain.session.guarded import guarded

__all__ = ["InferenceSession", "stock_providers"]


def stock_providers() -> list[str]:
    """Return the names of the providers that the installed onnxruntime has."""
    return list(onnxruntime.get_available_providers())


Array = np.ndarray[Any, Any]


class InferenceSession:
    """Loads an ONNX model and runs it, with onnxruntime's own call signatures.

    Threads may call `run` at the same time. On ontrain's providers each run has working memory of its own, and a new
    combination of shapes is planned by one thread while the others go on. Dropouts and batch normalisations run in the
    modes that the file says; random numbers begin at the seeds that its operators state, else anywhere, and go on from
    run to run.

    Args:
        path_or_bytes: an `.onnx` file, or its bytes.
        sess_options: `onnxruntime.SessionOptions`, passed on.
        providers: execution providers in order of preference, each a name or (name, options); default is stock
            onnxruntime on the CPU. One of ontrain's own (`ontrain.get_available_providers()`) runs the whole graph
            and stands alone.
        provider_options: one dictionary a provider, passed on.
        kwargs: `disabled_optimizers` and whatever else onnxruntime knows, passed on.

    Raises:
        InputError: the file is missing or is no ONNX model.
        GraphError: the same, from one of ontrain's providers; or the model holds what ontrain does not know.
        OptionError: a provider or one of its options is unknown.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        chosen = _normalised(providers, provider_options)
        source = path_or_bytes
        if not isinstance(source, bytes):
            if not Path(source).is_file():
                raise InputError(f"there is no model file {os.fspath(source)!r}")
            source = os.fspath(source)
        own = [name for name in chosen if name in available_providers()]
        self._session: Any
        if own:
            if len(chosen) > 1:
                raise OptionError(
                    f"{own[0]} is given beside other providers",
                    reason="ontrain's providers run a graph whole; only onnxruntime's share one",
                    way_out=f"write providers=[{own[0]!r}]",
                )
            if sess_options is not None or kwargs:
                raise OptionError(
                    "session options are onnxruntime's own",
                    reason=f"the model runs on ontrain's {own[0]}",
                    way_out="leave them out, or use 'CPUExecutionProvider'",
                )
            self._session = GraphSession(source, own[0], chosen[own[0]])
            return
        names, options = list(chosen), list(chosen.values())
        source, sess_options = guarded(source, sess_options)
        try:
            self._session = onnxruntime.InferenceSession(source, sess_options, names, options, **kwargs)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise sprung(str(error)) or InputError("onnxruntime cannot load the model", reason=str(error)) from error

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """Run the model.

        Args:
            output_names: outputs wanted; None (or none) for all.
            input_feed: arrays by input name, of numpy or torch. onnxruntime's providers take what they take there, too:
                lists and dictionaries for sequences and maps, strings, `OrtValue`s.
            run_options: `onnxruntime.RunOptions`, passed on.

        Returns:
            One array per output.

        Raises:
            InputError: an input is missing, unknown, or does not fit; or an output is unknown.
            ProviderError: the model fails while it runs.
        """
        check_names(list(input_feed), [i.name for i in self._session.get_inputs()], "input")
        wanted = list(output_names) if output_names else None
        check_names(wanted or (), [o.name for o in self._session.get_outputs()], "output")
        if isinstance(self._session, GraphSession):
            return self._session.run(wanted, input_feed, run_options)
        types = {one.name: one.type for one in self._session.get_inputs()}
        feeds = {name: _fed(value, types[name]) for name, value in input_feed.items()}
        try:
            results: list[Array] = self._session.run(wanted, feeds, run_options)
        except (ValueError, InvalidArgument) as error:
            trap = sprung(str(error))
            if trap is not None:
                raise trap from error
            shapes = ", ".join(f"{i.name}: {i.type}{i.shape}" for i in self._session.get_inputs())
            raise InputError("the feeds do not fit the model", reason=str(error), way_out=f"feed {shapes}") from error
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise sprung(str(error)) or ProviderError(
                "onnxruntime could not run the model", reason=str(error)
            ) from error
        return results

    def __getattr__(self, name: str) -> Any:
        """`get_inputs`, `get_outputs`, `get_modelmeta`, `io_binding` and the rest are onnxruntime's own."""
        if name == "_session":
            raise AttributeError(name)
        return getattr(self._session, name)


def _fed(value: Any, kind: str = "") -> Any:
    """What onnxruntime is given: torch tensors as arrays, in sequences and maps too, all that it knows as it is."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.dtype == torch.bfloat16:  # numpy has no such dtype
            bits = value.contiguous().view(torch.int16).numpy()
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
        return value.numpy()
    if isinstance(value, list):
        return [_fed(one) for one in value]
    if isinstance(value, dict):
        return {key: _fed(one) for key, one in value.items()}
    # Numbers and tuples, which onnxruntime itself refuses.
    plain = kind.startswith("tensor(") and isinstance(value, np.generic | int | float | tuple)
    return np.asarray(value) if plain else value


def _normalised(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> dict[str, dict[str, Any]]:
    """Options by provider, in order. onnxruntime takes options beside the names or with them, never both."""
    given = list(providers or ["CPUExecutionProvider"])
    if provider_options is not None and len(provider_options) != len(given):
        raise OptionError(
            f"there are {len(provider_options)} provider_options for {len(given)} providers",
            way_out="give one dictionary a provider",
        )
    chosen: dict[str, dict[str, Any]] = {}
    for at, one in enumerate(given):
        pair = isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], Mapping)
        if not pair and not isinstance(one, str):
            raise OptionError(f"providers has {one!r}", way_out="write a name, or (name, {'option': value})")
        if pair and provider_options is not None:
            raise OptionError(
                "options are given in providers and in provider_options", way_out="give them in one place"
            )
        name, options = (one[0], dict(one[1])) if isinstance(one, tuple) else (one, {})
        _check_known(name)
        chosen.setdefault(name, dict(provider_options[at]) if provider_options is not None else options)
    return chosen


def _check_known(name: str) -> None:
    known = [*stock_providers(), *available_providers()]
    if name not in known:
        raise OptionError(
            f"there is no execution provider {name!r} here",
            reason="it is neither in this build of onnxruntime nor one of ontrain's",
            way_out=f"installed: {nearest(name, known)}",
        )
