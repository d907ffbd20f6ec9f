"""What a session changes of a file's graph before it runs: by levels as onnxruntime has them, counted, and written."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from ontrain.capture import FiledModel, to_tensor
from ontrain.errors import GraphError, OptionError
from ontrain.graph import OPSET, subgraphs
from ontrain.inference.options import DISABLED, EXTERNAL_LEAST, EXTERNAL_NAME, config_entry
from ontrain.inference.ort_format import as_ort, wants_ort_format
from ontrain.inference.upstream_errors import also, upstream
from ontrain.passes import (
    FoldWeights,
    Pass,
    PassReport,
    SettleNumbers,
    Weights,
    forget_weights,
    pipeline,
    run_passes,
    with_weights,
)
from ontrain.session import OLDEST, save_model, served_model

__all__ = ["Optimisation", "counted"]

_OF_UPSTREAM: Mapping[str, tuple[str, ...]] = {
    "AttentionFusion": ("FuseAttention",),
    "CastElimination": ("RemoveIdentities", "Simplify"),
    "CommonSubexpressionElimination": ("ShareCommonSubexpressions",),
    "ConstantFolding": ("FoldWeights",),
    "ConvActivationFusion": ("FuseConvActivations",),
    "ConvAddActivationFusion": ("FuseConvActivations",),
    "ConvAddFusion": ("FoldChannelArithmetic",),
    "ConvBNFusion": ("FoldBatchNormalization",),
    "ConvMulFusion": ("FoldChannelArithmetic",),
    "DynamicQuantizeMatMulFusion": ("FuseIntegerProducts",),
    "EliminateIdentity": ("RemoveIdentities", "Simplify"),
    "ExpandElimination": ("RemoveIdentities", "Simplify"),
    "FastGeluFusion": ("FuseActivations",),
    "GeluFusion": ("FuseActivations",),
    "GemmActivationFusion": ("FuseLinearActivations",),
    "LayerNormFusion": ("FuseLayerNormalization",),
    "MatMulAddFusion": ("FuseMatMulAdd", "LinearToGemm"),
    "MatMulIntegerToFloatFusion": ("FuseIntegerProducts",),
    "NoopElimination": ("RemoveIdentities", "Simplify"),
    "QuickGeluFusion": ("FuseActivations",),
    "SimplifiedLayerNormFusion": ("FuseRMSNormalization",),
    "UnsqueezeElimination": ("RemoveIdentities", "Simplify"),
}
"""For onnxruntime's optimisers the passes that do their work here."""
_OWN: tuple[Pass, ...] = (SettleNumbers(), FoldWeights())
"""Passes for sessions alone: a file keeps the names of its weights."""
_BASIC, _EXTENDED = 1, 2
_WITH_FUSIONS = 20
"""The opset from which the standard has the operators that fusions make."""


@dataclass(frozen=True)
class Optimisation:
    """Which passes a session runs, and where it writes what they make of the file.

    Attributes:
        level: 0 for none, 1 for those that only remove and fold, 2 for fusions, too.
        disabled: names of passes to leave out.
        path: of the optimised file; "" for none.
        data: name of a file beside it for its weights; "" for none.
        smallest: weights of fewer bytes stay in the optimised file.
        in_ort_format: whether the optimised file is to be in onnxruntime's own format.
    """

    level: int = _EXTENDED
    disabled: frozenset[str] = frozenset()
    path: str = ""
    data: str = ""
    smallest: int = 1024
    in_ort_format: bool = False

    @classmethod
    def of(cls, options: Any, disabled_optimizers: Iterable[str] | None) -> Optimisation:
        """Return what onnxruntime's or ontrain's options ask for.

        Args:
            options: of the session; onnxruntime's layouts belong to the level of fusions.
            disabled_optimizers: names of passes, or of onnxruntime's optimisers. Optimisers that have no like here are
                off anyway.
        """
        names = [*(disabled_optimizers or ()), *config_entry(options, DISABLED).split(";")]
        known = {graph_pass.name for graph_pass in (*_OWN, *pipeline("forward"), *pipeline("inference"))}
        disabled = {name for name in names if name in known}
        disabled.update(own for name in names for own in _OF_UPSTREAM.get(name, ()))
        if options is None:
            return cls(disabled=frozenset(disabled))
        level = min(int(options.graph_optimization_level), _EXTENDED)
        path = str(options.optimized_model_filepath or "")
        if not path:
            return cls(level, frozenset(disabled))
        data, smallest = config_entry(options, EXTERNAL_NAME), config_entry(options, EXTERNAL_LEAST) or cls.smallest
        if data and not str(smallest).isdecimal():
            error = OptionError(f"{EXTERNAL_LEAST} is {smallest!r}", way_out="give a number of bytes")
            raise also(error, upstream("Fail"))
        least = int(smallest) if data else cls.smallest
        return cls(level, frozenset(disabled), path, data, least, wants_ort_format(options, path))

    def runs(self, graph_pass: Pass) -> bool:
        """Whether a pass belongs to the level, and is not disabled."""
        return graph_pass.level <= self.level and graph_pass.name not in self.disabled

    def off(self) -> tuple[str, ...]:
        """Return the names of the passes that plans leave out."""
        return tuple(graph_pass.name for graph_pass in pipeline("forward") if not self.runs(graph_pass))

    def load(self, filed: FiledModel, model: ir.Model) -> tuple[FiledModel, ir.Model, list[PassReport]]:
        """Optimise a file's graph, and write it where that is asked for.

        Args:
            filed: the file; its weights' values are shared, and left.
            model: its graph with the types of all values.

        Returns:
            The file as optimised, its graph with types, and what each pass did: the file as it was where the passes do
            nothing that plans do not do, too, or where the graph has branches or loops.
        """
        if any(subgraphs(node) for node in model.graph):
            self.write(filed, model, filed.initial)
            return filed, model, []
        tensors = {name: TorchTensor(tensor, name=name) for name, tensor in filed.initial.items()}
        weights = with_weights(model, tensors)
        passes = [graph_pass for graph_pass in (*_OWN, *pipeline("inference")) if self.runs(graph_pass)]
        rewritten, reports = run_passes(model, passes, stage="inference")
        tidying = {graph_pass.name for graph_pass in passes if graph_pass.tidies}
        is_changed = any(report.changed for report in reports if report.name not in tidying)
        if not is_changed and not self.path:
            forget_weights(model)
            return filed, model, reports
        optimised = weights.settle(rewritten)
        initial = _values(weights, tensors, filed.initial)
        self.write(filed, optimised, initial)
        if not is_changed:
            forget_weights(model)
            return filed, model, reports
        names = filed.input_names
        return FiledModel(optimised, initial, names, filed.opset, filed.name), optimised, reports

    def write(self, filed: FiledModel, model: ir.Model, initial: Mapping[str, torch.Tensor]) -> None:
        """Write a graph with its weights, at the file's opset or the first that has what fusions make."""
        if not self.path:
            return
        state = {name: TorchTensor(tensor, name=name) for name, tensor in initial.items()}
        version = max(filed.opset, _WITH_FUSIONS if self.level >= _EXTENDED else OLDEST)
        with contextlib.suppress(GraphError):  # an operator that only newer ones have
            self._save(_handed_through(served_model(model, state, version), filed.raw.graph))
            return
        self._save(_handed_through(served_model(model, state, max(version, OPSET)), filed.raw.graph))

    def copy(self, proto: onnx.ModelProto) -> None:
        """Write a file as it is: one that runs in steps."""
        if self.path:
            self._save(ir.from_proto(proto))

    def _save(self, model: ir.Model) -> None:
        if self.in_ort_format:
            Path(self.path).write_bytes(as_ort(ir.to_proto(model).SerializeToString()))
            return
        try:
            save_model(model, self.path, data_name=self.data, smallest=self.smallest)
        except OptionError as error:
            raise also(error, upstream("Fail")) from error


def _handed_through(model: ir.Model, graph: ir.Graph) -> ir.Model:
    """The model with outputs that are inputs or other outputs as the file has them; its graph has copies there."""
    before = {value.name: value for value in reversed(model.graph.inputs)}
    for i, (value, stated) in enumerate(zip(list(model.graph.outputs), graph.outputs, strict=True)):
        source, copy = before.get(stated.name), value.producer()
        if source is not None and copy is not None and value.name != stated.name:
            model.graph.outputs[i] = source
            if not value.uses():
                model.graph.remove(copy)
        else:
            before[value.name] = value
    return model


def counted(reports: Iterable[PassReport]) -> dict[str, int]:
    """Return how many places each pass changed, of those that changed any."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts[report.name] += report.changed
    return {name: count for name, count in counts.items() if count}


def _values(
    weights: Weights, before: Mapping[str, TorchTensor], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The weights of an optimised graph: those of the file where they are the same."""
    return {
        name: tensors[name] if value is before.get(name) else to_tensor(np.array(value.numpy()))
        for name, value in weights.values.items()
    }
