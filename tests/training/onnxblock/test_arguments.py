"""Blocks given the wrong kind of thing: each ends in an error that says what, where the block is made or called."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ontrain.errors import OntrainError
from ontrain.training import onnxblock
from ontrain.training.onnxblock import blocks, loss, optim
from tests.training.artifacts.networks import perceptron

NO_NAME = (None, 3, 2.5, "nothing", b"logits", [], ["logits"], {}, object(), np.zeros(2))
NO_TEXT = (3, 2.5, b"new", [], ["new"], object(), np.zeros(2))
NO_NUMBER = (None, True, "2", b"2", [], {}, object(), np.zeros(2), float("nan"))
NO_WEIGHTS = ("2", ["a"], {}, object(), [float("nan")])
NO_FLAG = (None, 1, "yes", [], np.zeros(2))
NO_COUNT = (None, True, 2.5, "3", 0, [], np.zeros(2))
NOTHING = (None, 3, "text", b"bytes", [], {}, object(), np.zeros(2))


class Whole(onnxblock.ForwardBlock):
    def __init__(self, build):
        super().__init__()
        self._build = build

    def build(self, name):
        return self._build(name)


class Trained(onnxblock.TrainingBlock):
    def __init__(self, build):
        super().__init__()
        self._build = build

    def build(self, name):
        return self._build(name)


def on_logits(build, kind=Whole):
    with onnxblock.base(perceptron()[0]):
        kind(build)("logits")


def enter(context):
    with context:
        pass


def update(value):
    with onnxblock.empty_base():
        optim.SGD()(value)


CALLS = {
    "base": (NOTHING, lambda value: enter(onnxblock.base(value))),
    "empty_base": ((True, 2.5, "17", 0, 999, [], np.zeros(2)), lambda value: enter(onnxblock.empty_base(value))),
    "custom_op_library": (NOTHING, lambda value: enter(onnxblock.custom_op_library(value))),
    **{
        name: (NO_NAME, lambda value, name=name: on_logits(lambda y: getattr(blocks, name)()(y, value)))
        for name in ("Add", "Sub", "Mul", "Div", "ReduceAllL2", "SequenceConstruct", "PassThrough")
    },
    **{
        name: (NO_NAME, lambda value, name=name: on_logits(lambda y: getattr(blocks, name)()(value)))
        for name in ("Sigmoid", "Log", "Neg", "Abs", "ReduceMean", "ReduceSum", "Clip")
    },
    "Cast of": (NO_NAME, lambda value: on_logits(lambda y: blocks.Cast(1)(value))),
    "Cast to": ((None, 2.5, "FLOAT", -1, 999, [], np.zeros(2)), blocks.Cast),
    "Pow": ((*NO_NUMBER, float("inf")), blocks.Pow),
    "Constant": ((*NO_NUMBER, float("inf")), blocks.Constant),
    "keepdims": (NO_FLAG, blocks.ReduceMean),
    "clip_min": (NO_NUMBER[1:], blocks.Clip),
    "clip_max": (NO_NUMBER[1:], lambda value: blocks.Clip(None, value)),
    "in_features": (NO_COUNT, lambda value: blocks.Linear(value, 5)),
    "out_features": (NO_COUNT, lambda value: blocks.Linear(5, value)),
    "bias": (NO_FLAG, lambda value: blocks.Linear(5, 5, value)),
    "alpha": (NO_NUMBER, lambda value: blocks.Linear(5, 5, alpha=value)),
    "beta": (NO_NUMBER, lambda value: blocks.Linear(5, 5, beta=value)),
    "InputLike": (NO_NAME, lambda value: on_logits(lambda y: blocks.InputLike(value)())),
    "a new input": (NO_TEXT, lambda value: on_logits(lambda y: blocks.InputLike(y)(value))),
    **{
        f"{name} of": (NO_NAME, lambda value, name=name: on_logits(lambda y: getattr(loss, name)()(value)))
        for name in loss.__all__
    },
    **{
        f"target of {name}": (NO_TEXT, lambda value, name=name: on_logits(lambda y: getattr(loss, name)()(y, value)))
        for name in loss.__all__
    },
    "reduction": ((None, 3, "average", [], np.zeros(2)), loss.MSELoss),
    "classes": ((*NO_WEIGHTS, 2.0, np.zeros((2, 2))), loss.CrossEntropyLoss),
    "number of classes": ((np.ones(4), [], [1.0]), lambda value: on_logits(loss.CrossEntropyLoss(value))),
    "ignore_index": ((True, 2.5, "3", [], np.zeros(2)), lambda value: loss.CrossEntropyLoss(ignore_index=value)),
    "weight": (NO_WEIGHTS, loss.BCEWithLogitsLoss),
    "pos_weight": (NO_WEIGHTS, lambda value: loss.BCEWithLogitsLoss(pos_weight=value)),
    "max_norm": ((*NO_NUMBER, 0, -1), optim.ClipGradNorm),
    "gradients": (NO_NAME, lambda value: on_logits(lambda y: optim.ClipGradNorm(1.0)(value))),
    "betas": ((*NO_NUMBER, (0.9,), (0.9, 1.0), (0.9, "a"), (-0.1, 0.9)), lambda value: optim.AdamW(betas=value)),
    "eps": ((*NO_NUMBER, -1), lambda value: optim.AdamW(eps=value)),
    "weight_decay": ((*NO_NUMBER, -1), lambda value: optim.AdamW(weight_decay=value)),
    "bias_correction": (NO_FLAG, lambda value: optim.AdamW(bias_correction=value)),
    "clip_grad of AdamW": ((1.0, *NOTHING[1:]), lambda value: optim.AdamW(clip_grad=value)),
    "clip_grad of SGD": ((1.0, *NOTHING[1:]), lambda value: optim.SGD(clip_grad=value)),
    "parameters": ((*NOTHING, ([], []), ([3], [])), update),
    "requires_grad": ((None, 3, [], b"fc1.bias"), lambda value: Trained(None).requires_grad(value)),
    "requires_grad of": (NO_FLAG, lambda value: Trained(None).requires_grad("fc1.bias", value)),
    "what a block returns": (
        (None, 3, "nothing", b"logits", [], {}, ("logits", 3), np.zeros(2)), lambda value: on_logits(lambda y: value),
    ),
    "what a loss returns": ((None, 3, "nothing", b"logits", [], {}), lambda value: on_logits(lambda y: value, Trained)),
    "parameters to save": ((*NOTHING, ([3], [])), lambda value: onnxblock.save_checkpoint(value, "never")),
    "where to save": ((None, 3, [], "", "there/is/none"), lambda value: onnxblock.save_checkpoint(([], []), value)),
    "nominal": (NO_FLAG, lambda value: onnxblock.save_checkpoint(([], []), "never", value)),
    "what to load": (NOTHING, lambda value: onnxblock.load_checkpoint_to_model(value, onnx.ModelProto())),
    "where to load": (NOTHING, lambda value: onnxblock.load_checkpoint_to_model("never", value)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_wrong_kind_of_thing_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, call = CALLS[name]
    for value in wrong:
        with pytest.raises(OntrainError) as caught:
            call(value)
        assert caught.value.way_out or caught.value.reason, str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_name_that_the_model_lacks_is_told_the_nearest_where_it_is_used():
    with pytest.raises(OntrainError, match=r"no value 'logit'[\s\S]*'logits'"):
        on_logits(lambda y: blocks.Mul()(y, "logit"))


def test_a_block_of_an_operator_that_the_models_operator_set_lacks_names_both():
    model = perceptron()[0]
    model.opset_import[0].version = 11
    with (
        onnxblock.base(model),
        pytest.raises(OntrainError, match="SoftmaxCrossEntropyLoss came with operator set 12, the model is of 11"),
    ):
        Whole(loss.CrossEntropyLoss())("logits")
