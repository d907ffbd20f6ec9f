"""Support vector machines as arrays: what their attributes say, and the types of their results.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_SVMClassifier.html, and libsvm, whose layout that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.functions.registry import attributes_of
from ontrain.functions.trees import class_count
from ontrain.graph import describe, register_inference
from ontrain.operators import ML

__all__ = ["Machine", "machine_of", "pairs"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Machine:
    """A support vector machine.

    Attributes:
        kernel: LINEAR, POLY, RBF or SIGMOID.
        gamma: the kernel's factor.
        shift: what the kernel adds to a product.
        degree: of POLY.
        vectors: support vectors [vectors, features]; None if rows are multiplied by the weights themselves.
        weights: of each vector in each score, [vectors, scores], or of each feature, [features, scores].
        rho: added to each score, or one number for all.
    """

    kernel: str
    gamma: float
    shift: float
    degree: float
    vectors: Array | None
    weights: Array
    rho: Array


def machine_of(node: ir.Node) -> Machine:
    """Return what an SVMClassifier or SVMRegressor says.

    Raises:
        GraphError: its attributes do not fit one another.
    """
    a = attributes_of(node, {"kernel_type": "LINEAR", "rho": (0.0,), "kernel_params": (), "coefficients": ()})
    gamma, shift, degree = a["kernel_params"] or (0.0, 0.0, 3.0)
    coefficients, rho = np.asarray(a["coefficients"], np.float32), np.asarray(a["rho"], np.float32)
    try:
        if node.op_type == "SVMRegressor":
            count = int(a.get("n_supports", 0))
            vectors = _vectors(a, count) if count else None
            weights = coefficients.reshape(-1, 1)
        else:
            sizes = np.asarray(a.get("vectors_per_class", ()), np.int64)
            if len(sizes) == 1:
                raise ValueError("its support vectors are all of one class, which there is no other to tell from")
            vectors = _vectors(a, int(sizes.sum())) if len(sizes) else None
            weights = _paired(coefficients, sizes) if len(sizes) else coefficients.reshape(class_count(a), -1).T
    except ValueError as error:
        raise GraphError(
            f"the attributes of {node.op_type} do not fit one another", node=describe(node), reason=str(error)
        ) from error
    kernel = "LINEAR" if vectors is None else str(a["kernel_type"])  # as in onnxruntime
    return Machine(kernel, gamma, shift, degree, vectors, np.ascontiguousarray(weights), rho)


def _vectors(a: dict[str, Any], count: int) -> Array:
    return np.asarray(a.get("support_vectors", ()), np.float32).reshape(count, -1)


def pairs(classes: int) -> list[tuple[int, int]]:
    """Return the pairs of classes in the order of their scores."""
    return [(i, j) for i in range(classes) for j in range(i + 1, classes)]


def _paired(coefficients: Array, sizes: Array) -> Array:
    """The weight of each support vector in the score of each pair of classes.

    A vector has a coefficient for each other class, in the order of the classes.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    table = coefficients.reshape(len(sizes) - 1, len(owner))
    weights = np.zeros((len(owner), len(sizes) * (len(sizes) - 1) // 2), np.float32)
    for column, (i, j) in enumerate(pairs(len(sizes))):
        weights[owner == i, column] = table[j - 1, owner == i]
        weights[owner == j, column] = table[i, owner == j]
    return weights


def _classifier_types(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape]]:
    a, x = attributes_of(node, {}), node.inputs[0]
    assert x is not None and x.shape is not None
    rows = x.shape[0] if len(x.shape) > 1 else 1
    label = ir.DataType.STRING if a.get("classlabels_strings") else ir.DataType.INT64
    classes = class_count(a)
    paired = len(a.get("vectors_per_class", ())) and not len(a.get("prob_a", ()))
    width = classes * (classes - 1) // 2 if paired and classes > 2 else classes
    return [(label, ir.Shape([rows])), (ir.DataType.FLOAT, ir.Shape([rows, width]))]


def _regressor_types(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape]]:
    x = node.inputs[0]
    assert x is not None and x.shape is not None
    return [(ir.DataType.FLOAT, ir.Shape([x.shape[0] if len(x.shape) > 1 else 1, 1]))]


register_inference("SVMClassifier", _classifier_types, ML)
register_inference("SVMRegressor", _regressor_types, ML)
