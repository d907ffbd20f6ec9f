"""Files of one node of ai.onnx.ml, run by onnxruntime and by TorchExecutionProvider."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import ontrain
from ontrain.stock import stock

ML = "ai.onnx.ml"


def model_of(op_type, feeds, outputs=("z",), version=3, kinds=(), **attributes):
    """Bytes of a file whose inputs have the dtypes and the ranks of the feeds; `kinds` are those of the outputs."""
    node = helper.make_node(op_type, [f"x{i}" for i in range(len(feeds))], list(outputs), domain=ML, **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{name}_{i}" for i in range(x.ndim - 1)] + [x.shape[-1]]
        )
        for name, x in zip(node.input, feeds, strict=True)
    ]
    known = dict(zip(outputs, kinds, strict=False))
    results = [helper.make_tensor_value_info(name, known.get(name, TensorProto.FLOAT), None) for name in outputs]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    graph = helper.make_graph([node], "one node", inputs, results)
    return helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()


def own(model: bytes) -> ontrain.InferenceSession:
    """A session on TorchExecutionProvider alone."""
    return ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])


def feed(feeds):
    return {f"x{i}": x for i, x in enumerate(feeds)}


def differences(op_type, *feeds, rtol=1e-5, atol=1e-5, **node):
    """What differs between the results of onnxruntime and of ontrain, as texts; none for equal results."""
    model = model_of(op_type, feeds, **node)
    wanted = stock().InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feed(feeds))
    results = own(model).run(None, feed(feeds))
    return [
        f"{op_type} {node}: {result!r} instead of {expected!r}"
        for result, expected in zip(results, wanted, strict=True)
        if result.shape != expected.shape
        or result.dtype != expected.dtype
        or not np.allclose(result, expected, rtol, atol, equal_nan=True)
    ]
