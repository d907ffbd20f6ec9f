"""Beside onnxruntime's quantiser: calibration in constant memory, and the errors of a quantised model by node."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ontrain.errors import InputError, OptionError, nearest
from ontrain.files import read_proto
from ontrain.inference.inner_values import exposed
from ontrain.inference.provider_lists import Providers
from ontrain.inference.session import InferenceSession
from ontrain.stock import stock_module

__all__ = ["NodeError", "calibrate", "node_errors"]

Feeds = Mapping[str, Any]
Model = str | os.PathLike[str] | bytes | onnx.ModelProto
_DEQUANTIZED = "_DequantizeLinear_Output"
"""Behind a value's name, the value as onnxruntime's quantiser hands it on."""


@dataclass(frozen=True)
class NodeError:
    """What a quantised model gets wrong in the result of a node.

    Attributes:
        node, operator: of the float model.
        output: the name of the value that is compared.
        decibels: signal-to-noise ratio of the value; infinite where the models agree.
        lost: decibels that the node is below the worst of what it reads. Nodes that lose most are the ones to exclude.
    """

    node: str
    operator: str
    output: str
    decibels: float
    lost: float


def calibrate(
    model: str | os.PathLike[str], reader: Any, path: str | os.PathLike[str], *, method: str = "MinMax",
    op_types: Sequence[str] | None = None, external_data: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Measure the ranges of a model's values sample by sample, and write them for `quantize_static`.

    Between samples only ranges or histograms are kept, so that memory does not grow with the number of samples.
    Afterwards `ontrain.quantization.quantize_static(…, calibration_cache_path=path)` reads the ranges and runs nothing.

    Args:
        model: an ONNX file, best one that `quant_pre_process` wrote.
        reader: an `ontrain.quantization.CalibrationDataReader`, or any iterable of feeds by input name.
        path: where the ranges are written, as JSON.
        method: a name in `ontrain.quantization.CalibrationMethod`: MinMax, Entropy, Percentile or Distribution.
        op_types: operators whose values are measured; all by default.
        external_data: the model is larger than 2 GiB.
        options: onnxruntime's for the method, such as `percentile=99.99`, `num_bins=2048`, `symmetric=True`.

    Returns:
        onnxruntime's `TensorsData`: the ranges by name.

    Raises:
        InputError: there is no such file, or no samples.
        OptionError: there is no such method.
    """
    quantization = stock_module("onnxruntime.quantization")
    methods = quantization.CalibrationMethod.__members__
    if method not in methods:
        raise OptionError(f"there is no calibration method {method!r}", way_out=f"nearest: {nearest(method, methods)}")
    if not Path(model).is_file():
        raise InputError(f"there is no model file {os.fspath(model)!r}")
    with tempfile.TemporaryDirectory(prefix="ontrain.calibration.") as folder:
        calibrater = quantization.create_calibrator(
            Path(model), op_types, augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=methods[method], use_external_data_format=external_data, extra_options=options,
        )  # fmt: skip
        count = 0
        for feeds in _samples(reader):
            calibrater.collect_data(_Single(feeds))
            count += 1
        if not count:
            raise InputError("there are no samples to calibrate with", way_out="give a reader that has not been read")
        ranges = calibrater.compute_data()
    stock_module("onnxruntime.quantization.calibrate").save_tensors_data(ranges, path)
    return ranges


def node_errors(
    model: Model, quantized: Model, reader: Any, *, providers: Providers = None
) -> list[NodeError]:  # fmt: skip
    """Compare a quantised model with the float model it was made of, node by node, over samples.

    Both models are run with their inner values as outputs, so that onnxruntime fuses nothing: what its fused kernels
    add, such as sums of 16 bits that saturate without `reduce_range`, is not seen. Only sums of squares are kept
    between samples.

    Args:
        model: the one that was given to the quantiser.
        quantized: what it wrote. Values are compared by name, which a model in QDQ format keeps.
        reader: an `ontrain.quantization.CalibrationDataReader`, or any iterable of feeds by input name.
        providers: that run both.

    Returns:
        The nodes whose result is there in both models, the one that loses most first. Its names go into
        `nodes_to_exclude` of `quantize_static`.

    Raises:
        InputError: no such file, no samples, or the models have no inner value in common.
    """
    protos = [read_proto(os.fspath(m) if isinstance(m, os.PathLike) else m)[0] for m in (model, quantized)]
    twins = _twins(*(proto.graph for proto in protos))
    if not twins:
        raise InputError(
            "the models have no inner value in common", reason="the second one is no quantised form of the first",
            way_out="quantise to QuantFormat.QDQ, which keeps the names",
        )  # fmt: skip
    names = [[*twins], [*twins.values()]]
    sessions = [_inner_session(proto, inner, providers) for proto, inner in zip(protos, names, strict=True)]
    ratios = {name: _Ratio() for name in twins}
    count = 0
    for feeds in _samples(reader):
        exact, rounded = (session.run(inner, feeds) for session, inner in zip(sessions, names, strict=True))
        for ratio, right, wrong in zip(ratios.values(), exact, rounded, strict=True):
            ratio.add(right, wrong)
        count += 1
    if not count:
        raise InputError("there are no samples to compare with", way_out="give a reader that has not been read")
    decibels = {name: ratio.decibels for name, ratio in ratios.items() if ratio.is_known}
    return sorted(_losses(protos[0].graph, decibels), key=lambda error: -error.lost)


def _twins(graph: onnx.GraphProto, quantized: onnx.GraphProto) -> dict[str, str]:
    """The inner values that both graphs have, by their names in the first one."""
    produced = {name for node in quantized.node for name in node.output}
    twins = {}
    for name in (name for node in graph.node for name in node.output if name):
        # What later nodes read is the value behind quantisation, which a clipping that was left out may be part of.
        twin = next((twin for twin in (name + _DEQUANTIZED, name) if twin in produced), None)
        if twin is not None:
            twins[name] = twin
    return twins


def _losses(graph: onnx.GraphProto, decibels: Mapping[str, float]) -> Iterator[NodeError]:
    """What each node loses of what it reads."""
    reach: dict[str, float] = {}
    for node in graph.node:  # in order, so that what a node reads is there
        before = min((reach.get(value, math.inf) for value in node.input), default=math.inf)
        for name in node.output:
            # A value that the quantiser made part of another is as good as what it is made of.
            reach[name] = decibels.get(name, before)
            if name in decibels:
                lost = 0.0 if math.isinf(decibels[name]) else min(before, _EXACT) - decibels[name]
                yield NodeError(node.name, node.op_type, name, decibels[name], lost)


class _Ratio:
    """A value's squares and those of its error, added up over samples."""

    def __init__(self) -> None:
        self.signal, self.noise, self.is_known = 0.0, 0.0, False

    def add(self, right: Any, wrong: Any) -> None:
        """Add a sample's, if the value is of floating-point numbers."""
        if not (_is_float(right) and _is_float(wrong)):
            return
        exact, self.is_known = np.asarray(right, np.float64), True
        self.signal += float(np.square(exact).sum())
        self.noise += float(np.square(exact - np.asarray(wrong, np.float64)).sum())

    @property
    def decibels(self) -> float:
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


_EXACT = 150.0
"""Decibels of single precision: what values that are equal to the bit are taken for."""


def _inner_session(proto: onnx.ModelProto, names: Iterable[str], providers: Providers) -> InferenceSession:
    """A session that has inner values as outputs, too."""
    there = {value.name for value in proto.graph.output}
    return InferenceSession(exposed(proto, [name for name in names if name not in there]), None, providers)


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


class _Single:
    """A reader of one sample."""

    def __init__(self, feeds: Feeds) -> None:
        self._left: Feeds | None = feeds

    def get_next(self) -> Feeds | None:
        feeds, self._left = self._left, None
        return feeds


def _samples(reader: Any) -> Iterator[Feeds]:
    """The feeds of a reader, or of an iterable."""
    get_next = getattr(reader, "get_next", None)
    if get_next is not None:
        yield from iter(get_next, None)
    elif isinstance(reader, Iterable):
        yield from reader
    else:
        raise InputError(
            f"the samples are a {type(reader).__name__}",
            way_out="give a CalibrationDataReader, or an iterable of feeds by input name",
        )
