"""onnxruntime's own operators on the torch provider against stock onnxruntime's kernels, on random operands."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ontrain

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(20)


def real(*shape, low=-1.0, high=1.0):
    return RNG.uniform(low, high, shape).astype(np.float32)


def whole(*shape, kind=np.uint8):
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max, shape, kind, endpoint=True)


def weights(*shape):
    """int8 of seven bits: on a processor without VNNI stock's sums of products with eight saturate, and are wrong."""
    return RNG.integers(-64, 64, shape, np.int8, endpoint=True)


def scalar(value, kind=np.float32):
    return np.array(value, kind)


class Constant(np.ndarray):
    """An operand that is an initializer of the file."""


def fixed(array):
    return np.asarray(array).view(Constant)


def model_of(op_type, operands, outputs, attributes):
    feeds, constants, infos = {}, [], []
    for i, operand in enumerate(operands):
        if operand is None:
            continue
        if isinstance(operand, Constant):
            constants.append(numpy_helper.from_array(np.asarray(operand), f"x{i}"))
            continue
        feeds[f"x{i}"] = operand
        kind = helper.np_dtype_to_tensor_dtype(operand.dtype)
        infos.append(helper.make_tensor_value_info(f"x{i}", kind, list(operand.shape)))
    names = ["" if operand is None else f"x{i}" for i, operand in enumerate(operands)]
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], domain=MICROSOFT, **attributes)
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "g", infos, results, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def compare(op_type, operands, outputs=1, tolerance=1e-4, **attributes):
    """What differs between the two, in a line; "" if nothing does. One step of a quantised result is nothing."""
    model, feeds = model_of(op_type, operands, outputs, attributes)
    stock = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = stock.run(None, feeds)
    for value, info in zip(stock.get_outputs(), model.graph.output, strict=True):
        kind = {"tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(int32)": 6, "tensor(int64)": 7}
        info.type.tensor_type.elem_type = kind[value.type]
    try:
        session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"], strict_providers=True)
        results = session.run(None, feeds)
    except ontrain.OntrainError as error:
        return f"{op_type} {attributes}: {error}"
    for i, (result, value) in enumerate(zip(results, expected, strict=True)):
        if result.shape != value.shape or result.dtype != value.dtype:
            return f"{op_type} {attributes}: y{i} is {result.dtype}{result.shape}, not {value.dtype}{value.shape}"
        step = 1 if value.dtype.kind in "iu" and value.dtype.itemsize == 1 else tolerance
        distance = np.abs(result.astype(np.float64) - value.astype(np.float64)).max(initial=0.0)
        if not distance <= step:
            return f"{op_type} {attributes}: y{i} is off by {distance}"
    return ""


def check(*rows):
    problems = [compare(op_type, operands, **options) for op_type, operands, options in rows]
    assert not any(problems), "\n".join(problem for problem in problems if problem)


def test_products_of_whole_numbers():
    a, b, column = whole(2, 3, 8), weights(8, 5), real(5, low=0.01, high=0.1)
    zero, zeros = scalar(120, np.uint8), whole(5, kind=np.int8)
    gemm = [whole(3, 8), scalar(0.02), zero, b, scalar(0.05), scalar(3, np.int8)]
    c = RNG.integers(-500, 500, (3, 5)).astype(np.int32)
    check(
        ("MatMulIntegerToFloat", [a, b, scalar(0.1), scalar(0.05)], {}),
        ("MatMulIntegerToFloat", [a, b, scalar(0.1), column, zero, zeros, real(5)], {}),
        ("DynamicQuantizeMatMul", [real(2, 3, 8), b, scalar(0.05)], {"tolerance": 0.05}),
        ("DynamicQuantizeMatMul", [real(2, 3, 8), b, column, zeros, real(5)], {"tolerance": 0.1}),
        ("QGemm", gemm, {}),
        ("QGemm", [*gemm, c, scalar(0.3), zero], {"alpha": 2.0}),
        (
            "QGemm",
            [whole(8, 3), scalar(0.02), zero, whole(5, 8), scalar(0.03), zero, None, scalar(0.4), zero],
            {"transA": 1, "transB": 1},
        ),
    )


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_elementwise_operators_on_quantised_numbers(kind):
    scale, zero, other = scalar(0.03), scalar(5, kind), scalar(7, kind)
    x, y = whole(2, 3, 4, kind=kind), whole(3, 1, kind=kind)
    check(
        ("QLinearAdd", [x, scale, zero, y, scalar(0.05), other, scalar(0.07), zero], {}),
        ("QLinearMul", [x, scale, zero, y, scalar(0.05), zero, scalar(0.2), other], {}),
        ("QLinearSigmoid", [x, fixed(scale), fixed(zero), fixed(scalar(1 / 256)), fixed(zero)], {}),
        ("QLinearLeakyRelu", [x, fixed(scale), fixed(zero), fixed(scalar(0.04)), fixed(other)], {"alpha": 0.2}),
        (
            "QLinearSoftmax",
            [x, fixed(scale), fixed(zero), fixed(scalar(1 / 256)), fixed(zero)],
            {"axis": -1, "opset": 13},
        ),
        (
            "QLinearSoftmax",
            [x, fixed(scale), fixed(zero), fixed(scalar(1 / 256)), fixed(zero)],
            {"axis": 1, "opset": 12},
        ),
        (
            "QLinearConcat",
            [scale, zero, x, scalar(0.02), other, whole(2, 1, 4, kind=kind), scalar(0.06), zero],
            {"axis": 1},
        ),
        ("QLinearWhere", [x > 20, x, scale, zero, y, scalar(0.05), other, scalar(0.06), zero], {}),
    )


def test_pools_and_convolutions_of_quantised_images():
    scale, zero = scalar(0.03), scalar(100, np.uint8)
    x, w = whole(2, 4, 7, 6), weights(6, 4, 3, 3)
    conv = [fixed(scalar(0.02)), fixed(scalar(0, np.int8)), fixed(scalar(0.4)), fixed(zero)]
    bias = RNG.integers(-400, 400, 6).astype(np.int32)
    moved = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    check(
        ("QLinearAveragePool", [x, scale, zero, scalar(0.02), zero], {"kernel_shape": [2, 2]}),
        ("QLinearAveragePool", [moved, scale, zero, scalar(0.02), zero], {"channels_last": 1, **window}),
        ("QLinearGlobalAveragePool", [x, scale, zero, scalar(0.02), zero], {"channels_last": 0}),
        ("QLinearGlobalAveragePool", [moved, scale, zero, scalar(0.02), zero], {"channels_last": 1}),
        ("NhwcMaxPool", [moved], window),
        ("NhwcMaxPool", [whole(1, 5, 5, 3, kind=np.int8)], {"kernel_shape": [2, 2]}),
        (
            "QLinearConv",
            [moved, fixed(scale), fixed(zero), fixed(w), *conv, fixed(bias)],
            {"channels_last": 1, **window},
        ),
    )


def test_weights_of_few_bits():
    a, packed = real(2, 3, 48), whole(48 * 20 // 2)
    largest = real(60, low=0.5, high=2)
    ids, scales = RNG.integers(0, 9, (2, 3)), real(9, 4, low=0.01, high=0.1)
    check(
        *(
            ("MatMulBnb4", [a, fixed(packed), fixed(largest)], {"K": 48, "N": 20, "block_size": 16, "quant_type": kind})
            for kind in (0, 1)
        ),
        (
            "GatherBlockQuantized",
            [fixed(whole(9, 32)), ids, fixed(scales)],
            {"block_size": 16, "quantize_axis": 1, "bits": 4},
        ),
        (
            "GatherBlockQuantized",
            [fixed(whole(9, 32)), ids, fixed(scales), fixed(whole(9, 2))],
            {"block_size": 16, "bits": 4},
        ),
        ("GatherBlockQuantized", [fixed(whole(9, 64)), ids, fixed(scales)], {"block_size": 16, "bits": 8}),
    )


def few_bits(bits, zero, grouped, width, rows=5, size=32):
    """Operands and attributes of a MatMulNBits, and its weight [rows, width] by the definition."""
    blocks, most = -(-width // size), 2**bits
    numbers, scales = RNG.integers(0, most, (rows, blocks * size), np.uint8), real(rows, blocks, low=0.01, high=0.1)
    packed = numbers.reshape(rows, blocks, -1, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    zeros = np.full((rows, blocks), most // 2, np.float32)
    stored = None
    if zero == "whole":
        zeros = RNG.integers(0, most, (rows, blocks), np.uint8)
        filled = np.pad(zeros, [(0, 0), (0, -blocks % (8 // bits))]).reshape(rows, -1, 8 // bits)
        stored = fixed((filled << np.arange(0, 8, bits, dtype=np.uint8)).sum(-1, dtype=np.uint8))
    elif zero == "real":
        zeros = real(rows, blocks, low=0, high=most)
        stored = fixed(zeros)
    places = RNG.integers(0, blocks, width, np.int32) if grouped else (np.arange(width) // size).astype(np.int32)
    weight = (numbers[:, :width] - zeros[:, places].astype(np.float32)) * scales[:, places]
    operands = [fixed(packed.sum(-1, dtype=np.uint8)), fixed(scales), stored, fixed(places) if grouped else None]
    return operands, {"K": width, "N": rows, "bits": bits, "block_size": size}, weight


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("grouped", [False, True], ids=["", "grouped"])
@pytest.mark.parametrize("zero", ["", "whole", "real"])
@pytest.mark.parametrize("width", [96, 90])
def test_zero_points_and_groups_of_a_weight_of_few_bits(bits, zero, grouped, width):
    operands, attributes, weight = few_bits(bits, zero, grouped, width)
    a = real(2, width)
    proto, feeds = model_of("MatMulNBits", [a, *operands], 1, attributes)
    session = ontrain.InferenceSession(proto, providers=["TorchExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], a @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("bits", "zero", "grouped"),
    [
        (4, "", True),
        (4, "real", True),
        (4, "real", False),
        (4, "whole", False),
        (2, "real", False),
        (2, "whole", False),
    ],
)
def test_onnxruntime_has_the_same_zero_points_and_groups(bits, zero, grouped):
    """It has no groups of other weights, and leaves out the whole zero points of those of four bits."""
    operands, attributes, _ = few_bits(bits, zero, grouped, 96)
    check(("MatMulNBits", [real(2, 96), *operands], {**attributes, "tolerance": 1e-3}))


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("zero", [False, True])
def test_a_table_of_numbers_of_four_bits(kind, zero):
    """A byte for each number, as `ml_dtypes` has them."""
    low = -8 if kind == "int4" else 0
    table, zeros = (RNG.integers(low, low + 16, shape).astype(getattr(ml_dtypes, kind)) for shape in ((9, 64), (9, 4)))
    operands = [fixed(table), RNG.integers(0, 9, (2, 3)), fixed(real(9, 4, low=0.01, high=0.1))]
    check(("GatherBlockQuantized", [*operands, *([fixed(zeros)] if zero else [])], {"block_size": 16}))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("zero", [False, True])
def test_a_table_of_few_bits_is_gathered_along_its_blocks(axis, zero):
    """onnxruntime's quantiser writes such tables of embeddings with `quant_axes=(("Gather", 0),)`."""
    shapes = [(40, 6), (3, 6)] if axis == 0 else [(6, 40), (6, 3)]
    table, zeros = (RNG.integers(-8, 8, shape).astype(ml_dtypes.int4) for shape in shapes)
    scales = fixed(real(*shapes[1], low=0.01, high=0.1))
    operands = [fixed(table), RNG.integers(-40, 40, (2, 3)), scales, *([fixed(zeros)] if zero else [])]
    check(("GatherBlockQuantized", operands, {"block_size": 16, "gather_axis": axis, "quantize_axis": axis}))


@pytest.mark.parametrize("whole_zero", [False, True])
def test_a_gather_of_blocks_of_open_sizes_is_written_in_standard_operators(whole_zero, tmp_path):
    zeros = [fixed(whole(9, 2))] if whole_zero else []
    operands = [fixed(whole(9, 32)), RNG.integers(0, 9, (2, 3)), fixed(real(9, 4, low=0.01, high=0.1)), *zeros]
    proto, feeds = model_of("GatherBlockQuantized", operands, 1, {"block_size": 16, "bits": 4})
    for i, dim in enumerate(proto.graph.input[0].type.tensor_type.shape.dim):
        dim.dim_param = f"size{i}"
    options = ontrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = ontrain.InferenceSession(proto, options, providers=["TorchExecutionProvider"])
    written = onnxruntime.InferenceSession(tmp_path / "optimised.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(written.run(None, feeds)[0], session.run(None, feeds)[0], rtol=1e-5, atol=1e-6)


def test_quantisation_to_16_bits():
    x = real(3, 4, high=30)
    for kind in (np.uint8, np.int8, np.uint16, np.int16):
        check(("DequantizeLinear", [whole(3, 4, kind=kind), scalar(0.05), scalar(9, kind)], {}))
    check(
        ("QuantizeLinear", [x, scalar(0.05), scalar(9, np.uint8)], {}),
        ("QuantizeLinear", [x, real(4, low=0.1), whole(4)], {"axis": 1}),
    )


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstms_with_quantised_weights_are_near_the_quantised_ones(direction):
    count = 2 if direction == "bidirectional" else 1
    for scales in ((count,), (count, 32)):
        w, r = weights(count, 6, 32), weights(count, 8, 32)
        quantisation = [fixed(real(*scales, low=0.004, high=0.006)), fixed(np.zeros(scales, np.int8))]
        operands = [
            real(5, 2, 6),
            fixed(w),
            fixed(r),
            fixed(real(count, 64)),
            None,
            real(count, 2, 8),
            real(count, 2, 8),
            None,
        ]
        check(
            (
                "DynamicQuantizeLSTM",
                [*operands, *quantisation, *quantisation],
                {"outputs": 3, "hidden_size": 8, "direction": direction, "tolerance": 0.03},
            )
        )


def test_embeddings_of_quantised_tables():
    tables = [fixed(whole(n, 8)) for n in (20, 10, 2)]
    vectors = [fixed(whole(8)) for _ in range(2)]
    scales, zeros = (
        [fixed(scalar(s)) for s in (0.02, 0.01, 0.03, 0.01, 0.02)],
        [fixed(scalar(z, np.uint8)) for z in (128, 120, 130, 10, 99)],
    )
    ids, kinds = RNG.integers(0, 20, (2, 6)).astype(np.int32), RNG.integers(0, 2, (2, 6)).astype(np.int32)
    mask = (np.arange(6) < np.array([[6], [4]])).astype(np.int32)
    check(("QEmbedLayerNormalization", [ids, kinds, *tables, *vectors, mask, *scales, *zeros], {"outputs": 2}))


def test_attention_with_one_projection():
    x, w, b = real(2, 5, 16), real(16, 48), real(48)
    lengths, both = np.array([5, 3], np.int32), np.array([5, 4, 0, 1], np.int32)
    raw = (np.arange(5) < np.array([[5], [3]])).astype(np.int32)
    past = real(2, 2, 4, 3, 4)
    long = (np.arange(8) < np.array([[8], [7]])).astype(np.int32)
    triangle = np.broadcast_to(np.tril(np.ones((5, 5), np.int32)), (2, 5, 5)).copy()
    heads = {"num_heads": 4, "tolerance": 2e-3}
    check(
        ("Attention", [x, w, b], heads),
        ("Attention", [x, w, b], {**heads, "scale": 0.3}),
        ("Attention", [x, w, b, lengths], heads),
        ("Attention", [x, w, b, both], heads),
        ("Attention", [x, w, b, raw], {**heads, "mask_filter_value": -50.0}),
        ("Attention", [x, w, b, triangle], heads),
        ("Attention", [x, w, b, long, past], {**heads, "outputs": 2}),
        ("Attention", [x, w, b], {**heads, "unidirectional": 1, "outputs": 2}),
        ("Attention", [x, w, b, long, past], {**heads, "outputs": 2, "unidirectional": 1}),
        ("Attention", [x, w, b, None, None, real(2, 4, 5, 5)], heads),
        ("Attention", [x, real(16, 40), real(40)], {**heads, "qkv_hidden_sizes": [16, 16, 8]}),
        (
            "QAttention",
            [
                whole(2, 5, 16),
                fixed(weights(16, 48)),
                fixed(b),
                scalar(0.01),
                fixed(scalar(0.02)),
                lengths,
                scalar(128, np.uint8),
                fixed(scalar(0, np.int8)),
            ],
            heads,
        ),
    )


def test_attention_of_many_heads():
    q, k, v, bias = real(2, 5, 16), real(2, 7, 16), real(2, 7, 16), real(48)
    mask = (np.arange(7) < np.array([[7], [4]])).astype(np.int32)
    heads = {"num_heads": 4}
    past, own = real(2, 4, 3, 4), real(2, 5, 16)
    check(
        ("MultiHeadAttention", [q, k, v], heads),
        ("MultiHeadAttention", [q, k, v, bias], {**heads, "scale": 0.2}),
        ("MultiHeadAttention", [q, k, v, None, mask], heads),
        ("MultiHeadAttention", [q, k, v, None, np.array([7, 2], np.int32)], heads),
        ("MultiHeadAttention", [q, k, v, bias, None, real(2, 4, 5, 7)], heads),
        ("MultiHeadAttention", [q, k, v, None, None, real(1, 1, 5, 7)], heads),
        ("MultiHeadAttention", [q, real(2, 4, 7, 4), real(2, 4, 7, 4)], heads),
        ("MultiHeadAttention", [q, own, own, bias, None, None, past, past], {**heads, "outputs": 3}),
        (
            "MultiHeadAttention",
            [q, own, own, None, None, None, past, past],
            {**heads, "outputs": 3, "unidirectional": 1},
        ),
        # Of other keys, a query sees as many as there are queries up to it, and the last one sees all.
        ("MultiHeadAttention", [q, k, v], {**heads, "unidirectional": 1}),
        ("MultiHeadAttention", [k, q, q], {**heads, "unidirectional": 1}),
    )


def test_the_mean_of_a_norm_without_mean_is_zero():
    x, gamma = real(2, 3, 8), real(8)
    check(("SkipSimplifiedLayerNormalization", [x, real(2, 3, 8), gamma], {"outputs": 4}))


def test_attention_of_one_query_behind_a_buffer():
    past = [real(2, 4, 6, 4) for _ in range(2)]
    fresh = [real(2, 1, 16) for _ in range(3)]
    mask = np.array([[1, 1, 1, 1], [0, 1, 1, 1]], np.int32)
    count = np.array([3], np.int32)
    shared = {"num_heads": 4, "past_present_share_buffer": 1, "outputs": 3}
    name = "DecoderMaskedMultiHeadAttention"
    check(
        (name, [*fresh, None, None, *past, count], shared),
        (name, [*fresh, mask, None, *past, count], {**shared, "mask_filter_value": -20.0, "scale": 0.2}),
        (name, [*fresh, None, real(2, 4, 1, 4), *past, count, None, None, real(48)], shared),
    )


def test_attention_of_one_query_gives_its_scores():
    query, mask = real(2, 1, 16), np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0]], np.int32)
    keys, values = real(2, 4, 5, 4), real(2, 4, 5, 4)
    past, count = [real(2, 4, 6, 4) for _ in range(2)], fixed(np.array([3], np.int32))
    behind = np.array([[1, 1, 1, 1], [0, 1, 1, 1]], np.int32)
    scored = {"num_heads": 4, "output_qk": 1}
    shared = {**scored, "past_present_share_buffer": 1}
    fresh = [query, real(2, 1, 16), real(2, 1, 16)]
    for operands, attributes in (
        ([*fresh, None, None, *past, count], shared),
        ([*fresh, behind, real(1, 1, 1, 4), *past, count], {**shared, "scale": 0.2, "mask_filter_value": -20.0}),
        ([query, keys, values], scored),
        ([query, keys, values, mask], {**scored, "mask_filter_value": -30.0}),
        ([query, keys, values, *[None] * 7, real(48)], {**scored, "scale": 0.5}),
    ):
        model, feeds = model_of("DecoderMaskedMultiHeadAttention", operands, 4, attributes)
        if "past_present_share_buffer" not in attributes:
            del model.graph.output[1:3]
            model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
        for output in model.graph.output:
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        stock = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"], strict_providers=True)
        for mine, theirs in zip(session.run(None, feeds), stock.run(None, feeds), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_packed_operands_are_the_same_side_by_side():
    q, k, v = (real(2, 5, 4, 4) for _ in range(3))
    separate, feeds = model_of("MultiHeadAttention", [x.reshape(2, 5, 16) for x in (q, k, v)], 1, {"num_heads": 4})
    stock = onnxruntime.InferenceSession(separate.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = stock.run(None, feeds)
    for operands in ([np.stack([q, k, v], 3)], [q.reshape(2, 5, 16), np.stack([k, v], 3)]):
        model, feeds = model_of("MultiHeadAttention", operands, 1, {"num_heads": 4})
        model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        (result,) = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, feeds)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def tables(width, length=16):
    angle = np.outer(np.arange(length), 10000.0 ** (-np.arange(width // 2) / (width // 2)))
    return fixed(np.cos(angle).astype(np.float32)), fixed(np.sin(angle).astype(np.float32))


def test_rotary_positions():
    places = RNG.integers(0, 16, (2, 5))
    for interleaved in (0, 1):
        check(
            ("RotaryEmbedding", [real(2, 5, 24), places, *tables(8)], {"interleaved": interleaved}),
            ("RotaryEmbedding", [real(2, 3, 5, 8), places, *tables(8)], {"interleaved": interleaved}),
            ("RotaryEmbedding", [real(2, 5, 24), np.array([3]), *tables(8)], {"interleaved": interleaved}),
            (
                "RotaryEmbedding",
                [real(2, 5, 24), places, *tables(4)],
                {"interleaved": interleaved, "num_heads": 3, "rotary_embedding_dim": 4},
            ),
        )


def group(length, past, total, lengths, buffer=0, extra=(), packed=False, **attributes):
    """Four heads of width 16 that share two of keys and values."""
    batch = len(lengths)
    projected = [real(batch, length, 128), None, None] if packed else [real(batch, length, n) for n in (64, 32, 32)]
    cache = [real(batch, 2, buffer or past, 16) for _ in range(2)]
    operands = [*projected, *cache, np.array(lengths, np.int32), fixed(np.array(total, np.int32)), *extra]
    return "GroupQueryAttention", operands, {"num_heads": 4, "kv_num_heads": 2, "outputs": 3, **attributes}


def test_attention_of_groups():
    rotary = {"do_rotary": 1}
    check(
        group(5, 0, 5, [4, 4]),
        group(5, 0, 5, [4, 4], packed=True),
        group(5, 0, 5, [4, 4], extra=tables(16), **rotary),
        group(5, 0, 5, [4, 4], extra=tables(16), **rotary, rotary_interleaved=1),
        group(1, 6, 7, [6, 6], extra=tables(16), **rotary),
        group(1, 6, 7, [6, 6], extra=tables(16), packed=True, **rotary),
        group(3, 6, 9, [8], extra=tables(16), **rotary),
        group(1, 6, 7, [6, 6], local_window_size=3),
        group(5, 0, 5, [4, 4], local_window_size=2),
        group(5, 0, 5, [4, 4], softcap=2.0, scale=0.5),
        group(5, 0, 5, [4, 4], smooth_softmax=1),
        group(1, 6, 7, [6, 6], extra=[None, None, None, real(2, 4, 1, 7)]),
    )


def test_matrices_and_lists():
    check(
        ("TransposeMatMul", [real(2, 4, 3), real(2, 4, 5)], {"transA": 1, "alpha": 0.5}),
        ("Inverse", [real(2, 3, 4, 4) + 2 * np.eye(4, dtype=np.float32)[::-1]], {"tolerance": 1e-3}),
        ("Trilu", [real(3, 4), fixed(np.array(1))], {"upper": 0}),
        ("GatherND", [real(3, 4, 5), np.array([[0, 1], [2, 3]])], {}),
        ("Pad", [real(2, 3), fixed(np.array([1, 0, 2, 1])), fixed(scalar([0.5]))], {}),
        ("Range", [fixed(scalar(1.0)), fixed(scalar(5.5)), fixed(scalar(0.5))], {}),
        ("Range", [fixed(np.array([2])), fixed(np.array([7]))], {}),
        ("ExpandDims", [real(2, 3), fixed(np.array(1, np.int32))], {}),
        ("Unique", [np.float32([2, 1, 1, 3, 4, 3])], {"outputs": 3}),
        ("CDist", [real(4, 3), real(5, 3)], {"metric": "euclidean"}),
        ("CDist", [real(4, 3), real(5, 3)], {"metric": "sqeuclidean"}),
    )


def test_images():
    regions = np.float32([[0, 0, 1, 1], [0.2, 0.1, 0.7, 0.9], [0.5, 0.5, 1.3, 1.2]])
    image, grid = real(2, 3, 6, 5), real(2, 4, 3, 2, low=-1.2, high=1.2)
    check(
        (
            "CropAndResize",
            [image, regions, np.array([0, 1, 1], np.int32), fixed(np.array([4, 3], np.int32))],
            {"extrapolation_value": 0.25},
        ),
        ("CropAndResize", [image, regions, np.array([1, 0, 1], np.int32), fixed(np.array([1, 2], np.int32))], {}),
        *(
            ("GridSample", [image, grid], {"mode": mode, "padding_mode": padding, "align_corners": corners})
            for mode in ("bilinear", "bicubic", "nearest")
            for padding in ("zeros", "border", "reflection")
            for corners in (0, 1)
        ),
    )


def test_recurrent_forms_of_attention_and_experts():
    heads = {"q_num_heads": 2, "kv_num_heads": 2, "outputs": 2, "tolerance": 1e-4}
    x = [real(2, 5, 8) for _ in range(3)]
    check(
        ("LinearAttention", x, {**heads, "update_rule": "linear"}),
        (
            "LinearAttention",
            [*x, real(2, 2, 4, 4), real(2, 5, 2, high=0), real(2, 5, 2, low=0)],
            {**heads, "update_rule": "gated_delta"},
        ),
        (
            "CausalConvWithState",
            [real(2, 4, 6), real(4, 1, 3), real(4), real(2, 4, 2)],
            {"outputs": 2, "activation": "silu"},
        ),
        ("CausalConvWithState", [real(2, 4, 6), real(4, 1, 3)], {"outputs": 2}),
        *(
            (
                "MoE",
                [
                    real(6, 8),
                    real(6, 4),
                    fixed(real(4, 12, 8)),
                    fixed(real(4, 12)),
                    fixed(real(4, 8, 12)),
                    fixed(real(4, 8)),
                ],
                {"k": 2, "activation_type": activation, "normalize_routing_weights": normal},
            )
            for activation in ("relu", "gelu", "silu", "identity")
            for normal in (0, 1)
        ),
    )
