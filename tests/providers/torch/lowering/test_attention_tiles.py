"""Attention in tiles: equal to torch's autograd on the formula, whatever is hidden and however tiles are cut."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.providers.torch.lowering import attention_tiles

B, H, L, S, E, F = 3, 2, 5, 6, 4, 3
DROPOUT, SCALE = 0.3, 0.5
LOW = float(np.finfo(np.float64).min)


@pytest.fixture(autouse=True)
def _tiny_tiles(monkeypatch):
    monkeypatch.setattr(attention_tiles, "TILED", 0)
    monkeypatch.setattr(attention_tiles, "_TILE", 2 * S * 8)
    monkeypatch.setattr(attention_tiles, "_ROWS", 2)


def _value(name, shape, dtype=ir.DataType.DOUBLE):
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def _program(bias_shape, mask, dtype=ir.DataType.DOUBLE, dropout=DROPOUT):
    """An executable of attention and its gradient, and the names of its four results."""
    runner = get_provider("TorchExecutionProvider")
    shapes = {"q": (B, H, L, E), "k": (B, H, S, E), "v": (B, H, S, F), "dy": (B, H, L, F)}
    inputs = {name: _value(name, shape, dtype) for name, shape in shapes.items()}
    if bias_shape is not None:
        inputs["bias"] = _value("bias", bias_shape, dtype)
    if mask:
        inputs["mask"] = _value("mask", (B, H, L, S), ir.DataType.BOOL)
    op = Builder(new_model(list(inputs.values()), "attention").graph)
    y, probs, *drawn = op.composite(
        "Attention", *(inputs[n] for n in "qkv"), inputs.get("bias"), inputs.get("mask"),
        outputs=2 if mask or not dropout else 3, scale=SCALE, dropout=dropout,
    )  # fmt: skip
    masks = [inputs["mask"]] if mask else drawn
    grads = op.composite(
        "AttentionGrad", inputs["dy"], *(inputs[n] for n in "qkv"), probs, *masks, outputs=3, scale=SCALE,
        dropout=dropout,
    )  # fmt: skip
    op.graph.outputs.extend([y, *grads])
    executable = runner.compile(ir.Model(op.graph, ir_version=10), runner.create_state([]))
    return executable, [v.name for v in op.graph.outputs]


def _ours(feeds, **options):
    executable, names = _program(feeds["bias"].shape if "bias" in feeds else None, "mask" in feeds, **options)
    results = executable.run(feeds, rng=(1, 2))
    return [np.asarray(results[name]) for name in names], executable


def _expected(feeds):
    q, k, v = (torch.tensor(feeds[name], requires_grad=True) for name in "qkv")
    scores = q @ k.transpose(-1, -2) * SCALE
    if "bias" in feeds:
        scores = scores + torch.tensor(feeds["bias"])
    mask = torch.tensor(feeds["mask"]).double() / (1 - DROPOUT) if "mask" in feeds else 1
    y = (torch.softmax(scores, -1) * mask) @ v
    return [y.detach(), *torch.autograd.grad(y, (q, k, v), torch.tensor(feeds["dy"]))]


def _feeds(seed, **more):
    rng = np.random.default_rng(seed)
    shapes = {"q": (B, H, L, E), "k": (B, H, S, E), "v": (B, H, S, F), "dy": (B, H, L, F)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()} | {
        "mask": rng.random((B, H, L, S)) > DROPOUT, **more
    }  # fmt: skip


def _is_tiled(executable):
    return any(instruction.fn is attention_tiles._attend for instruction in executable.current._program)


def _check(feeds):
    results, executable = _ours(feeds)
    assert _is_tiled(executable)
    for ours, want in zip(results, _expected(feeds), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-12, atol=1e-13)


def _bias(seen):
    return np.where(seen, 0.0, LOW)


BIASES = {
    "nothing added": None,
    "padding behind": _bias(np.arange(S) < np.array([6, 3, 1])[:, None])[:, None, None],
    "padding in front": _bias(np.arange(S) >= np.array([0, 2, 5])[:, None])[:, None, None],
    "causal": _bias(np.tri(L, S, dtype=bool))[None, None],
    "rows that see no key": _bias(np.tri(L, S, -2, dtype=bool))[None, None],
    "all hidden": np.full((1, 1, 1, S), LOW),
    "other heads see other keys": _bias(np.arange(S) % 3 == np.arange(H)[:, None])[None, :, None],
    "a slope": np.linspace(-2, 1, H * S).reshape(1, H, 1, S),
    "minus a billion, and a slope": np.array([0.5, 0.25, -1e9, -1e9, -0.5, -1e9]).reshape(1, 1, 1, S),
}


@pytest.mark.parametrize("name", BIASES)
def test_tiles_equal_autograd(name, seed):
    bias = BIASES[name]
    _check(_feeds(seed, **({} if bias is None else {"bias": bias})))


@pytest.mark.parametrize("name", BIASES)
def test_tiles_without_dropout_equal_autograd(name, seed, monkeypatch):
    """As bfloat16 takes them; in double precision, so that each digit counts."""
    monkeypatch.setattr(attention_tiles, "_BY_PRODUCTS", {ir.DataType.DOUBLE})
    monkeypatch.setattr(attention_tiles, "WHOLE", 0)
    feeds = _feeds(seed, **({} if BIASES[name] is None else {"bias": BIASES[name]}))
    del feeds["mask"]
    results, executable = _ours(feeds, dropout=0.0)
    assert _is_tiled(executable)
    for ours, want in zip(results, _expected(feeds), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("least", [0, 1 << 30], ids=["tiles", "whole"])
@pytest.mark.parametrize("name", ["nothing added", "causal", "padding behind"])
def test_bfloat16_without_dropout_is_as_exact_as_its_products(name, least, seed, monkeypatch):
    monkeypatch.setattr(attention_tiles, "WHOLE", least)
    feeds = _feeds(seed, **({} if BIASES[name] is None else {"bias": BIASES[name].clip(-1e30)}))
    del feeds["mask"]
    exact = _expected(feeds)
    executable, names = _program(
        feeds["bias"].shape if "bias" in feeds else None, mask=False, dtype=ir.DataType.BFLOAT16, dropout=0.0
    )
    outputs = executable.run({key: torch.tensor(array).bfloat16() for key, array in feeds.items()}, rng=(1, 2))
    assert _is_tiled(executable) == (least == 0)
    for output, want in zip(names, exact, strict=True):
        error = (outputs[output].double() - want).norm() / want.norm()
        assert error < 0.02, output


seen = st.lists(st.booleans(), min_size=B * L * S, max_size=B * L * S)


@settings(max_examples=15)
@given(seen, st.sampled_from([LOW, -1e30, -1e10]), st.integers(0, 9))
@example([False] * (B * L * S), LOW, 0)
def test_any_keys_may_be_hidden(pattern, low, seed):
    hidden = ~np.array(pattern).reshape(B, 1, L, S)
    _check(_feeds(seed, bias=np.where(hidden, low, 0.0)))


@pytest.mark.parametrize("tile", [1, 1 << 20], ids=["least", "one"])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_any_tiles_give_the_same(tile, rows, seed, monkeypatch):
    monkeypatch.setattr(attention_tiles, "_TILE", tile)
    monkeypatch.setattr(attention_tiles, "_ROWS", rows)
    _check(_feeds(seed, bias=BIASES["causal"]))


def test_masks_are_drawn_as_without_tiles(seed, monkeypatch):
    feeds = _feeds(seed, bias=BIASES["padding behind"])
    del feeds["mask"]
    tiled, executable = _ours(feeds)
    monkeypatch.setattr(attention_tiles, "TILED", 1 << 30)
    whole, other = _ours(feeds)
    assert _is_tiled(executable) and not _is_tiled(other)
    for y, two in zip(tiled, whole, strict=True):
        np.testing.assert_allclose(y, two, rtol=1e-12, atol=1e-13)
    assert executable.planned_bytes > 0


def test_keys_outside_the_window_are_never_read(seed):
    feeds = _feeds(seed, bias=BIASES["padding behind"])
    expected, _ = _ours(feeds)
    for name in "kv":
        feeds[name] = feeds[name].copy()
        feeds[name][2, :, 1:] = np.nan
    for ours, want in zip(_ours(feeds)[0], expected, strict=True):
        np.testing.assert_array_equal(ours, want)


def test_a_bias_that_is_no_number_reaches_the_result(seed):
    bias = BIASES["padding behind"].copy()
    bias[1, 0, 0, 4] = np.nan
    results, _ = _ours(_feeds(seed, bias=bias))
    assert np.isnan(results[0][1]).all() and np.isfinite(results[0][[0, 2]]).all()


@pytest.mark.parametrize("dtype", ["BFLOAT16", "FLOAT16", "FLOAT"])
def test_lower_precisions_round_and_do_nothing_else(dtype, seed):
    exact = _feeds(seed, bias=np.where(BIASES["padding behind"] < 0, -3e4, 0.0))
    executable, names = _program(exact["bias"].shape, True, getattr(ir.DataType, dtype))
    assert _is_tiled(executable)
    precision = {"BFLOAT16": torch.bfloat16, "FLOAT16": torch.float16, "FLOAT": torch.float32}[dtype]
    rounded = {k: torch.tensor(v) if k == "mask" else torch.tensor(v).to(precision) for k, v in exact.items()}
    results = executable.run(rounded, rng=(0, 0))
    want = _expected({k: v.numpy() if k == "mask" else v.double().numpy() for k, v in rounded.items()})
    for name, reference in zip(names, want, strict=True):
        # Each element comes of a few roundings of numbers that are not larger than the largest result by much.
        bound = 16 * torch.finfo(precision).eps * float(reference.abs().max())
        torch.testing.assert_close(results[name].double(), reference, rtol=0, atol=bound)
