"""What stock onnxruntime needs beside kernels: state in two copies, right sums under threads, and errors that name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

from ontrain import InputError, OptionError, ProviderError
from ontrain.autodiff import differentiate
from ontrain.graph import Builder, Role, annotate, new_model, set_role, set_updates
from ontrain.providers import StateSpec, get_provider
from ontrain.providers.onnxruntime import OnnxRuntimeExecutionProvider
from ontrain.providers.onnxruntime.random import mix
from ontrain.training import optim
from tests.providers.graphs import float_input, run
from tests.training.conftest import Net, batches, make_trainer

NAME = "OnnxRuntimeExecutionProvider"


def typed(name: str, dtype: ir.DataType, *shape: int) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def with_threads(count: int) -> OnnxRuntimeExecutionProvider:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count
    return OnnxRuntimeExecutionProvider("cpu", options)


def test_an_embeddings_gradient_is_right_on_four_threads():
    # 1024 tokens of a long-tailed text over a vocabulary of 30,000: most ids occur many times.
    generator = torch.Generator().manual_seed(1)
    ids = (torch.rand(8, 128, generator=generator) ** 6 * 30_000).long()
    dy = torch.randn(8, 128, 96, generator=generator)
    weight = typed("weight", ir.DataType.FLOAT, 30_000, 96)
    tokens, seed = typed("ids", ir.DataType.INT64, 8, 128), typed("dy", ir.DataType.FLOAT, 8, 128, 96)
    model = new_model([weight, tokens, seed], "embedding")
    op = Builder(model.graph)
    rows = op.composite("Embedding", weight, tokens, padding_idx=0)
    model.graph.outputs.extend(differentiate(op, [(rows, seed)], [weight]))
    provider = with_threads(4)
    executable = provider.compile(model, provider.create_state([]))
    table = torch.zeros(30_000, 96, requires_grad=True)
    nn.functional.embedding(ids, table, padding_idx=0).backward(dy)
    for _ in range(3):
        (gradient,) = executable.run({"weight": table.detach(), "ids": ids, "dy": dy}).values()
        np.testing.assert_allclose(gradient, table.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_scattered_sums_that_meet_are_right_on_four_threads():
    generator = torch.Generator().manual_seed(1)
    places = torch.randint(-50, 50, (200_000, 1), generator=generator)
    updates = torch.randn(200_000, 8, generator=generator)
    x, ids, add = (
        float_input("x", (50, 8)), typed("ids", ir.DataType.INT64, 200_000, 1), float_input("add", (200_000, 8))
    )  # fmt: skip
    model = new_model([x, ids, add], "scatter")
    model.graph.outputs.append(Builder(model.graph).ScatterND(x, ids, add, reduction="add"))
    provider = with_threads(4)
    executable = provider.compile(model, provider.create_state([]))
    (total,) = executable.run({"x": torch.ones(50, 8), "ids": places, "add": updates}).values()
    wanted = torch.ones(50, 8, dtype=torch.float64).index_add(0, places[:, 0] % 50, updates.double())
    np.testing.assert_allclose(total, wanted.numpy(), rtol=1e-4, atol=1e-3)  # sums of 4,000 numbers each


def test_batch_normalisation_behind_a_convolution_uses_the_batch_without_its_statistics_as_outputs():
    x, w = float_input("x", (4, 3, 8, 8)), float_input("w", (5, 3, 3, 3))
    vectors = [float_input(n, (5,)) for n in ("scale", "bias", "mean", "var")]
    model = new_model([x, w, *vectors], "norm")
    op = Builder(model.graph)
    y, _, _ = op.BatchNormalization(op.Conv(x, w), *vectors, training_mode=1, outputs=3)
    model.graph.outputs.append(y)
    feeds = {"x": torch.randn(4, 3, 8, 8), "w": torch.randn(5, 3, 3, 3), "scale": torch.rand(5), "bias": torch.rand(5)}
    (result,) = run(model, {**feeds, "mean": torch.full((5,), 9.0), "var": torch.full((5,), 7.0)}, name=NAME)
    convolved = nn.functional.conv2d(feeds["x"], feeds["w"])
    wanted = nn.functional.batch_norm(convolved, None, None, feeds["scale"], feeds["bias"], training=True)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


def _counter():
    """x + 1 as the next x, and whether x was below 2; y is resident and never updated."""
    x, y = set_role(float_input("x", (3,)), Role.STATE), set_role(float_input("y", (3,)), Role.PARAMETER)
    model = new_model([x, y], "counter")
    op = Builder(model.graph)
    following, small = op.Add(x, 1.0), op.Less(op.ReduceMax(x, keepdims=0), 2.0)
    small.name = "small"
    model.graph.outputs.extend([set_updates(following, "x"), small, op.Mul(x, y)])
    provider = get_provider(NAME)
    state = provider.create_state([StateSpec(n, (3,), ir.DataType.FLOAT, "fixed") for n in "xy"])
    return state, provider.compile(model, state)


def test_a_guard_that_is_false_keeps_the_state():
    state, executable = _counter()
    seen = [float(state["x"][0]) for _ in range(4) if executable.run({}, guard="small")]
    assert seen == [1.0, 2.0, 2.0, 2.0]


def test_only_what_is_updated_has_a_second_copy():
    state, _ = _counter()
    assert state.nbytes() == 3 * 4 * 3


def test_profiling_names_operators_and_updates_nothing():
    trainer = make_trainer(Net(), provider=NAME)
    (batch,) = batches(1)
    trainer.train_step(*batch)
    before = trainer.state_dict()["model"]["full_precision"]
    times = trainer.profile(*batch)
    assert {"Gather", "Gemm", "ScatterElements"} <= {entry["operator"] for entry in times}
    assert all(entry["calls"] > 0 and entry["milliseconds"] >= 0 for entry in times)
    after = trainer.state_dict()["model"]["full_precision"]
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_memory_is_estimated_between_the_largest_tensor_and_all_of_them():
    x = float_input("x", (1000,))
    model = new_model([x], "chain")
    op = Builder(model.graph)
    y = x
    for _ in range(10):
        y = op.Tanh(y)
    model.graph.outputs.append(y)
    provider = get_provider(NAME)
    # In a chain one result is read while the next is written.
    assert provider.compile(model, provider.create_state([])).planned_bytes == 2 * 4000


def test_an_operator_without_a_kernel_is_named_with_its_dtype_and_line():
    x = typed("x", ir.DataType.DOUBLE, 4)
    model = new_model([x], "asin")
    y = Builder(model.graph).Asin(x)
    annotate(y.producer(), "model.py:7: x.asin()", None)
    model.graph.outputs.append(y)
    provider = get_provider(NAME)
    assert "no CPU kernel of Asin (opset 23) for double" in provider.supports(y.producer())
    with pytest.raises(
        ProviderError, match=r"cannot run Asin\n.*\n  source: model.py:7: x.asin\(\)\n  reason: .*double"
    ):
        provider.compile(model, provider.create_state([]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_whose_precision_it_lacks_is_refused_by_name(dtype):
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)).to(dtype)
    desc = {"inputs": [("x", ["n", 4]), ("y", ["n"])], "outputs": [("loss", [], True), ("logits", ["n", 3])]}
    trainer = make_trainer(net, optim.SGDConfig(lr=0.1), desc, loss_fn=nn.functional.cross_entropy, provider=NAME,
                           debug={})  # fmt: skip
    with pytest.raises(ProviderError, match="has no CPU kernel.* for (double|bfloat16)"):
        trainer.train_step(torch.randn(2, 4, dtype=dtype), torch.tensor([0, 1]))


def test_double_precision_trains_where_kernels_exist():
    ours, theirs = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    desc = {"inputs": [("x", ["n", 4]), ("y", ["n"])], "outputs": [("loss", [], True), ("logits", ["n", 3])]}
    trainer = make_trainer(ours, optim.SGDConfig(lr=0.1), desc, loss_fn=nn.functional.cross_entropy, provider=NAME)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(4):
        x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(0, 3, (6,))
        loss = nn.functional.cross_entropy(theirs(x), y)
        assert float(trainer.train_step(x, y)[0]) == pytest.approx(float(loss.detach()), rel=1e-7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_an_index_out_of_range_is_told_as_on_the_torch_provider():
    trainer = make_trainer(Net(), provider=NAME)
    ids, label = batches(1)[0]
    trainer.train_step(ids, label)
    ids[1, 2] = 11
    with pytest.raises(InputError, match="input 'ids' holds index 11, allowed is 0 to 10"):
        trainer.train_step(ids, label)


def test_a_device_that_it_does_not_know_is_refused():
    with pytest.raises(OptionError, match="does not run on 'cuda'"):
        get_provider(NAME, "cuda")


def test_a_trainer_hands_session_options_on(tmp_path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.optimized_model_filepath = 1, str(tmp_path / "step.onnx")
    trainer = make_trainer(Net(), provider=(NAME, {"session_options": options}))
    trainer.train_step(*batches(1)[0])
    assert (tmp_path / "step.onnx").stat().st_size > 0
    with pytest.raises(OptionError, match=r"options \['threads'\](.|\n)*its options: session_options"):
        get_provider(NAME, "cpu", {"threads": 1})


def test_the_mixing_function_is_splitmix64():
    # The first output for seed 0 as published by Vigna, https://prng.di.unimi.it/splitmix64.c
    assert mix(0) == 0xE220A8397B1DCDAF
    assert len({mix(a, b) for a in range(100) for b in range(100)}) == 10_000


def test_random_numbers_have_their_distribution_and_repeat():
    size = 200_000
    p = float_input("p", (size,))
    model = new_model([p], "random")
    op = Builder(model.graph)
    model.graph.outputs.extend([
        op.RandomUniform(shape=[size], low=-1.0, high=3.0), op.RandomNormal(shape=[size], mean=2.0, scale=0.5),
        op.Bernoulli(p), op.RandomUniformLike(p), op.RandomNormalLike(p),
    ])  # fmt: skip
    draws = run(model, {"p": torch.full((size,), 0.3)}, rng=(5, 6), name=NAME)
    again = run(model, {"p": torch.full((size,), 0.3)}, rng=(5, 6), name=NAME)
    assert all(torch.equal(a, b) for a, b in zip(draws, again, strict=True))
    for values, mean, deviation, low, high in zip(
        draws, (1.0, 2.0, 0.3, 0.5, 0.0), (4 / 12**0.5, 0.5, 0.21**0.5, 1 / 12**0.5, 1.0),
        (-1.0, -9.0, 0.0, 0.0, -9.0), (3.0, 9.0, 1.0, 1.0, 9.0), strict=True,
    ):  # fmt: skip
        assert abs(float(values.mean()) - mean) < 5 * deviation / size**0.5
        assert abs(float(values.std()) - deviation) < 0.01 * deviation
        assert values.min() >= low and values.max() <= high
    normal = torch.sort((draws[1] - 2) / 0.5).values
    quantiles = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.01, 0.99, 99))
    torch.testing.assert_close(normal[torch.linspace(0.01, 0.99, 99).mul(size).long()], quantiles, rtol=0, atol=0.03)
    joint = torch.corrcoef(torch.stack([draws[0], draws[1], draws[3], draws[4]]))
    torch.testing.assert_close(joint, torch.eye(4), rtol=0, atol=0.02)


LOOP = """
<ir_version: 10, opset_import: ["" : 23]>
looped (float[4] x) => (float[4] y) {
    trip = Constant <value = int64 {3}> ()
    on = Constant <value = bool {1}> ()
    y = Loop (trip, on, x) <body = step (int64 i, bool c, float[4] before) => (bool go, float[4] after) {
        go = Identity (c)
        PLACE
    }>
}
"""


def test_a_loop_runs_and_random_numbers_inside_it_are_refused():
    provider = get_provider(NAME)
    plain = ir.from_onnx_text(LOOP.replace("PLACE", "after = Add (before, before)"))
    (y,) = provider.compile(plain, provider.create_state([])).run({"x": torch.ones(4)}).values()
    assert y.tolist() == [8.0] * 4
    noisy = ir.from_onnx_text(
        LOOP.replace("PLACE", "noise = RandomNormalLike (before)\n        after = Add (before, noise)")
    )
    with pytest.raises(ProviderError, match=r"cannot run RandomNormalLike\n(.|\n)*random numbers inside a Loop"):
        provider.compile(noisy, provider.create_state([]))
