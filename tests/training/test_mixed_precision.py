"""Mixed precision against float32 and torch.autocast: half products, float32 weights, scaled losses, skipped steps.

The tolerance against float32's loss curve is 1 % + 0.01; torch.autocast deviates as much.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from torch import nn

from ontrain import NonFiniteLossError, ProviderError
from ontrain.training import ORTTrainer, amp, optim
from tests.golden.cases import CASES, FOLDER, fresh
from tests.golden.optimizers import Lamb
from tests.training.conftest import DESC, Net, batches, make_trainer, token_loss

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]

DTYPES = ("bfloat16", "float16")


def half(dtype: str, scaler: amp.LossScaler | None = None) -> dict[str, Any]:
    """Options; for float16 a scale that these models' gradients bear from the first step."""
    if dtype == "float16" and scaler is None:
        scaler = amp.DynamicLossScaler(loss_scale=256.0)
    return {"enabled": True, "dtype": dtype, "loss_scaler": scaler}


def weights(trainer: ORTTrainer) -> dict[str, torch.Tensor]:
    return trainer.state_dict()["model"]["full_precision"]


def moved(trainer: ORTTrainer, *batch: torch.Tensor) -> torch.Tensor:
    """How far one step moves all parameters."""
    trainer.prepare(*batch)
    before = weights(trainer)
    trainer.train_step(*batch)
    return torch.cat([(tensor - before[name]).flatten() for name, tensor in weights(trainer).items()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["text-adamw", "images-momentum"])
def test_the_loss_curve_is_that_of_float32_within_the_tolerance(name, dtype):
    case = CASES[name]
    model, data = fresh(case)
    names = [f"input_{i}" for i in range(len(case.dims))]
    desc = {"inputs": list(zip(names, case.dims, strict=True)), "outputs": [("loss", [], True)]}
    options = {"device": {"id": "cpu"}, "mixed_precision": half(dtype), "utils": {"grad_norm_clip": bool(case.clip)}}
    trainer = ORTTrainer(model, desc, case.config(), options=options)
    curve = [float(trainer.train_step(*batch)) for batch in data]
    golden = json.loads((FOLDER / f"{name}.json").read_text())["loss"]
    np.testing.assert_allclose(curve, golden, rtol=0.01, atol=0.01)
    assert trainer.train_step_info.optimization_step == len(data)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_is_float32s_to_the_precision_of_the_products(twins, dtype):
    ours, theirs = twins
    ((ids, label),) = batches(1)
    exact = moved(make_trainer(theirs, optim.SGDConfig(lr=1.0)), ids, label)
    step = moved(make_trainer(ours, optim.SGDConfig(lr=1.0), mixed_precision=half(dtype)), ids, label)
    epsilon = torch.finfo(getattr(torch, dtype)).eps
    assert 0 < (step - exact).norm() / exact.norm() < 4 * epsilon


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_and_moments_stay_float32_and_keep_what_half_would_lose(twins, dtype):
    ours, _ = twins
    trainer = make_trainer(ours, optim.AdamConfig(lr=1e-6), mixed_precision=half(dtype))
    before = copy.deepcopy(ours.state_dict())
    for batch in batches(2):
        trainer.train_step(*batch)
    state = trainer.state_dict()
    tensors = [
        *state["model"]["full_precision"].values(),
        *(t for kinds in state["optimizer"].values() for t in kinds.values()),
    ]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    change = (state["model"]["full_precision"]["mix.weight"] - before["mix.weight"]).abs()
    assert 0 < change.max() < 4e-6 and state["trainer_options"]["mixed_precision"] is True


def test_small_gradients_survive_half_precision_by_the_scale():
    class Faint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)).mean() * 1e-8  # below float16's smallest number

    desc = {"inputs": [("x", ["n", 4])], "outputs": [("loss", [], True)]}
    x = torch.randn(8, 4)
    steps = {}
    for scale in (1.0, 65536.0):
        torch.manual_seed(0)
        scaler = amp.DynamicLossScaler(loss_scale=scale)
        trainer = make_trainer(Faint(), optim.SGDConfig(lr=1e8), desc=desc, loss_fn=None, debug={},
                               mixed_precision=half("float16", scaler))  # fmt: skip
        steps[scale] = moved(trainer, x)
    torch.manual_seed(0)
    exact = moved(make_trainer(Faint(), optim.SGDConfig(lr=1e8), desc=desc, loss_fn=None, debug={}), x)
    assert (steps[65536.0] - exact).norm() / exact.norm() < 0.01
    assert (steps[1.0] - exact).norm() / exact.norm() > 0.5


class Norm(nn.Module):
    """A product whose result float16 cannot hold once the input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.linear(x)))


XY = {"inputs": [("x", ["n", 4]), ("y", ["n"])], "outputs": [("loss", [], True)]}
X, Y = torch.linspace(-1, 1, 24).view(6, 4).sin(), torch.tensor([0, 1, 2, 0, 1, 2])


def norm_trainer(scaler: amp.LossScaler | None, **options: Any) -> ORTTrainer:
    torch.manual_seed(1)
    return make_trainer(Norm(), optim.AdamConfig(lr=0.01), desc=XY, loss_fn=nn.functional.cross_entropy,
                        mixed_precision=half("float16", scaler), **options)  # fmt: skip


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_overflow_skips_the_step_halves_the_scale_and_touches_nothing(accumulation):
    scaler = amp.DynamicLossScaler(loss_scale=8.0)
    trainer = norm_trainer(scaler, batch={"gradient_accumulation_steps": accumulation})
    for _ in range(accumulation):
        trainer.train_step(X, Y)
    before = trainer.state_dict()
    for _ in range(accumulation):
        trainer.train_step(X * 1e6, Y)
    info, state = trainer.train_step_info, trainer.state_dict()
    assert (info.all_finite, info.optimization_step, scaler.loss_scale) == (False, 1, 4.0)
    for name, tensor in state["model"]["full_precision"].items():  # running statistics among them
        if name != "norm.num_batches_tracked":
            assert torch.equal(tensor, before["model"]["full_precision"][name]), name
    for name, kinds in state["optimizer"].items():
        assert all(torch.equal(tensor, before["optimizer"][name][kind]) for kind, tensor in kinds.items())
    for _ in range(accumulation):
        loss = trainer.train_step(X, Y)
    assert torch.isfinite(loss) and (info.all_finite, info.optimization_step) == (True, 2)


def test_where_the_scale_is_one_already_an_overflow_is_an_error():
    scaler = amp.DynamicLossScaler(loss_scale=2.0)
    trainer = norm_trainer(scaler)
    trainer.train_step(X * 1e6, Y)
    assert scaler.loss_scale == 1.0
    with pytest.raises(NonFiniteLossError, match="not finite|nan"):
        trainer.train_step(X * 1e6, Y)
    assert torch.isfinite(trainer.train_step(X, Y))


def test_a_scaler_of_the_users_own_is_asked_after_each_update():
    class Thirds(amp.LossScaler):
        def __init__(self) -> None:
            super().__init__(9.0)
            self.seen: list[tuple[bool, int]] = []

        def update(self, train_step_info: Any) -> float:
            self.seen.append((train_step_info.all_finite, train_step_info.optimization_step))
            self.loss_scale /= 1.0 if train_step_info.all_finite else 3.0
            return self.loss_scale

    scaler = Thirds()
    trainer = norm_trainer(scaler, batch={"gradient_accumulation_steps": 2})
    for factor in (1.0, 1.0, 1e6, 1.0, 1.0, 1.0):
        trainer.train_step(X * factor, Y)
    assert scaler.seen == [(True, 1), (False, 1), (True, 2)] and scaler.loss_scale == 3.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_accumulated_micro_batches_equal_the_joined_batch(twins, dtype):
    joined, split = twins
    data = batches(4)
    data[1][1][:, :3] = -100  # another number of labels
    trainer = make_trainer(joined, optim.SGDConfig(lr=0.5), mixed_precision=half(dtype))
    many = make_trainer(split, optim.SGDConfig(lr=0.5), mixed_precision=half(dtype),
                        batch={"gradient_accumulation_steps": 4})  # fmt: skip
    whole = moved(trainer, *(torch.cat(parts) for parts in zip(*data, strict=True)))
    many.prepare(*data[0])
    before = weights(many)
    for batch in data:
        many.train_step(*batch)
    parts = torch.cat([(tensor - before[name]).flatten() for name, tensor in weights(many).items()])
    assert (whole - parts).norm() / whole.norm() < 4 * torch.finfo(getattr(torch, dtype)).eps


def test_a_resumed_run_goes_on_bit_for_bit_with_its_scale(tmp_path):
    def run(trainer: ORTTrainer, factors: list[float]) -> list[float]:
        return [float(trainer.train_step(X * factor, Y)) for factor in factors]

    def scaler() -> amp.DynamicLossScaler:
        return amp.DynamicLossScaler(loss_scale=64.0, up_scale_window=3)

    first, second = [1.0, 1e6, 1.0, 0.9], [0.8, 0.7, 1e6, 0.6, 0.5]
    straight = norm_trainer(scaler())
    wanted = run(straight, first + second)[len(first) :]
    stopped = norm_trainer(scaler())
    run(stopped, first)
    stopped.save_checkpoint(tmp_path / "ck")
    resumed = norm_trainer(scaler())
    resumed.load_checkpoint(tmp_path / "ck")
    np.testing.assert_array_equal(run(resumed, second), wanted)
    assert all(torch.equal(tensor, weights(straight)[name]) for name, tensor in weights(resumed).items())
    assert (
        resumed.options.mixed_precision.loss_scaler.state_dict()
        == straight.options.mixed_precision.loss_scaler.state_dict()
    )


def test_evaluation_and_export_are_in_full_precision(twins):
    ours, theirs = twins
    ((ids, label),) = batches(1)
    trainer = make_trainer(ours, mixed_precision=half("float16"))
    trainer.train_step(ids, label)
    theirs.load_state_dict(ours.state_dict())
    np.testing.assert_allclose(trainer.eval_step(ids, label)[1], theirs.eval()(ids).detach(), atol=1e-6)
    types = {value.dtype for value in trainer.inference_model().graph.initializers.values()}
    assert not {kind.name for kind in types} & {"FLOAT16", "BFLOAT16"}


def test_a_provider_without_the_kernels_names_the_node():
    ((ids, label),) = batches(1)
    trainer = make_trainer(Net(), provider="OnnxRuntimeExecutionProvider", mixed_precision=half("bfloat16"))
    with pytest.raises(ProviderError, match="cannot run") as error:
        trainer.train_step(ids, label)
    assert "bfloat16" in error.value.reason and "conftest.py" in error.value.source


def test_the_reference_provider_agrees(twins):
    ours, theirs = twins
    curves = [
        [float(trainer.train_step(*batch)[0]) for batch in batches(3)]
        for trainer in (
            make_trainer(ours, mixed_precision=half("float16")),
            make_trainer(theirs, mixed_precision=half("float16"), provider="ReferenceExecutionProvider"),
        )
    ]
    np.testing.assert_allclose(*curves, rtol=torch.finfo(torch.float16).eps)


def test_a_file_trains_in_mixed_precision(tmp_path):
    source, data = make_trainer(Net()), batches(3)
    source.prepare(*data[0])
    source.save_as_onnx(tmp_path / "model.onnx")
    exact, narrow = (
        ORTTrainer(
            tmp_path / "model.onnx", DESC, optim.SGDConfig(lr=0.1), token_loss, {"device": {"id": "cpu"}, **more}
        )
        for more in ({}, {"mixed_precision": half("bfloat16")})
    )
    curves = [[float(trainer.train_step(*batch)[0]) for batch in data] for trainer in (exact, narrow)]
    np.testing.assert_allclose(*curves, rtol=torch.finfo(torch.bfloat16).eps)
    assert curves[0] != curves[1]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["Bert", "GPT2", "Llama"])
def test_transformers_train_in_half_as_in_float32(family, dtype):
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config, model = {
        "Bert": (transformers.BertConfig(**small, intermediate_size=32), transformers.BertForMaskedLM),
        "GPT2": (
            transformers.GPT2Config(**small, bos_token_id=0, eos_token_id=0, use_cache=False),
            transformers.GPT2LMHeadModel,
        ),
        "Llama": (
            transformers.LlamaConfig(**small, intermediate_size=32, num_key_value_heads=1, use_cache=False),
            transformers.LlamaForCausalLM,
        ),
    }[family]
    torch.manual_seed(0)
    exact = model(config)
    for part in exact.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    config.attention_probs_dropout_prob = config.attn_pdrop = 0.0
    narrow = copy.deepcopy(exact)
    ids = torch.randint(0, 50, (3, 8))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)}
    desc = {"inputs": [(name, ["batch", "length"]) for name in batch], "outputs": [("loss", [], True)]}
    curves = [
        [float(trainer.train_step(**batch)) for _ in range(5)]
        for trainer in (
            make_trainer(exact, desc=desc, loss_fn=None, debug={}),
            make_trainer(narrow, desc=desc, loss_fn=None, debug={}, mixed_precision=half(dtype)),
        )
    ]
    np.testing.assert_allclose(*curves, rtol=2e-3)
    assert curves[0][-1] < curves[0][0]


OPTIMIZERS = {
    "sgd": (lambda: optim.SGDConfig(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adamw": (
        lambda: optim.AdamConfig(lr=0.01, lambda_coef=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
    "lamb": (
        lambda: optim.LambConfig(lr=0.02, do_bias_correction=True),
        lambda p: Lamb(p, 0.02, (0.9, 0.999), 1e-6, 0.0),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_that_is_half_itself_is_updated_in_float32_and_rounded_once(twins, name, tmp_path):
    ours, theirs = (net.bfloat16() for net in twins)
    config, optimizer = OPTIMIZERS[name]
    trainer = make_trainer(ours, config(), debug={}, utils={"grad_norm_clip": False})
    ((ids, label),) = batches(1)
    token_loss(theirs(ids), label).backward()
    wide = [nn.Parameter(parameter.detach().float()) for parameter in theirs.parameters()]
    for parameter, narrow in zip(wide, theirs.parameters(), strict=True):
        parameter.grad = narrow.grad.float()
    optimizer(wide).step()
    trainer.train_step(ids, label)
    for (key, _), parameter in zip(theirs.named_parameters(), wide, strict=True):
        updated, wanted = trainer.parameter(key), parameter.detach().bfloat16()
        np.testing.assert_allclose(updated.float(), wanted.float(), rtol=2**-7, atol=2e-3, err_msg=key)
    state = trainer.state_dict()
    assert {tensor.dtype for tensor in state["model"]["full_precision"].values()} == {torch.bfloat16}
    assert {t.dtype for kinds in state["optimizer"].values() for t in kinds.values()} == {torch.float32}
    trainer.save_as_onnx(tmp_path / "half.onnx")
    written = {tensor.name: tensor.data_type for tensor in onnx.load(tmp_path / "half.onnx").graph.initializer}
    assert written["mix.weight"] == onnx.TensorProto.BFLOAT16
