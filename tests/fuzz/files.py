"""Valid files to damage: one of each operator in the project's tables of samples, and models of every kind."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.autodiff.samples import SAMPLES, ZEROS, Sample
from tests.capture.onnx_file.models import KINDS, File, node, value

__all__ = ["SOURCES", "make", "outer_types"]

Rng = np.random.Generator
OPSET = 23
_LOSS = "loss"


def _dtype(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _of_sample(sample: Sample, rng: Rng) -> File:
    """A file whose one node is the sample; its operands are inputs or initializers by chance."""
    inputs, stored, names, batch = [], [], [], {}
    for i, array in enumerate(sample.draw(rng)):
        if array is None:
            names.append("")
            continue
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        names.append(f"x{i}")
        if rng.random() < 0.5 and array.size:
            inputs.append(value(names[-1], list(array.shape), _dtype(array)))
            batch[names[-1]] = array
        else:
            stored.append(numpy_helper.from_array(array, names[-1]))
    if not inputs:
        inputs.append(value("unused", [1]))
        batch["unused"] = np.zeros(1, np.float32)
    outputs = [f"y{i}" for i in range(sample.outputs)]
    attributes = {key: list(v) if isinstance(v, tuple) else v for key, v in sample.attributes.items()}
    operation = helper.make_node(sample.op_type, names, outputs, domain=sample.domain, **attributes)
    weight = numpy_helper.from_array(np.ones(1, np.float32), "weight")
    nodes = [
        operation,
        node("Cast", "y0", "f", to=1),
        node("Mul", "f weight", "g"),
        node("ReduceMean", "g", _LOSS, keepdims=0),
    ]
    result = value("y0", None)
    result.type.tensor_type.ClearField("elem_type")
    kinds = outer_types(sample, batch, stored)
    result.type.tensor_type.elem_type = kinds.get("y0", TensorProto.FLOAT)
    graph = helper.make_graph(nodes, "sample", inputs, [value(_LOSS, []), result], [*stored, weight])
    imports = [helper.make_opsetid("", OPSET)]
    if sample.domain:
        imports.append(helper.make_opsetid(sample.domain, 3 if sample.domain == "ai.onnx.ml" else 1))
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    desc = {
        "inputs": [(v.name, [d.dim_value for d in v.type.tensor_type.shape.dim]) for v in inputs],
        "outputs": [(_LOSS, [], True), ("y0", [])],
    }
    return File(proto, desc, batch)


def outer_types(sample: Sample, batch: dict[str, np.ndarray], stored: list[onnx.TensorProto]) -> dict[str, int]:
    """The element type of the first result where the operator's schema says that it is an operand's, or always one."""
    try:
        schema = onnx.defs.get_schema(sample.op_type, OPSET, sample.domain)
    except onnx.defs.SchemaError:
        return {}
    wanted = schema.outputs[0].type_str
    if wanted.startswith("tensor("):
        return {"y0": TensorProto.DataType.Value(wanted[7:-1].upper())}
    held = {name: _dtype(array) for name, array in batch.items()} | {t.name: t.data_type for t in stored}
    for i in range(len(sample.inputs)):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if formal.type_str == wanted and f"x{i}" in held:
            return {"y0": held[f"x{i}"]}
    return {}


def integers(rng: Rng) -> File:
    """Integer division, indices that are computed, sizes that are computed."""
    nodes = [
        node("Div", "a b", "q"), node("Mod", "a b", "r"), node("Add", "q r", "s"),
        node("Gather", "table s", "rows"), node("GatherElements", "grid s2", "picked", axis=1),
        node("ReduceSum", "s", "n", keepdims=0), node("Unsqueeze", "s zero", "s2"),
        node("ScatterElements", "grid s2 s2f", "scattered", axis=1), node("Cast", "s2", "s2f", to=1),
        node("ReduceMean", "rows", "l1", keepdims=0), node("ReduceMean", "picked", "l2", keepdims=0),
        node("ReduceMean", "scattered", "l3", keepdims=0), node("Sum", "l1 l2 l3", _LOSS),
    ]  # fmt: skip
    order = [0, 1, 2, 3, 6, 4, 5, 8, 7, 9, 10, 11, 12]
    stored = [
        numpy_helper.from_array(np.array([2, 3, 4], np.int64), "b"), numpy_helper.from_array(np.array([0]), "zero"),
        numpy_helper.from_array(rng.standard_normal((6, 2)).astype(np.float32), "table"),
        numpy_helper.from_array(rng.standard_normal((2, 6)).astype(np.float32), "grid"),
    ]  # fmt: skip
    inputs = [value("a", [3], TensorProto.INT64)]
    graph = helper.make_graph([nodes[i] for i in order], "integers", inputs, [value(_LOSS, [])], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    desc = {"inputs": [("a", [3])], "outputs": [(_LOSS, [], True)]}
    return File(proto, desc, {"a": np.array([1, 2, 3])})


SOURCES: list[Any] = [
    *(functools.partial(_of_sample, sample) for sample in [*SAMPLES, *ZEROS] if isinstance(sample, Sample)),
    *(kind for kind in KINDS.values() for _ in range(6)),
    *(integers for _ in range(12)),
]
"""Functions of a generator that make a file."""


def make(rng: Rng) -> File:
    """A valid file of a kind taken by chance."""
    file: File = SOURCES[int(rng.integers(len(SOURCES)))](rng)
    return file
