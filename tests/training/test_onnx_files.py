"""`ORTTrainer` on ONNX files: the curves of eager PyTorch, the initializers' own names, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain import GraphError, InputError, OptionError
from ontrain.training import ORTTrainer, optim
from tests.capture.onnx_file.models import (
    KINDS,
    const,
    convolution,
    legacy,
    legacy_in_torch,
    mlp,
    model,
    node,
    own_loss,
    recurrent,
    save_external,
    transformer,
    value,
    weight,
)

CPU = {"device": {"id": "cpu"}, "debug": {"check_model_export": True}}
STEPS = 10


SGD = optim.SGDConfig(lr=0.05)


def trainer_of(file, source=None, config=None, loss="default", requires_grad=None, **options):
    return ORTTrainer(
        file.proto if source is None else source, file.desc, config or SGD,
        file.loss if loss == "default" else loss, {**CPU, **options}, requires_grad=requires_grad,
    )  # fmt: skip


def stored_of(file) -> dict[str, torch.Tensor]:
    return {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in file.proto.graph.initializer}


def curve(trainer, file, steps: int = STEPS) -> list[float]:
    losses = [trainer.train_step(*file.batch.values()) for _ in range(steps)]
    return [float(loss[0] if isinstance(loss, list) else loss) for loss in losses]


def eager_curve(forward, loss_fn, stored, trained, file, steps: int = STEPS) -> list[float]:
    """Train the tensors in eager PyTorch; `forward` takes them and the batch's first input.

    With plain SGD, as Adam's quotient makes a step of full size from the rounding of a gradient that is all but zero.
    """
    parameters = [stored[name].requires_grad_() for name in trained]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    x, label = (torch.from_numpy(array) for array in file.batch.values())
    losses = []
    for _ in range(steps):
        loss = loss_fn(forward(stored, x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def mlp_in_torch(s, x):
    h = torch.relu(functional.linear(x, s["fc1.weight"], s["fc1.bias"]))
    h = functional.batch_norm(h, None, None, s["norm.weight"], s["norm.bias"], True)
    return functional.linear(h, s["fc2.weight"], s["fc2.bias"])


def convolution_in_torch(s, x):
    x = x.to(memory_format=torch.channels_last)  # as ontrain convolves: the same sums, the same roundings
    a = functional.conv2d(x, s["c1"], padding=1)
    b = functional.leaky_relu(functional.batch_norm(a, None, None, s["n.weight"], s["n.bias"], True), 0.1)
    p = functional.max_pool2d(b, 2)
    r = p + functional.conv2d(p, s["c2"], s["c2.bias"], padding=1)
    return functional.interpolate(r, scale_factor=2).mean((2, 3)) @ s["fc"] + s["fc.bias"]


def transformer_in_torch(s, ids):
    x = s["embed"][ids]
    n = functional.layer_norm(x, (8,), s["ln.weight"], s["ln.bias"])
    q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (n @ s["qkv"] + s["qkv.bias"]).split(8, -1))
    o = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return functional.gelu(x + o @ s["out"]).mean(1) @ s["head"]


def recurrent_in_torch(s, x):
    iofc = [0, 1, 2, 3]  # ONNX's gates are i, o, f, c; torch's are i, f, g, o
    order = [iofc[0], iofc[2], iofc[3], iofc[1]]

    def gates(t):
        return torch.cat([t.chunk(4)[i] for i in order])

    wb, rb = s["B"][0].chunk(2)
    flat = [gates(s["W"][0]), gates(s["R"][0]), gates(wb), gates(rb)]
    zero = x.new_zeros(1, x.shape[1], 5)
    _, h, _ = torch.lstm(x, (zero, zero), flat, True, 1, 0.0, False, False, False)
    return h[0] @ s["head"]


NORMS = ("norm.mean", "norm.var", "n.mean", "n.var")
CURVES = [
    (mlp, mlp_in_torch, functional.cross_entropy, [8, 9, 11, 12, 13, 17, 21, 23]),
    (convolution, convolution_in_torch, functional.cross_entropy, [11, 15, 19]),
    (transformer, transformer_in_torch, functional.cross_entropy, [17]),
    (recurrent, recurrent_in_torch, functional.mse_loss, [14, 22]),
    (legacy, lambda s, x: legacy_in_torch(s, x, training=True), functional.mse_loss, [6]),
]


@pytest.mark.parametrize(
    ("make", "forward", "loss_fn", "opset"), [(m, f, loss, o) for m, f, loss, all_ in CURVES for o in all_]
)
def test_a_file_trains_along_eagers_curve(seed, make, forward, loss_fn, opset):
    file = make(np.random.default_rng(seed), opset)
    trainer = trainer_of(file)
    trained = [n for n in stored_of(file) if n in trainer.prepare(*file.batch.values())[0].trainable]
    expected = eager_curve(forward, loss_fn, stored_of(file), trained, file)
    np.testing.assert_allclose(curve(trainer, file), expected, rtol=1e-6)


def test_the_default_trains_the_weights_and_nothing_else(rng):
    trainer = trainer_of(convolution(rng))
    session, _ = trainer.prepare(*convolution(rng).batch.values())
    assert session.trainable == ["c1", "n.weight", "n.bias", "c2", "c2.bias", "fc", "fc.bias"]
    assert list(trainer.state_dict(pytorch_format=True)) == [*session.trainable, "n.mean", "n.var"]


@pytest.mark.parametrize("loss_fn", ["CrossEntropyLoss", nn.CrossEntropyLoss(), functional.cross_entropy])
def test_a_loss_by_name_is_the_loss_by_function(seed, loss_fn):
    file = mlp(np.random.default_rng(seed))
    assert curve(trainer_of(file, loss=loss_fn), file, 3) == curve(trainer_of(file), file, 3)


def test_a_loss_functions_own_buffers_are_constants(seed):
    file = mlp(np.random.default_rng(seed))
    classes = torch.tensor([1.0, 2.0, 0.5, 3.0])
    expected = eager_curve(
        mlp_in_torch, nn.CrossEntropyLoss(weight=classes), stored_of(file),
        ["fc1.weight", "fc1.bias", "norm.weight", "norm.bias", "fc2.weight", "fc2.bias"], file,
    )  # fmt: skip
    np.testing.assert_allclose(curve(trainer_of(file, loss=nn.CrossEntropyLoss(weight=classes)), file), expected, 1e-6)


def test_a_file_with_its_own_loss_and_data_beside_it(seed, tmp_path):
    file = own_loss(np.random.default_rng(seed))
    save_external(file, tmp_path / "m.onnx")
    expected = eager_curve(
        lambda s, x: torch.sigmoid(x @ s["w1"]) @ s["w2"], functional.cross_entropy, stored_of(file), ["w1", "w2"], file
    )
    np.testing.assert_allclose(curve(trainer_of(file, tmp_path / "m.onnx"), file), expected, rtol=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_bring_a_file_trains_alike(seed, tmp_path, kind):
    file = KINDS[kind](np.random.default_rng(seed))
    path = tmp_path / "m.onnx"
    path.write_bytes(file.proto.SerializeToString())
    sources = (file.proto, path, str(path), file.proto.SerializeToString())
    curves = [curve(trainer_of(file, source), file, 2) for source in sources]
    assert all(curve == curves[0] for curve in curves) and curves[0][1] < curves[0][0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_file_has_the_names_and_the_trained_weights(seed, tmp_path, kind):
    file = KINDS[kind](np.random.default_rng(seed))
    trainer = trainer_of(file)
    batch = list(file.batch.values())
    curve(trainer, file, 3)
    trainer.save_as_onnx(tmp_path / "out.onnx")
    saved = onnx.load(tmp_path / "out.onnx")
    now = trainer.state_dict(pytorch_format=True)
    inside = {t.name: onnx.numpy_helper.to_array(t) for t in saved.graph.initializer}
    before = stored_of(file)
    assert now
    for name, tensor in now.items():
        np.testing.assert_array_equal(inside[name], tensor.numpy())
    assert any(not torch.equal(before[name], tensor) for name, tensor in now.items())
    session = onnxruntime.InferenceSession(saved.SerializeToString())
    feeds = {i.name: file.batch[i.name] for i in session.get_inputs()}
    (y,) = session.run(["y"], feeds)
    np.testing.assert_allclose(y, trainer.eval_step(*batch)[1].numpy(), rtol=1e-5, atol=1e-6)


def test_a_saved_file_trains_on(seed, tmp_path):
    """Batch normalisation is back in inference form in it, and back in training form in the second trainer."""
    file = mlp(np.random.default_rng(seed))
    sgd = optim.SGDConfig(lr=0.05)
    whole = curve(trainer_of(file, config=sgd), file, 6)
    first = trainer_of(file, config=sgd)
    curve(first, file, 3)
    first.save_as_onnx(tmp_path / "half.onnx")
    np.testing.assert_allclose(curve(trainer_of(file, tmp_path / "half.onnx", sgd), file, 3), whole[3:], rtol=1e-6)


def test_running_statistics_follow_the_operators_formula(seed):
    file = mlp(np.random.default_rng(seed))
    trainer = trainer_of(file)
    s = stored_of(file)
    h = torch.relu(functional.linear(torch.from_numpy(file.batch["x"]), s["fc1.weight"], s["fc1.bias"]))
    trainer.train_step(*file.batch.values())
    now = trainer.state_dict(pytorch_format=True)
    torch.testing.assert_close(now["norm.mean"], 0.1 * h.mean(0))
    torch.testing.assert_close(now["norm.var"], 0.9 + 0.1 * h.var(0, correction=0))


def test_frozen_statistics_keep_a_normalisation_in_inference_form(seed):
    file = mlp(np.random.default_rng(seed))
    trainer = trainer_of(file, utils={"frozen_weights": ["norm.*"]})
    expected = eager_curve(
        lambda s, x: functional.linear(
            functional.batch_norm(
                torch.relu(functional.linear(x, s["fc1.weight"], s["fc1.bias"])),
                s["norm.mean"], s["norm.var"], s["norm.weight"], s["norm.bias"], False,
            ), s["fc2.weight"], s["fc2.bias"]),
        functional.cross_entropy, stored_of(file), ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"], file,
    )  # fmt: skip
    np.testing.assert_allclose(curve(trainer, file), expected, rtol=1e-6)
    before, now = stored_of(file), trainer.state_dict(pytorch_format=True)
    assert all(torch.equal(now[name], before[name]) for name in now if name.startswith("norm"))


def test_dropout_in_a_file_drops_in_training_only(seed):
    file = mlp(np.random.default_rng(seed))
    file.proto.graph.initializer[-1].CopyFrom(const("ratio", 0.5, np.float32))
    trainer = trainer_of(file)
    batch = list(file.batch.values())
    first, second = (trainer.eval_step(*batch)[1] for _ in range(2))
    assert torch.equal(first, second)
    rates = trainer_of(file, config=optim.SGDConfig(lr=0.0))
    assert len(set(curve(rates, file, 4))) == 4


def test_a_dropout_that_a_file_turns_on_drops_in_training_only():
    file = mlp(np.random.default_rng(0))
    file.proto.graph.initializer[-1].CopyFrom(const("ratio", 0.5, np.float32))
    file.proto.graph.initializer.append(const("on", True, np.bool_))
    (node,) = (node for node in file.proto.graph.node if node.op_type == "Dropout")
    node.input.append("on")
    trainer = trainer_of(file)
    batch = list(file.batch.values())
    first, second = (trainer.eval_step(*batch)[1] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        (["fc2.*"], ["fc2.weight", "fc2.bias"]),
        (["re:fc[12]\\.weight"], ["fc1.weight", "fc2.weight"]),
        (["fc1.bias", "norm.weight"], ["fc1.bias", "norm.weight"]),
        (None, ["fc1.weight", "fc1.bias", "norm.weight", "norm.bias", "fc2.weight", "fc2.bias"]),
    ],
)
def test_trainable_initializers_are_chosen_by_name_or_pattern(rng, patterns, trained):
    file = mlp(rng)
    trainer = trainer_of(file, requires_grad=patterns)
    curve(trainer, file, 2)
    before, now = stored_of(file), trainer.state_dict(pytorch_format=True)
    changed = [n for n in before if n in now and n not in NORMS and not torch.equal(before[n], now[n])]
    assert changed == trained


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"requires_grad": ["fc1.wieght"]}, r"(?s)no initializer to train is called 'fc1\.wieght'.*'fc1\.weight'"),
        ({"requires_grad": ["*.kernel"]}, r"(?s)'\*\.kernel'.*nearest"),
        ({"requires_grad": ["re:("]}, "no regular expression"),
        ({"requires_grad": ["norm.mean"]}, r"(?s)'norm\.mean' cannot be trained.*running mean"),
        ({"requires_grad": "fc1.weight"}, "give a list"),
        ({"utils": {"frozen_weights": ["fc9.weight"]}}, r"(?s)to freeze is called 'fc9\.weight'.*'fc1\.weight'"),
        ({"loss": "CrossEntropy"}, r"(?s)no loss 'CrossEntropy'.*'CrossEntropyLoss'"),
        ({"loss": 3}, "loss_fn is 3"),
        ({"loss": None}, "the model has no input 'label'"),
    ],
)
def test_what_does_not_fit_the_file_is_named(rng, arguments, says):
    with pytest.raises(OptionError, match=says):
        trainer_of(mlp(rng), **arguments)


def test_an_integer_initializer_cannot_be_trained(rng):
    with pytest.raises(OptionError, match=r"(?s)'sizes' cannot be trained.*int64.*floating-point"):
        trainer_of(transformer(rng), requires_grad=["embed", "sizes"])


def test_an_initializer_read_by_indices_only_gets_no_gradient_and_says_so(rng):
    """The loss depends on the weight through Cast to an integer alone."""
    nodes = [node("Cast", "w", "i", to=7), node("Gather", "x i", "g"), node("ReduceMean", "g", "y", keepdims=0)]
    proto = model(nodes, [value("x", [4])], [value("y", [])], [weight(rng, "w", 2)])
    desc = {"inputs": [("x", [4])], "outputs": [("y", [], True)]}
    trainer = ORTTrainer(proto, desc, optim.SGDConfig(), options=CPU)
    with pytest.raises(ValueError, match=r"'y' depends on none of the 1 trainable parameters"):
        trainer.train_step(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("desc", "says"),
    [
        ({"inputs": [("z", ["batch", 6]), ("label", ["batch"])]}, r"(?s)no input 'z'.*'x'"),
        ({"inputs": [("x", ["batch", 7]), ("label", ["batch"])]}, r"(?s)'x' is described .*\['N', 6\]"),
        ({"outputs": [("loss", [], True), ("z", ["batch", 4])]}, r"(?s)no output 'z'.*'y'"),
        ({"inputs": [("x", ["batch", 6])]}, "needs an input and a label"),
    ],
)
def test_a_description_that_does_not_fit_the_file_is_named(rng, desc, says):
    file = mlp(rng)
    file.desc = {**file.desc, **desc}
    with pytest.raises(OptionError, match=says):
        trainer_of(file)


def test_a_missing_file_and_a_file_of_another_kind_are_told_apart(tmp_path, rng):
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(InputError, match="there is no model file"):
        trainer_of(mlp(rng), tmp_path / "absent.onnx")
    with pytest.raises(GraphError, match="no ONNX model"):
        trainer_of(mlp(rng), tmp_path / "notes.txt")
    with pytest.raises(OptionError, match=r"torch\.nn\.Module, or the path"):
        trainer_of(mlp(rng), 3)


def test_a_run_on_a_file_resumes_bit_for_bit(seed, tmp_path):
    file = mlp(np.random.default_rng(seed))
    whole = curve(trainer_of(file), file, 6)
    first = trainer_of(file)
    assert curve(first, file, 3) == whole[:3]
    first.save_checkpoint(tmp_path / "half")
    second = trainer_of(copy.deepcopy(file))
    second.load_checkpoint(tmp_path / "half")
    assert curve(second, file, 3) == whole[3:]


def test_a_fixed_batch_in_the_file_may_vary_if_the_description_says_so(rng):
    file = mlp(rng)
    file.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    trainer = trainer_of(file)
    for rows in (5, 3):
        trainer.train_step(file.batch["x"][:rows], file.batch["label"][:rows])


def test_groups_and_accumulation_work_on_a_file(seed):
    file = mlp(np.random.default_rng(seed))
    groups = [{"params": ["fc1.weight"], "alpha": 0.8}]
    trainer = trainer_of(
        file, config=optim.AdamConfig(params=groups, lr=0.01), batch={"gradient_accumulation_steps": 2}
    )
    losses = curve(trainer, file, 6)
    assert losses[-1] < losses[0] and trainer.train_step_info.optimization_step == 3
    with pytest.raises(OptionError, match=r"a parameter group names 'fc3'"):
        trainer_of(file, config=optim.AdamConfig(params=[{"params": ["fc3"], "alpha": 0.8}]))
