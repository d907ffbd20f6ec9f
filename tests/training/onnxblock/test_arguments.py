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


def update(given):
    with onnxblock.empty_base():
        optim.SGD()(given)


CALLS = {
    "base": (NOTHING, lambda given: enter(onnxblock.base(given))),
    "empty_base": ((True, 2.5, "17", 0, 999, [], np.zeros(2)), lambda given: enter(onnxblock.empty_base(given))),
    "custom_op_library": (NOTHING, lambda given: enter(onnxblock.custom_op_library(given))),
    **{
        name: (NO_NAME, lambda given, name=name: on_logits(lambda y: getattr(blocks, name)()(y, given)))
        for name in ("Add", "Sub", "Mul", "Div", "ReduceAllL2", "SequenceConstruct", "PassThrough")
    },
    **{
        name: (NO_NAME, lambda given, name=name: on_logits(lambda y: getattr(blocks, name)()(given)))
        for name in ("Sigmoid", "Log", "Neg", "Abs", "ReduceMean", "ReduceSum", "Clip")
    },
    "Cast of": (NO_NAME, lambda given: on_logits(lambda y: blocks.Cast(1)(given))),
    "Cast to": ((None, 2.5, "FLOAT", -1, 999, [], np.zeros(2)), blocks.Cast),
    "Pow": ((*NO_NUMBER, float("inf")), blocks.Pow),
    "Constant": ((*NO_NUMBER, float("inf")), blocks.Constant),
    "keepdims": (NO_FLAG, blocks.ReduceMean),
    "clip_min": (NO_NUMBER[1:], blocks.Clip),
    "clip_max": (NO_NUMBER[1:], lambda given: blocks.Clip(None, given)),
    "in_features": (NO_COUNT, lambda given: blocks.Linear(given, 5)),
    "out_features": (NO_COUNT, lambda given: blocks.Linear(5, given)),
    "bias": (NO_FLAG, lambda given: blocks.Linear(5, 5, given)),
    "alpha": (NO_NUMBER, lambda given: blocks.Linear(5, 5, alpha=given)),
    "beta": (NO_NUMBER, lambda given: blocks.Linear(5, 5, beta=given)),
    "InputLike": (NO_NAME, lambda given: on_logits(lambda y: blocks.InputLike(given)())),
    "a new input": (NO_TEXT, lambda given: on_logits(lambda y: blocks.InputLike(y)(given))),
    **{
        f"{name} of": (NO_NAME, lambda given, name=name: on_logits(lambda y: getattr(loss, name)()(given)))
        for name in loss.__all__
    },
    **{
        f"target of {name}": (NO_TEXT, lambda given, name=name: on_logits(lambda y: getattr(loss, name)()(y, given)))
        for name in loss.__all__
    },
    "reduction": ((None, 3, "average", [], np.zeros(2)), loss.MSELoss),
    "classes": ((*NO_WEIGHTS, 2.0, np.zeros((2, 2))), loss.CrossEntropyLoss),
    "number of classes": ((np.ones(4), [], [1.0]), lambda given: on_logits(loss.CrossEntropyLoss(given))),
    "ignore_index": ((True, 2.5, "3", [], np.zeros(2)), lambda given: loss.CrossEntropyLoss(ignore_index=given)),
    "weight": (NO_WEIGHTS, loss.BCEWithLogitsLoss),
    "pos_weight": (NO_WEIGHTS, lambda given: loss.BCEWithLogitsLoss(pos_weight=given)),
    "max_norm": ((*NO_NUMBER, 0, -1), optim.ClipGradNorm),
    "gradients": (NO_NAME, lambda given: on_logits(lambda y: optim.ClipGradNorm(1.0)(given))),
    "betas": ((*NO_NUMBER, (0.9,), (0.9, 1.0), (0.9, "a"), (-0.1, 0.9)), lambda given: optim.AdamW(betas=given)),
    "eps": ((*NO_NUMBER, -1), lambda given: optim.AdamW(eps=given)),
    "weight_decay": ((*NO_NUMBER, -1), lambda given: optim.AdamW(weight_decay=given)),
    "bias_correction": (NO_FLAG, lambda given: optim.AdamW(bias_correction=given)),
    "clip_grad of AdamW": ((1.0, *NOTHING[1:]), lambda given: optim.AdamW(clip_grad=given)),
    "clip_grad of SGD": ((1.0, *NOTHING[1:]), lambda given: optim.SGD(clip_grad=given)),
    "parameters": ((*NOTHING, ([], []), ([3], [])), update),
    "requires_grad": ((None, 3, [], b"fc1.bias"), lambda given: Trained(None).requires_grad(given)),
    "requires_grad of": (NO_FLAG, lambda given: Trained(None).requires_grad("fc1.bias", given)),
    "what a block returns": (
        (None, 3, "nothing", b"logits", [], {}, ("logits", 3), np.zeros(2)), lambda given: on_logits(lambda y: given),
    ),
    "what a loss returns": ((None, 3, "nothing", b"logits", [], {}), lambda given: on_logits(lambda y: given, Trained)),
    "parameters to save": ((*NOTHING, ([3], [])), lambda given: onnxblock.save_checkpoint(given, "never")),
    "where to save": ((None, 3, [], "", "there/is/none"), lambda given: onnxblock.save_checkpoint(([], []), given)),
    "nominal": (NO_FLAG, lambda given: onnxblock.save_checkpoint(([], []), "never", given)),
    "what to load": (NOTHING, lambda given: onnxblock.load_checkpoint_to_model(given, onnx.ModelProto())),
    "where to load": (NOTHING, lambda given: onnxblock.load_checkpoint_to_model("never", given)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_wrong_kind_of_thing_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, call = CALLS[name]
    for given in wrong:
        with pytest.raises(OntrainError) as caught:
            call(given)
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
