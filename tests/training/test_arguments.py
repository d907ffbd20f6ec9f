"""Arguments of the wrong kind at the trainer: each is refused by name, and the run goes on as if it had not been."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from ontrain.errors import OntrainError, OptionError
from ontrain.training import ORTTrainer, ORTTrainerOptions, optim
from ontrain.training.options import SCHEMA
from tests.training.artifacts.networks import perceptron
from tests.training.conftest import DESC, Net, batches, make_trainer, token_loss

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]

NO_PATH = (None, 3, True, [], {}, "", "a\0b", object())
NO_FLAG = (None, 1, "yes", [], np.zeros(2), torch.zeros(2))
NO_NAMES = (3, True, "loss", b"loss", [3], [None], ["nothing"], [["loss"]], {"loss": 1}, object(), np.zeros(2))
NOTHING = (3, True, "text", b"bytes", [], object(), np.zeros(2), torch.zeros(2))
NO_VALUE = (None, "text", ["text"], {}, object(), len, torch.zeros(1))
NO_NAME = (None, 3, "nothing", b"mix.bias", [], ["mix.bias"], {}, object(), np.zeros(2))

CALLS = {
    "fetches of a step": (NO_NAMES, lambda t, f, value: t.train_step(*batches(1)[0], fetches=value)),
    "fetches": (NO_NAMES, lambda t, f, value: t.eval_step(*batches(1)[0], fetches=value)),
    "first input": ((None, 3, "text", [], {}, object()), lambda t, f, value: t.train_step(value, batches(1)[0][1])),
    "named input": (
        (None, 3, "text", [], {}, object()), lambda t, f, value: t.train_step(ids=batches(1)[0][0], label=value),
    ),
    "parameter": (NO_NAME, lambda t, f, value: t.parameter(value)),
    "parameter to set": (NO_NAME, lambda t, f, value: t.set_parameter(value, 1)),
    "value": (NO_VALUE, lambda t, f, value: t.set_parameter("mix.bias", value)),
    "path": (NO_PATH, lambda t, f, value: t.save_as_onnx(value)),
    "opset": ((0, 3, 999, True, "17", [], np.zeros(2)), lambda t, f, value: t.save_as_onnx(f / "new", value)),
    "training": (NO_FLAG, lambda t, f, value: t.save_as_onnx(f / "new", training=value)),
    "threshold": (
        (None, -1, 2.5, "3", [], np.zeros(2)),
        lambda t, f, value: t.save_as_onnx(f / "new", external_data_threshold=value),
    ),
    "opset of a model": ((0, 999, "17", []), lambda t, f, value: t.inference_model(value)),
    "pytorch_format": (NO_FLAG, lambda t, f, value: t.state_dict(value)),
    "state": (NOTHING, lambda t, f, value: t.load_state_dict(value)),
    "strict": (NO_FLAG, lambda t, f, value: t.load_state_dict(t.state_dict(), value)),
    "folder": (NO_PATH, lambda t, f, value: t.save_checkpoint(value)),
    "user_dict": (NOTHING, lambda t, f, value: t.save_checkpoint(f / "new", value)),
    "include_optimizer_states": (NO_FLAG, lambda t, f, value: t.save_checkpoint(f / "new", None, value)),
    "keep": ((None, 0, 2.5, "3", True), lambda t, f, value: t.save_checkpoint(f / "new", keep=value)),
    "folder to load": ((*NO_PATH, "there/is/none"), lambda t, f, value: t.load_checkpoint(value)),
    "strict load": (NO_FLAG, lambda t, f, value: t.load_checkpoint(f, strict=value)),
}  # fmt: skip


def losses(between=lambda trainer: None):
    """Of four steps with dropout, with calls between the second and the third."""
    torch.manual_seed(3)
    trainer, curve = make_trainer(Net(dropout=0.3)), []
    for step, batch in enumerate(batches(4)):
        if step == 2:
            between(trainer)
        curve.append(float(trainer.train_step(*batch)[0]))
    return curve


@pytest.fixture(scope="module")
def undisturbed():
    return losses()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_the_wrong_kind_of_thing_changes_nothing(name, undisturbed, tmp_path):
    wrong, call = CALLS[name]

    def between(trainer):
        for value in wrong:
            with pytest.raises(OntrainError) as caught:
                call(trainer, tmp_path, value)
            assert caught.value.problem, value

    assert losses(between) == undisturbed
    assert not [path.name for path in tmp_path.iterdir() if path.suffix != ".partial" and not path.name.startswith(".")]


MADE = {
    "model": ((None, *NOTHING), lambda value: make_trainer(value)),
    "description": ((None, *NOTHING), lambda value: ORTTrainer(Net(), value, optim.SGDConfig(), token_loss)),
    "configuration": ((None, *NOTHING), lambda value: ORTTrainer(Net(), DESC, value, token_loss)),
    "options": (NOTHING, lambda value: ORTTrainerOptions(value)),
    "weights of a file to train": (
        (3, True, "fc1.bias", b"fc1.bias", [3], [None], [["fc1.bias"]], {"fc1.bias": 1}, object(), np.zeros(2)),
        lambda value: ORTTrainer(
            perceptron()[0],
            {"inputs": [("x", ["batch", 12]), ("label", ["batch"])],
             "outputs": [("loss", [], True), ("logits", ["batch", 5])]},
            optim.SGDConfig(), "CrossEntropyLoss", {"device": {"id": "cpu"}}, requires_grad=value,
        ),
    ),
    "SGD's groups": ((None, *NOTHING[:4], *NOTHING[5:], [{"params": ["a"]}]), lambda value: optim.SGDConfig(value)),
    "Adam's groups": ((None, *NOTHING[:4], *NOTHING[5:], [3], [{}]), lambda value: optim.AdamConfig(value)),
    "an optimizer's name": ((None, *NOTHING, ["SGDOptimizer"]),
                            lambda value: optim.config._OptimizerConfig(value, [], {"lr": 1.0})),
    "an optimizer's defaults": (
        (None, *NOTHING), lambda value: optim.config._OptimizerConfig("SGDOptimizer", [], value),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_nothing_is_made_of_the_wrong_kind_of_thing(name):
    wrong, make = MADE[name]
    for value in wrong:
        with pytest.raises(OntrainError) as caught:
            make(value)
        assert caught.value.way_out or caught.value.reason or "model_desc" in caught.value.problem, str(caught.value)


def leaves(schema, path=()):
    for name, key in schema.items():
        yield from leaves(key, (*path, name)) if isinstance(key, dict) else [(*path, name)]


@pytest.mark.parametrize("path", list(leaves(SCHEMA)), ids=".".join)
def test_an_option_of_the_wrong_kind_is_named(path):
    for value in (object(), [object()], np.zeros(2), torch.zeros(2), b"bytes", math.nan, {3: {}}):
        nested = value
        for name in reversed(path):
            nested = {name: nested}
        if path[-1] in ("sliced_schema", "sliced_axes", "provider_options") and isinstance(value, dict):
            continue  # a dictionary is what they take
        with pytest.raises(OptionError, match=f"option '{'.'.join(path)}'"):
            ORTTrainerOptions(copy.copy(nested))


@pytest.mark.parametrize(
    ("loss_fn", "says"),
    [
        (lambda output: output.sum(), "too many positional arguments; it takes .output.(.|\n)*output, label"),
        (lambda output, label, weight: output.sum(), "argument: 'weight'(.|\n)*functools.partial"),
    ],
)
def test_a_loss_that_does_not_take_output_and_label_is_refused_before_anything_is_captured(loss_fn, says):
    with pytest.raises(OptionError, match=says):
        make_trainer(Net(), loss_fn=loss_fn)


@pytest.mark.parametrize(
    ("loss_fn", "returned"),
    [
        (lambda output, label: None, "None"),
        (lambda output, label: 3, "3"),
        (lambda output, label: (output.mean(), output), "a tuple"),
    ],
)
def test_a_loss_that_returns_something_else_than_a_tensor_is_refused(loss_fn, returned):
    with pytest.raises(OptionError, match=f"loss_fn returned {returned}"):
        make_trainer(Net(), loss_fn=loss_fn).train_step(*batches(1)[0])


def test_numbers_and_flags_of_numpy_are_those_of_python():
    config = optim.AdamConfig([{"params": ["mix.bias"], "beta": np.float32(0.5)}], lr=np.float32(0.5))
    config.do_bias_correction = np.bool_(False)
    options = ORTTrainerOptions({"batch": {"gradient_accumulation_steps": np.int64(2)}})
    values = (config.lr, config.params[0]["beta"], config.do_bias_correction, options.batch.gradient_accumulation_steps)
    assert values == (0.5, 0.5, False, 2) and [type(value) for value in values] == [float, float, bool, int]
