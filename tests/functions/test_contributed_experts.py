"""Mixtures of experts and attention over blocks on the torch provider: against stock's kernels, and numpy by hand."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from tests.functions.test_contributed_kernels import check, fixed, model_of, real

SPECIAL = {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.5}


def run(op_type, operands, outputs=1, **attributes):
    model, feeds = model_of(op_type, operands, outputs, attributes)
    for info in model.graph.output:
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"], strict_providers=True)
    return session.run(None, feeds)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mixed(x, router, layers, activation, k, *, normal=False, mixing=None):
    """A row at a time, an expert at a time; `layers` are (weight, bias) or None, `activation` joins the inner rows."""
    shares = np.exp(router) / np.exp(router).sum(-1, keepdims=True)
    result = np.zeros(x.shape)
    for t, row in enumerate(x):
        chosen = np.argsort(-shares[t], kind="stable")[:k]
        weights = (shares if mixing is None else mixing)[t, chosen]
        for expert, weight in zip(chosen, weights / weights.sum() if normal else weights, strict=True):
            first, second, third = (None if layer is None else (layer[0][expert], layer[1][expert]) for layer in layers)
            inner = first[0] @ row + first[1]
            other = None if third is None else third[0] @ row + third[1]
            result[t] += weight * (second[0] @ activation(inner, other) + second[1])
    return result


def swiglu(fusion, activation_alpha=1.0, activation_beta=0.0, swiglu_limit=np.inf):
    def activation(inner, other):
        halves = {0: (inner, other), 1: (inner[::2], inner[1::2]), 2: np.split(inner, 2)}
        gate, value = halves[fusion]
        gate, value = np.minimum(gate, swiglu_limit), np.clip(value, -swiglu_limit, swiglu_limit)
        return gate * sigmoid(activation_alpha * gate) * (value + activation_beta)

    return activation


def experts(inner, width=8, count=4):
    return (real(count, inner, width), real(count, inner)), (real(count, width, 12), real(count, width))


@pytest.mark.parametrize("special", [{}, SPECIAL])
@pytest.mark.parametrize("normal", [0, 1])
def test_interleaved_gated_experts(special, normal):
    first, second = experts(24)
    operands = [real(6, 8), real(6, 4, low=-3, high=3), *map(fixed, (*first, *second))]
    settings = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": normal}
    check(("MoE", operands, {**settings, **special, "tolerance": 1e-5}))


@pytest.mark.parametrize("special", [{}, SPECIAL])
@pytest.mark.parametrize("fusion", [0, 2])
def test_gated_experts_that_onnxruntime_has_on_gpus_only(fusion, special):
    first, second = experts(24 if fusion else 12)
    third = None if fusion else (real(4, 12, 8), real(4, 12))
    x, router = real(2, 3, 8), real(6, 4, low=-3, high=3)
    operands = [x, router, *first, *second, *(third or ())]
    settings = {"activation_type": "swiglu", "swiglu_fusion": fusion, **special}
    (result,) = run("MoE", operands, k=2, **settings)
    expected = mixed(x.reshape(6, 8), router, (first, second, third), swiglu(fusion, **special), 2)
    np.testing.assert_allclose(result, expected.reshape(x.shape), rtol=1e-4, atol=1e-5)


def test_experts_with_a_gate_of_their_own():
    (first, second), third = experts(12), (real(4, 12, 8), real(4, 12))
    x, router = real(6, 8), real(6, 4, low=-3, high=3)
    (result,) = run("MoE", [x, router, *first, *second, *third], k=2, activation_type="silu")
    expected = mixed(x, router, (first, second, third), lambda inner, other: inner * sigmoid(inner) * other, 2)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def pack(numbers, bits):
    each = 8 // bits
    numbers = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
    parts = numbers.reshape(*numbers.shape[:-1], -1, each).astype(np.uint8)
    return np.bitwise_or.reduce(parts << (bits * np.arange(each, dtype=np.uint8)), -1).astype(np.uint8)


def quantised(shape, bits, block, has_zeros):
    """Packed weights, scales and zero points of experts, and the numbers that they stand for."""
    generator, size = np.random.default_rng(bits + block), block or shape[-1]
    blocks = shape[-1] // size
    numbers = generator.integers(0, 1 << bits, shape)
    scales = (generator.uniform(0.2, 0.8, (*shape[:2], blocks)) / (1 << bits)).astype(np.float32)
    zeros = generator.integers(0, 1 << bits, scales.shape) if has_zeros else np.full(scales.shape, 1 << (bits - 1))
    weight = (numbers - zeros.repeat(size, -1)) * scales.repeat(size, -1)
    if not block:
        scales, zeros = scales[..., 0], zeros[..., 0]
    return pack(numbers, bits), scales, pack(zeros, bits) if has_zeros else None, weight


def quantised_operands(bits, block, has_zeros, inner, second_bits=None):
    first = quantised((4, inner, 32), bits, block, has_zeros)
    second = quantised((4, 32, 16), second_bits or bits, block, has_zeros)
    biases = real(4, inner), real(4, 32)
    operands = [
        real(6, 32), real(6, 4, low=-3, high=3), fixed(first[0]), fixed(first[1]), fixed(biases[0]), fixed(second[0]),
        fixed(second[1]), fixed(biases[1]), None, None, None,
    ]  # fmt: skip
    operands += [fixed(first[2]), fixed(second[2])] if has_zeros else []
    return operands, ((first[3], biases[0]), (second[3], biases[1]), None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(2, 0), (2, 16), (4, 0), (4, 16), (8, 0)])
def test_quantised_experts(bits, block, has_zeros):
    sizes = {"k": 2, "expert_weight_bits": bits, **({"block_size": block} if block else {}), "tolerance": 1e-4}
    plain, _ = quantised_operands(bits, block, has_zeros, 16)
    gated, _ = quantised_operands(bits, block, has_zeros, 32)
    check(
        *(("QMoE", plain, {**sizes, "activation_type": kind}) for kind in ("relu", "gelu", "silu", "identity")),
        *(("QMoE", gated, {**sizes, "activation_type": "swiglu", "swiglu_fusion": 1, **s}) for s in ({}, SPECIAL)),
    )


@pytest.mark.parametrize("normal", [0, 1])
def test_quantised_experts_with_weights_beside_the_router(normal):
    operands, _ = quantised_operands(8, 0, False, 16)
    mixing = real(6, 4, low=0.1)
    settings = {"k": 2, "expert_weight_bits": 8, "normalize_routing_weights": normal, "tolerance": 1e-4}
    check(("QMoE", [*operands, None, None, None, mixing], settings))


@pytest.mark.parametrize("has_zeros", [False, True])
def test_quantised_experts_by_hand(has_zeros):
    """Blocks of eight bits, for which the CPU kernel rounds activations, and layers of different bits."""
    for bits, second_bits in ((8, 8), (4, 8)):
        operands, layers = quantised_operands(bits, 16, has_zeros, 32, second_bits)
        settings = {"activation_type": "swiglu", "swiglu_fusion": 1, "block_size": 16, "expert_weight_bits": bits}
        if second_bits != bits:
            settings["fc2_expert_weight_bits"] = second_bits
        (result,) = run("QMoE", operands, k=3, **settings)
        expected = mixed(operands[0], operands[1], layers, swiglu(1), 3, normal=True)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{"quant_type": "fp8"}, {"weights_prepacked": 1}, {"activation_type": "tanh"}])
def test_experts_in_other_forms_are_refused(settings):
    operands, _ = quantised_operands(8, 0, False, 16)
    with pytest.raises(ontrain.OntrainError):
        run("QMoE", operands, k=2, **{"expert_weight_bits": 8, **settings})


HEADS, GROUPS, WIDTH, ROOM, BLOCK = 4, 2, 16, 64, 16


def compressed(seen):
    columns = [np.concatenate([np.nonzero(row)[0] for row in layout]) for layout in seen]
    longest = max(map(len, columns))
    rows = [np.concatenate([[0], np.cumsum(layout.sum(1))]) for layout in seen]
    padded = [np.pad(places, (0, longest - len(places)), constant_values=-1) for places in columns]
    return np.array(rows, np.int32), np.array(padded, np.int32)


def sparse(length, pasts, *, layouts=2, packed=False, rotary=False):
    """Operands of SparseAttention, and what has to be seen by which head."""
    generator = np.random.default_rng(length)
    seen = np.tril(generator.integers(0, 2, (layouts, ROOM // BLOCK, ROOM // BLOCK))) | np.eye(ROOM // BLOCK, dtype=int)
    parts = [real(2, length, heads * WIDTH) for heads in (HEADS, GROUPS, GROUPS)]
    lengths = np.array([past + length for past in pasts], np.int32)
    operands = [np.concatenate(parts, -1), None, None] if packed else list(parts)
    operands += [real(2, GROUPS, ROOM, WIDTH), real(2, GROUPS, ROOM, WIDTH), *map(fixed, compressed(seen))]
    operands += [fixed(np.array([lengths.max()], np.int32)), lengths]
    if rotary:
        angles = np.arange(ROOM)[:, None] / 100 ** (np.arange(WIDTH // 2) / 8)
        operands += [fixed(np.cos(angles).astype(np.float32)), fixed(np.sin(angles).astype(np.float32))]
    return operands, parts, seen, {"num_heads": HEADS, "kv_num_heads": GROUPS, "sparse_block_size": BLOCK}


def in_shared_buffers(operands, attributes):
    """Stock's results; its kernel writes new keys and values into the past ones' memory."""
    model, feeds = model_of("SparseAttention", operands, 3, attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    arrays = {name: feeds.pop(name).copy() for name in ("x3", "x4")}  # whose memory the values share
    buffers = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for (name, value), output in zip(buffers.items(), ("y1", "y2"), strict=True):
        binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(output, value)
    binding.bind_output("y0")
    session.run_with_iobinding(binding)
    (result,) = (
        v.numpy() for v, o in zip(binding.get_outputs(), session.get_outputs(), strict=False) if len(v.shape()) == 3
    )
    return [result, *arrays.values()]


@pytest.mark.parametrize("rotary", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}])
@pytest.mark.parametrize(("length", "past"), [(40, 0), (64, 0), (1, 30), (3, 33)])
def test_attention_over_blocks(length, past, rotary):
    for packed, scale in ((False, {}), (True, {"scale": 0.3})):
        operands, _, _, attributes = sparse(length, (past, past), packed=packed, rotary=bool(rotary))
        expected = in_shared_buffers(operands, {**attributes, **rotary, **scale})
        results = run("SparseAttention", operands, 3, **attributes, **rotary, **scale)
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layouts", [1, 2, 4])
def test_attention_over_blocks_of_sequences_of_different_lengths(layouts):
    """By hand: in such a batch stock's kernel reads memory that nothing wrote."""
    operands, (query, key, value), seen, attributes = sparse(1, (30, 50), layouts=layouts)
    result, keys, values = run("SparseAttention", operands, 3, **attributes)
    for b, past in enumerate((30, 50)):
        k, v = operands[3][b].copy(), operands[4][b].copy()
        k[:, past], v[:, past] = key[b, 0].reshape(GROUPS, WIDTH), value[b, 0].reshape(GROUPS, WIDTH)
        np.testing.assert_array_equal(keys[b], k)
        np.testing.assert_array_equal(values[b], v)
        for head in range(HEADS):
            visible = seen[head % layouts, past // BLOCK, np.arange(past + 1) // BLOCK] == 1
            of_head = slice(head * WIDTH, (head + 1) * WIDTH)
            scores = k[head // 2, : past + 1] @ query[b, 0, of_head] * WIDTH**-0.5
            shares = np.where(visible, np.exp(scores), 0)
            expected = shares / shares.sum() @ v[head // 2, : past + 1]
            np.testing.assert_allclose(result[b, 0, of_head], expected, rtol=1e-4, atol=1e-5)
