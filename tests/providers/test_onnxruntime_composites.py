"""What onnxruntime is given in place of a composite's body gives the same numbers, in fewer or faster nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from ontrain.functions import inline_all
from ontrain.graph import Builder, new_model
from ontrain.providers.onnxruntime.rewriting import prepare


def model_of(build, arrays):
    inputs = [
        ir.Value(name=f"x{i}", shape=ir.Shape(a.shape), type=ir.TensorType(ir.DataType.from_numpy(a.dtype)))
        for i, a in enumerate(arrays)
    ]
    model = new_model(inputs, "composite")
    outputs = build(Builder(model.graph), *inputs)
    model.graph.outputs.extend(outputs if isinstance(outputs, tuple) else (outputs,))
    return model


def run(model, arrays):
    model.graph.opset_imports.pop("ontrain", None)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    return session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})


def floats(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def conv(pads, strides, dilations, mask=(1, 1, 1)):
    def build(op, dy, x, w):
        settings = {
            "pads": list(pads),
            "strides": list(strides),
            "dilations": list(dilations),
            "output_mask": list(mask),
        }
        outputs = op.composite("ConvGrad", dy, x, w, outputs=3, **settings)
        return tuple(v for v, wanted in zip(outputs, mask, strict=True) if wanted)

    return build


def pooled(kernel, strides):
    def build(op, x, dy):
        _, places = op.MaxPool(x, outputs=2, kernel_shape=list(kernel), strides=list(strides))
        return op.composite("MaxPoolGrad", dy, places, shape=[2, 3, 6, 6])

    return build


def embedded(ids):
    return lambda op, dy: op.composite("EmbeddingGrad", dy, op.const(np.array(ids)), rows=9)


def entropy(reduction):
    return lambda op, dloss, log_prob, labels: op.composite(
        "SoftmaxCrossEntropyLossGrad", dloss, log_prob, labels, reduction=reduction
    )


LABELS = np.array([[0, 3], [4, 4], [1, 0]])
CASES = {
    "convolution": (conv([1] * 4, [1, 1], [1, 1]), [floats(2, 4, 5, 6), floats(2, 3, 5, 6), floats(4, 3, 3, 3)]),
    "strides that leave a rest": (
        conv([0, 1, 2, 0], [2, 3], [1, 1]), [floats(2, 4, 4, 4), floats(2, 3, 8, 10), floats(4, 3, 3, 2)],
    ),
    "dilated, without bias": (
        conv([2] * 4, [1, 1], [2, 2], (1, 1, 0)), [floats(2, 4, 5, 5), floats(2, 3, 5, 5), floats(4, 3, 3, 3)],
    ),
    "a kernel of one": (
        conv([0] * 4, [1, 1], [1, 1], (0, 1, 0)), [floats(3, 2, 4, 4), floats(3, 5, 4, 4), floats(2, 5, 1, 1)],
    ),
    "one axis": (conv([1, 1], [2], [1]), [floats(2, 4, 4), floats(2, 3, 8), floats(4, 3, 3)]),
    "windows side by side": (pooled([2, 2], [2, 2]), [floats(2, 3, 6, 6), floats(2, 3, 3, 3)]),
    "windows apart": (pooled([2, 1], [3, 2]), [floats(2, 3, 6, 6), floats(2, 3, 2, 3)]),
    "positions": (embedded([0, 1, 2, 3]), [floats(4, 5)]),
    "one row": (embedded([[2, 2], [2, 2]]), [floats(2, 2, 5)]),
    "mean": (entropy("mean"), [np.array(0.7, np.float32), floats(3, 5, 2), LABELS]),
    "sum": (entropy("sum"), [np.array(0.7, np.float32), floats(3, 5, 2), LABELS]),
    "each row": (entropy("none"), [floats(3, 2), floats(3, 5, 2), LABELS]),
}  # fmt: skip
LEFT_OUT = {"convolution": "Conv", "positions": "ScatterElements", "one row": "ScatterElements", "mean": "Equal",
            "windows side by side": "ScatterElements", "windows apart": "ScatterElements"}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_faster_form_equals_the_body(case):
    build, arrays = CASES[case]
    prepared = prepare(model_of(build, arrays))
    for actual, expected in zip(run(prepared, arrays), run(inline_all(model_of(build, arrays)), arrays), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    assert LEFT_OUT.get(case) not in [node.op_type for node in prepared.graph]


OTHERS = {
    "groups": lambda op, dy, x, w: op.composite(
        "ConvGrad", dy, x, w, outputs=3, pads=[1] * 4, strides=[1, 1], dilations=[1, 1], group=2
    ),
    "overlapping windows": pooled([3, 3], [1, 1]),
    "a padding row": lambda op, dy: op.composite(
        "EmbeddingGrad", dy, op.const(np.arange(4)), rows=9, padding_idx=0
    ),
}  # fmt: skip
GIVEN = {
    "groups": [floats(2, 4, 5, 5), floats(2, 6, 5, 5), floats(4, 3, 3, 3)],
    "overlapping windows": [floats(2, 3, 6, 6), floats(2, 3, 4, 4)],
    "a padding row": [floats(4, 5)],
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_forms_keep_the_body(case):
    actual, expected = (
        [node.op_type for node in how(model_of(OTHERS[case], GIVEN[case])).graph] for how in (prepare, inline_all)
    )
    assert actual == expected
