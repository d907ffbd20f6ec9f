"""What is said of a batch that does not fit its graph."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from ontrain import InputError
from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.optim.loss import softmax_cross_entropy
from ontrain.session.feeds import check_feeds, explain_index_error

CPU = torch.device("cpu")


def graph(ignore_index: int | None = None) -> ir.Graph:
    def value(name, shape, dtype, role=Role.INPUT):
        return set_role(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)), role)

    scores = value("scores", ["batch", 4], ir.DataType.FLOAT)
    label = value("label", ["batch"], ir.DataType.INT64, Role.LABEL)
    model = new_model([scores, label], "g")
    model.graph.outputs.append(softmax_cross_entropy(Builder(model.graph), scores, label, ignore_index=ignore_index))
    return model.graph


def test_a_batch_that_fits_is_its_signature():
    feeds = {"scores": torch.zeros(3, 4), "label": torch.zeros(3, dtype=torch.int64)}
    assert check_feeds(graph(), feeds, CPU) == (("scores", (3, 4)), ("label", (3,)))


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        ({"scores": torch.zeros(3, 4)}, "no 'label'"),
        ({"scores": torch.zeros(3, 4), "label": torch.zeros(2, dtype=torch.int64)},
         "'batch' is 2 in input 'label' and 3 in 'scores'"),
        ({"scores": torch.zeros(3, 5), "label": torch.zeros(3, dtype=torch.int64)}, r"shape \[3, 5\]"),
        ({"scores": torch.zeros(3, 4, 1), "label": torch.zeros(3, dtype=torch.int64)}, r"shape \[3, 4, 1\]"),
        ({"scores": torch.zeros(3, 4), "label": torch.zeros(3, dtype=torch.int32)}, "'label' is int32"),
        ({"scores": torch.zeros(3, 4, device="meta"), "label": torch.zeros(3, dtype=torch.int64)},
         "'scores' is on meta, the graph runs on cpu"),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_is_refused_by_input(feeds, says):
    with pytest.raises(InputError, match=says):
        check_feeds(graph(), feeds, CPU)


@pytest.mark.parametrize(
    ("labels", "ignore", "bad"),
    [
        ([0, 3], None, None), ([0, 4], None, 4), ([-1, 0], None, -1),
        ([-100, 3], -100, None), ([-100, 4], -100, 4), ([-100, -1], -100, -1),
    ],
)  # fmt: skip
def test_the_first_label_out_of_range_is_named_and_the_ignored_one_is_none(labels, ignore, bad):
    feeds = {"scores": torch.zeros(2, 4), "label": torch.tensor(labels)}
    error = explain_index_error(graph(ignore), feeds)
    assert (error is None) == (bad is None)
    assert error is None or f"label {bad}, allowed is 0 to 3" in str(error)
