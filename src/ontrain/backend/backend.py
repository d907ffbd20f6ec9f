"""onnx's `Backend` over ontrain's sessions: one for onnxruntime's providers, one for the torch provider."""

from __future__ import annotations

import os
import unittest
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import onnx
from onnx.backend import base

from ontrain.backend.backend_rep import BackendRep
from ontrain.backend.node import model_of, newest
from ontrain.backend.settings import set_allowed
from ontrain.errors import OptionError
from ontrain.inference import InferenceSession, SessionOptions, also
from ontrain.stock import stock

__all__ = ["Backend", "OnnxRuntimeBackend", "TorchBackend"]

_SETTINGS = frozenset({
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads", "log_severity_level",
    "log_verbosity_level", "logid", "use_deterministic_compute", "use_per_session_threads",
})  # fmt: skip
"""Options of a session that a caller of the backend may set: none of them writes files."""
_EXCLUDED = "ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS"
_RELEASED_ONLY = "ALLOW_RELEASED_ONNX_OPSET_ONLY"


class Backend(base.Backend):
    """onnx's `Backend` on onnxruntime's providers.

    A subclass with other `providers` is a backend for them; onnx's test runner takes such a class:
    `onnx.backend.test.BackendTest(ontrain.backend.TorchBackend, __name__)`.

    Attributes:
        providers: names of execution providers; None for all of onnxruntime's but those that the environment variable
            `ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS` names.
        allowReleasedOpsetsOnly: whether models of operator sets that onnx has not released are skipped; the environment
            variable `ALLOW_RELEASED_ONNX_OPSET_ONLY=0` lets them run.
    """

    providers: ClassVar[Sequence[str] | None] = None
    allowReleasedOpsetsOnly = os.getenv(_RELEASED_ONLY, "1") == "1"  # noqa: N815  # onnxruntime's name

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models run on a device: "CPU", "CUDA", "GPU", or "CUDA:1"."""
        kind, _, number = device.partition(":")
        if number and not number.isdecimal():
            return False
        if kind == "CPU":
            return True
        return kind in ("CUDA", "GPU") and cls._has_gpu(int(number or 0))

    @classmethod
    def _has_gpu(cls, number: int) -> bool:
        return "GPU" in str(stock().get_device()).split("-")

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Return whether the backend has the device, and the operator sets of a message are released."""
        is_released = not isinstance(model, onnx.ModelProto) or cls.is_opset_supported(model)[0]
        return is_released and cls.supports_device(device or "CPU")

    @classmethod
    def is_opset_supported(cls, model: onnx.ModelProto) -> tuple[bool, str]:
        """Return whether the model's operator sets of the standard are released, and else why not."""
        for opset in model.opset_import if cls.allowReleasedOpsetsOnly else ():
            domain = opset.domain or "ai.onnx"
            if domain.startswith("ai.onnx") and not 1 <= opset.version <= newest(opset.domain):
                return False, f"opset {opset.version} of {domain!r} is not released; {_RELEASED_ONLY}=0 lets it run"
        return True, ""

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> BackendRep:
        """Load a model.

        Args:
            model: a message, bytes, a path, a session, or what was prepared before.
            device: see `supports_device`; None for the default.
            kwargs: settings of `SessionOptions` that write no files. Names that it does not have are left out, as in
                onnxruntime.

        Raises:
            unittest.SkipTest: an operator set of a message is not released.
            OptionError: the device is not here, or a setting may not be set.
            InputError, GraphError, ProviderError: the model cannot be loaded.
        """
        if isinstance(model, BackendRep):
            return model
        if device is not None and not cls.supports_device(device):
            error = OptionError(f"{cls.__name__} has no device {device!r}", way_out="use 'CPU', or another machine")
            raise also(error, RuntimeError)
        if isinstance(model, stock().InferenceSession):
            return BackendRep(model)
        if isinstance(model, onnx.ModelProto):
            is_supported, reason = cls.is_opset_supported(model)
            if not is_supported:
                raise unittest.SkipTest(reason)
            onnx.checker.check_model(model)
        options = SessionOptions()
        set_allowed(options, _SETTINGS, kwargs)
        session = InferenceSession(
            model, options, cls._providers(), cls._provider_options(device), strict_providers=True
        )
        session.disable_fallback()
        return BackendRep(session)

    @classmethod
    def _providers(cls) -> list[str]:
        if cls.providers is not None:
            return list(cls.providers)
        excluded = os.getenv(_EXCLUDED, "").split(",")
        return [name for name in stock().get_available_providers() if name not in excluded]

    @classmethod
    def _provider_options(cls, device: str | None) -> Sequence[Mapping[str, object]] | None:
        return None

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Load a model and run it; see `prepare` and `BackendRep.run`, which both take the keywords."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str | None = None,
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None, **kwargs: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run one operator.

        Args:
            node: the operator with its attributes and names.
            inputs: a list or tuple of values for the names, a dictionary, or the value of the one input.
            device: see `supports_device`.
            outputs_info: dtype and shape of each output, needed for operators that onnx does not know.
            kwargs: `opset_version` of the standard's operators, by default one that has the operator; others as for
                `run_model`.

        Returns:
            A named tuple of the outputs, which is indexed by their names, too.

        Raises:
            onnx.checker.ValidationError: the node is no such operator.
            InputError: the values do not fit, or an output's type is not known.
        """
        opset = kwargs.pop("opset_version", None)
        names = [name for name in dict.fromkeys(node.input) if name]
        values = [inputs[name] for name in names] if isinstance(inputs, Mapping) else inputs
        values = list(values) if isinstance(values, list | tuple) else [values]
        model = model_of(node, values, outputs_info, opset)
        results = cls.run_model(model, values, device, **kwargs)
        outputs: tuple[Any, ...] = base.namedtupledict("Outputs", [name for name in node.output if name])(*results)
        return outputs


class TorchBackend(Backend):
    """onnx's `Backend` on `TorchExecutionProvider`."""

    providers: ClassVar[Sequence[str] | None] = ("TorchExecutionProvider",)

    @classmethod
    def _has_gpu(cls, number: int) -> bool:
        import torch

        return number < torch.cuda.device_count()

    @classmethod
    def _provider_options(cls, device: str | None) -> Sequence[Mapping[str, object]] | None:
        kind, _, number = (device or "CPU").partition(":")
        return [{"device": "cpu" if kind == "CPU" else f"cuda:{number or 0}"}]


OnnxRuntimeBackend = Backend
"""The name in onnxruntime."""
