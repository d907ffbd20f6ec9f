"""An attention made again has its attributes, its mask and its outputs, and adds what it is told to."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model
from ontrain.passes.attention_bias import bias_of, with_bias


def attention(*, bias, again):
    names = ["q", "k", "v", *(["bias"] if bias else []), *(["mask"] if again else [])]
    kinds = {"mask": ir.DataType.BOOL}
    values = {
        name: ir.Value(name=name, shape=ir.Shape([1, 2, 3, 3]), type=ir.TensorType(kinds.get(name, ir.DataType.FLOAT)))
        for name in names
    }
    op = Builder(new_model(list(values.values()), "attention").graph)
    operands = [values.get(name) for name in ("q", "k", "v", "bias", "mask")]
    y, _, _ = op.composite("Attention", *operands, scale=0.25, dropout=0.1, outputs=3)
    return op, values, y.producer()


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("other", [True, False])
def test_only_the_bias_changes(bias, other, again):
    op, values, node = attention(bias=bias, again=again)
    assert bias_of(node) is values.get("bias")
    wanted = values["q"] if other else None
    outputs = with_bias(op, node, node.inputs, wanted)
    biased = outputs[0].producer()
    assert bias_of(biased) is wanted and len(outputs) == 3
    assert [biased.inputs[i] for i in (0, 1, 2)] == [values[name] for name in "qkv"]
    assert (biased.inputs[4] if len(biased.inputs) > 4 else None) is values.get("mask")
    assert biased.inputs[-1] is not None
    assert {name: attr.value for name, attr in biased.attributes.items()} == {
        "scale": 0.25,
        "dropout": pytest.approx(0.1),
    }


def test_other_operators_add_nothing_to_scores():
    op, values, _ = attention(bias=True, again=False)
    assert bias_of(op.Sum(*[values["q"]] * 4).producer()) is None
