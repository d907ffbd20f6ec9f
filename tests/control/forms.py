"""Branches and loops of files, specialised, and run by providers and by onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from ontrain.functions import inline_all
from ontrain.graph import rebuild, specialise, verify
from ontrain.providers import get_provider
from tests.control.models import ControlModel

PROVIDERS = ["TorchExecutionProvider", "ReferenceExecutionProvider"]


def specialised(case: ControlModel) -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(case.text))
    verify(rebuild(model))
    static = specialise(model, {name: np.shape(array) for name, array in case.inputs.items()})
    verify(static)
    return static


def run(model: ir.Model, provider: str, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    runtime = get_provider(provider)
    results = runtime.compile(model, runtime.create_state([])).run({v.name: feeds[v.name] for v in model.graph.inputs})
    return {name: np.asarray(value) for name, value in results.items()}


def plain_proto(model: ir.Model) -> onnx.ModelProto:
    plain = inline_all(model)
    verify(plain)
    proto = ir.to_proto(plain)
    del proto.opset_import[1:]
    onnx.checker.check_model(proto, full_check=True)
    return proto


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def nothing(**_: Any) -> None:
    raise AssertionError("not computed")
