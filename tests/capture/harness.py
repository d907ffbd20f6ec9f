"""Running a captured graph and counting its operators."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator

from ontrain.functions import inline_all
from ontrain.graph import specialise, updates_of
from ontrain.graph.evaluator_corrections import CORRECTIONS


def run_captured(captured, args=(), kwargs=None):
    """Return (the module's result, next values of buffers) from onnx's own evaluator, for a call's shapes."""
    tensors = captured.flatten(args, kwargs)
    feeds = {name: tensor.detach().numpy() for name, tensor in zip(captured.input_names, tensors, strict=True)}
    state = {**captured.parameters, **captured.buffers}
    model = inline_all(specialise(captured.model, {name: array.shape for name, array in feeds.items()}))
    feeds.update({name: tensor.detach().numpy() for name, tensor in state.items()})
    results = ReferenceEvaluator(ir.to_proto(model), new_ops=CORRECTIONS).run(None, feeds)
    values = [torch.from_numpy(np.array(array)) for array in results]
    count = captured.output_spec.tensors()
    updates = {updates_of(v): tensor for v, tensor in zip(model.graph.outputs[count:], values[count:], strict=True)}
    return captured.unflatten(values[:count]), updates


def operators(captured):
    """Return how often each operator occurs."""
    return Counter(node.op_type for node in captured.model.graph)


def nodes(captured, op_type):
    return [node for node in captured.model.graph if node.op_type == op_type]
