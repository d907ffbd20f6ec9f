"""The operators of ai.onnx.ml that standard operators can say: preparation of features, and linear models.

Source: https://onnx.ai/onnx/operators/index_classes.html; where it is silent, onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import NoBodyError, composite
from ontrain.functions.scores import of_two_classes, transformed
from ontrain.graph import Builder, static_dims
from ontrain.operators import ML, Value

__all__: list[str] = []

Types = list[tuple[ir.DataType, ir.Shape]]


def _rows(x: Any) -> Any:
    return x.shape[0] if len(x.shape) > 1 else 1


def _single(inputs: list[Any], **_: object) -> Types:
    return [(ir.DataType.FLOAT, inputs[0].shape)]


def _floats(values: Sequence[float]) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32)


def _wide(op: Builder, x: Value) -> Value:
    return op.Cast(x, to=ir.DataType.FLOAT)


@composite("Scaler", domain=ML, infer=_single)
def scaler(op: Builder, x: Value, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> Value:
    """(x − offset) · scale, each one number or one per feature."""
    return (_wide(op, x) - op.const(_floats(offset))) * op.const(_floats(scale))


@composite("Normalizer", domain=ML, infer=_single)
def normalizer(op: Builder, x: Value, *, norm: str = "MAX") -> Value:
    """Rows divided by their largest element, the sum of absolute values (L1) or the length (L2); none by zero."""
    wide = _wide(op, x)
    if norm == "L2":
        return wide / op.Sqrt(_not_zero(op, op.ReduceSumSquare(wide, [-1], keepdims=1)))
    size = op.ReduceL1(wide, [-1], keepdims=1) if norm == "L1" else op.ReduceMax(wide, [-1], keepdims=1)
    return wide / _not_zero(op, size)


def _not_zero(op: Builder, x: Value) -> Value:
    return op.Where(op.Equal(x, 0.0), 1.0, x)


@composite("Binarizer", domain=ML, like=[0])
def binarizer(op: Builder, x: Value, *, threshold: float = 0.0) -> Value:
    """One where x lies above the threshold, else zero."""
    limit = op.const(np.float32(threshold))
    above = op.Greater(x if x.dtype.is_floating_point() else _wide(op, x), op.Cast(limit, to=x.dtype)
                       if x.dtype.is_floating_point() else limit)  # fmt: skip
    return op.Cast(above, to=x.dtype)


@composite("Imputer", domain=ML, like=[0])
def imputer(
    op: Builder, x: Value,
    *, imputed_value_floats: Sequence[float] = (), imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0, replaced_value_int64: int = 0,
) -> Value:  # fmt: skip
    """x with one value replaced by another, which is one number or one per feature."""
    floats = x.dtype.is_floating_point()
    new = _floats(imputed_value_floats) if floats else np.asarray(imputed_value_int64s, np.int64)
    if floats and np.isnan(replaced_value_float):
        gone = op.IsNaN(x)
    else:
        gone = op.Equal(x, op.const(replaced_value_float if floats else replaced_value_int64, x.dtype))
    return op.Where(gone, op.const(new, x.dtype), x)


def _extracted(inputs: list[Any]) -> Types:
    x, places = inputs
    count = 1 if places.shape is not None else None
    for dim in places.shape or ():
        count = count * dim if isinstance(dim, int) and isinstance(count, int) else None
    lead = x.shape[:-1] if len(x.shape) > 1 else [1]
    return [(x.dtype, ir.Shape([*lead, count]))]


@composite("ArrayFeatureExtractor", domain=ML, infer=_extracted)
def array_feature_extractor(op: Builder, x: Value, places: Value) -> Value:
    """The elements at these places of the last axis; as in onnxruntime, none is counted from its end.

    Of no places, as a batch without rows has them, there are no elements, where onnxruntime refuses.
    """
    wide = op.Unsqueeze(x, [0]) if len(x.shape) == 1 else x
    beyond = op.const(np.int64(static_dims(wide)[-1]))  # which Gather refuses
    forward = op.Where(op.Less(places, op.const(np.int64(0))), beyond, places)
    return op.Gather(wide, op.Reshape(forward, [-1]), axis=-1)


def _vectorized(inputs: list[Any], *, inputdimensions: Sequence[int] = ()) -> Types:
    widths = list(inputdimensions) or [x.shape[-1] for x in inputs]
    total = sum(widths) if all(isinstance(width, int) for width in widths) else None
    return [(ir.DataType.FLOAT, ir.Shape([_rows(inputs[0]), total]))]


@composite("FeatureVectorizer", domain=ML, infer=_vectorized)
def feature_vectorizer(op: Builder, *xs: Value, inputdimensions: Sequence[int] = ()) -> Value:
    """Rows side by side, each cut or filled with zeros to its number of features."""
    parts = []
    for i, x in enumerate(xs):
        part = _wide(op, op.Unsqueeze(x, [0]) if len(x.shape) == 1 else x)
        part = op.Reshape(part, [_rows(x), -1]) if len(part.shape) > 2 else part
        have = static_dims(part)[-1]
        want = inputdimensions[i] if i < len(inputdimensions) else have
        if want < have:
            part = op.Slice(part, [0], [want], [1])
        elif want > have:
            part = op.Pad(part, [0, 0, 0, want - have])
        parts.append(part)
    return op.Concat(*parts, axis=-1)


def _one_hot_types(
    inputs: list[Any], *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (), **_: object
) -> Types:
    width = len(cats_int64s) or len(cats_strings)
    return [(ir.DataType.FLOAT, ir.Shape([*inputs[0].shape, width]))]


@composite("OneHotEncoder", domain=ML, infer=_one_hot_types)
def one_hot_encoder(
    op: Builder, x: Value, *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (), zeros: int = 1
) -> Value:
    """A new last axis with a one at the category's place; a category that is not listed has only zeros."""
    if cats_strings or x.dtype == ir.DataType.STRING:
        raise NoBodyError("categories that are strings", "map them to numbers with a LabelEncoder")
    if not zeros:
        raise NoBodyError("categories that are not listed are to be refused (zeros=0)", "set zeros=1")
    whole = op.Unsqueeze(op.Cast(x, to=ir.DataType.INT64), [len(x.shape)])
    return _wide(op, op.Equal(whole, op.const(np.asarray(cats_int64s, np.int64))))


def _regressor_types(inputs: list[Any], *, targets: int = 1, **_: object) -> Types:
    return [(ir.DataType.FLOAT, ir.Shape([_rows(inputs[0]), targets]))]


@composite("LinearRegressor", domain=ML, infer=_regressor_types)
def linear_regressor(
    op: Builder, x: Value,
    *, coefficients: Sequence[float] = (), intercepts: Sequence[float] = (), targets: int = 1,
    post_transform: str = "NONE",
) -> Value:  # fmt: skip
    """x times the coefficients [targets, features], plus the intercepts."""
    weight, bias = _stated(op, x, coefficients, intercepts, targets)
    return linear_regression(op, x, weight, bias, targets=targets, post_transform=post_transform)


@composite("LinearRegression", infer=_regressor_types)
def linear_regression(
    op: Builder, x: Value, weight: Value, bias: Value | None = None, *, targets: int = 1, post_transform: str = "NONE"
) -> Value:
    """A LinearRegressor whose coefficients [targets, features] and intercepts [targets] are values."""
    scores = _scores(op, x, weight, bias)
    # As in onnxruntime, one target has nothing to be compared with.
    return scores if targets == 1 and post_transform != "PROBIT" else transformed(op, scores, post_transform)


def _classifier_types(
    inputs: list[Any], *, classlabels_ints: Sequence[int] = (), classlabels_strings: Sequence[str] = (), **_: object
) -> Types:
    rows, classes = _rows(inputs[0]), len(classlabels_ints) or len(classlabels_strings)
    label = ir.DataType.STRING if classlabels_strings else ir.DataType.INT64
    return [(label, ir.Shape([rows])), (ir.DataType.FLOAT, ir.Shape([rows, classes]))]


@composite("LinearClassifier", domain=ML, infer=_classifier_types)
def linear_classifier(
    op: Builder, x: Value,
    *, coefficients: Sequence[float] = (), intercepts: Sequence[float] = (), classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (), multi_class: int = 0, post_transform: str = "NONE",
) -> tuple[Value, Value]:  # fmt: skip
    """The label of the largest score, and the scores."""
    if classlabels_strings:
        raise NoBodyError("class labels that are strings", "give it whole numbers, and a LabelEncoder behind it")
    weight, bias = _stated(op, x, coefficients, intercepts, max(len(intercepts), 1))
    return linear_classification(op, x, weight, bias, classlabels_ints=classlabels_ints, post_transform=post_transform)


@composite("LinearClassification", infer=_classifier_types)
def linear_classification(
    op: Builder, x: Value, weight: Value, bias: Value | None = None,
    *, classlabels_ints: Sequence[int] = (), post_transform: str = "NONE",
) -> tuple[Value, Value]:  # fmt: skip
    """A LinearClassifier whose coefficients [classes, features] and intercepts [classes] are values.

    The coefficients of two classes may be those of the second alone.
    """
    scores = _scores(op, x, weight, bias)
    if weight.shape[0] == 1 and len(classlabels_ints) == 2:
        place = op.Cast(op.Greater(op.Squeeze(scores, [1]), 0.0), to=ir.DataType.INT64)
        scores = of_two_classes(op, scores, post_transform)
    else:
        place = op.ArgMax(scores, axis=-1, keepdims=0)
        scores = transformed(op, scores, post_transform)
    return op.Gather(op.const(np.asarray(classlabels_ints, np.int64)), place), scores


def _stated(
    op: Builder, x: Value, coefficients: Sequence[float], intercepts: Sequence[float], targets: int
) -> tuple[Value, Value | None]:
    numbers, features = _floats(coefficients), x.shape[-1]
    # Of more coefficients than the input has features onnxruntime takes the first; its own example has such a file.
    if isinstance(features, int) and 0 < targets * features < numbers.size:
        numbers = numbers[: targets * features]
    weight = op.const(numbers.reshape(targets, -1))
    return weight, op.const(_floats(intercepts)) if len(intercepts) else None


def _scores(op: Builder, x: Value, weight: Value, bias: Value | None) -> Value:
    rows = _wide(op, op.Unsqueeze(x, [0]) if len(x.shape) == 1 else x)
    return op.Gemm(rows, weight, bias, transB=1)
