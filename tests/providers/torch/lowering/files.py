"""Files of one operator, run by stock onnxruntime and by TorchExecutionProvider, and the calls of the latter's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import ontrain

__all__ = ["assert_as_onnxruntime", "calls", "calls_by_plan", "file_of"]

Arrays = Mapping[str, np.ndarray]


def file_of(
    nodes: Sequence[onnx.NodeProto], fed: Arrays, weights: Arrays, outputs: Sequence[str], opset=17, microsoft=None,
    result=onnx.TensorProto.FLOAT,
) -> bytes:  # fmt: skip
    """A file that computes outputs of nodes from what is fed, whose sizes are fixed, and from weights."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in fed.items()
    ]  # fmt: skip
    results = [helper.make_tensor_value_info(name, result, None) for name in outputs]
    held = [numpy_helper.from_array(a, name) for name, a in weights.items()]
    graph = helper.make_graph(list(nodes), "operator", inputs, results, held)
    opsets = {"": opset} if microsoft is None else {"": opset, "com.microsoft": microsoft}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*entry) for entry in opsets.items()], ir_version=9
    )
    return model.SerializeToString()


def assert_as_onnxruntime(model: bytes, fed: Arrays, **close: float) -> ontrain.InferenceSession:
    """Compare both, twice with the same memory, and return ontrain's session."""
    wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, dict(fed))
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    for _ in range(2):
        for a, b in zip(session.run(None, dict(fed)), wanted, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, **close)
    return session


def calls(session: ontrain.InferenceSession) -> list[str]:
    """The names of the functions that the session's one plan calls."""
    (names,) = calls_by_plan(session)
    return names


def calls_by_plan(session: ontrain.InferenceSession) -> list[list[str]]:
    """The names of the functions that each plan of the session calls."""
    plans = session._own._session._planner.plans.values()
    return [[getattr(call.fn, "__name__", str(call.fn)) for call in plan.executable.current._program] for plan in plans]
