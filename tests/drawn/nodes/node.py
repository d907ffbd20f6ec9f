"""A drawn ONNX node on the torch provider beside stock onnxruntime; some of its inputs are constants of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import ontrain
from tests.drawn.draw import Draw
from tests.drawn.families import Families
from tests.drawn.judge import Tolerance, WrongResult, compare, oracle

__all__ = ["ROUNDED", "Node", "attributes", "judge_node", "node", "stock_session"]

node = Families()
"""Families of nodes: a function of a draw that returns a Node."""

VALUE = Tolerance(2e-4, 2e-5)
ROUNDED = Tolerance(2e-4, 1.0)
"""Of whole numbers that are rounded: a number halfway between two may become either."""
IR_VERSION = 10
VERSIONS = {"com.microsoft": 1, "ai.onnx.ml": 3}


@dataclass(frozen=True)
class Node:
    """A node with its inputs.

    Attributes:
        op_type: of the operator.
        inputs: by position; None where an optional input is left out.
        attributes: by name.
        outputs: how many are asked for.
        opset: of the file.
        domain: of the operator.
        tolerance: of each output.
    """

    op_type: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any]
    outputs: int = 1
    opset: int = 17
    domain: str = ""
    tolerance: Tolerance = VALUE

    def __str__(self) -> str:
        return f"{self.op_type} v{self.opset} {dict(self.attributes)} of {[*map(_shown, self.inputs)]}"


def attributes(**values: Any) -> dict[str, Any]:
    """Attributes without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def judge_node(draw: Draw, family: str, drawn: list[str]) -> None:
    """Run a family's node."""
    case: Node = node[family](draw)
    arrays = {f"x{i}": np.asarray(array) for i, array in enumerate(case.inputs) if array is not None}
    constants = {name for name in arrays if name != "x0" and draw.flag()}
    drawn += [str(case), f"constants {sorted(constants)}"]
    with oracle():
        model = _file(case, arrays, constants)
        feeds = {name: array for name, array in arrays.items() if name not in constants}
        expected = stock_session(model).run(None, feeds)
    actual = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, feeds)
    if len(expected) != len(actual):
        raise WrongResult(f"there are {len(actual)} outputs, not {len(expected)}")
    for i, (reference, output) in enumerate(zip(expected, actual, strict=True)):
        compare(f"output {i}", reference, output, case.tolerance)


def _shown(array: Any) -> Any:
    """The numbers of a small input, the shape of a large one."""
    small = array is None or np.size(array) <= 6
    return np.asarray(array).tolist() if small else np.shape(array)


def stock_session(model: bytes) -> onnxruntime.InferenceSession:
    """A session of onnxruntime's processor provider that prints nothing."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _file(case: Node, arrays: Mapping[str, np.ndarray], constants: set[str]) -> bytes:
    names = [f"x{i}" if f"x{i}" in arrays else "" for i in range(len(case.inputs))]
    while names and not names[-1]:
        names.pop()
    outputs = [f"y{i}" for i in range(case.outputs)]
    graph = helper.make_graph(
        [helper.make_node(case.op_type, names, outputs, domain=case.domain, **case.attributes)],
        "node",
        [_value(name, array) for name, array in arrays.items() if name not in constants],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(arrays[name], name) for name in sorted(constants)],
    )
    opsets = [helper.make_opsetid("", case.opset)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, VERSIONS[case.domain]))
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()


def _value(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
