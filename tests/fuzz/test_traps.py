"""What ended the process or never ended: divisions without an answer, loops without an end, indices out of range."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ontrain import GradientError, GraphError, InferenceSession, OntrainError, ProviderError
from ontrain.autodiff import differentiate
from ontrain.capture import load_onnx
from ontrain.files.expansion import check_expansion
from ontrain.functions.interpolation import resize
from ontrain.functions.registry import NoBodyError
from ontrain.functions.upsampling import interpolate
from ontrain.graph import Builder, new_model
from ontrain.graph.control import UNROLL_LIMIT, repeat
from tests.capture.onnx_file.models import const, node, value
from tests.fuzz.traps import INT64, LEAST, file

ROOT = Path(__file__).parents[2]


OWN = ["TorchExecutionProvider", "ReferenceExecutionProvider"]


PROVIDERS = ["CPUExecutionProvider", "OnnxRuntimeExecutionProvider", *OWN]


def division(op_type: str, dtype: int = INT64, **attributes) -> bytes:
    operands = [value("a", ["n"], dtype), value("b", ["n"], dtype)]
    return file([node(op_type, "a b", "y", **attributes)], operands, [value("y", ["n"], dtype)])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("op_type", "a", "b"), [("Div", 7, 0), ("Mod", 7, 0), ("Div", LEAST, -1)], ids=["zero", "rest of zero", "overflow"]
)
def test_a_division_without_an_answer_is_a_named_error(provider, op_type, a, b):
    session = InferenceSession(division(op_type), providers=[provider])
    with pytest.raises(ProviderError, match=r"(?s)divided|Zero|y"):
        session.run(None, {"a": np.array([4, a]), "b": np.array([2, b])})


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_divisions_with_an_answer_have_it(provider, dtype, rng):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    a = rng.integers(-99, 99, 64).astype(dtype)
    b = (rng.integers(1, 9, 64) * rng.choice([-1, 1], 64)).astype(dtype)
    (quotient,) = InferenceSession(division("Div", kind), providers=[provider]).run(None, {"a": a, "b": b})
    np.testing.assert_array_equal(quotient, [int(abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)
                                          for x, y in zip(a.tolist(), b.tolist(), strict=True)])  # fmt: skip
    (quotient,) = InferenceSession(division("Mod", kind), providers=[provider]).run(None, {"a": a, "b": b})
    np.testing.assert_array_equal(quotient, [x % y for x, y in zip(a.tolist(), b.tolist(), strict=True)])


def test_no_division_at_all_is_no_error():
    none = np.zeros(0, np.int64)
    assert InferenceSession(division("Div")).run(None, {"a": none, "b": none})[0].shape == (0,)


def test_large_quotients_of_constants_are_exact():
    model = file([node("Div", "a b", "q"), node("Add", "q x", "y")], [value("x", [1], INT64)], [value("y", [1], INT64)],
                [const("a", [2**62 + 3]), const("b", [1])])  # fmt: skip
    (quotient,) = InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, {"x": np.array([0])})
    assert int(quotient[0]) == 2**62 + 3


def test_a_loop_before_integer_arithmetic_is_refused():
    body = helper.make_graph(
        [node("Tanh", "c", "n"), node("Identity", "go", "g")], "body",
        [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("c", [2])],
        [value("g", [], TensorProto.BOOL), value("n", [2])],
    )  # fmt: skip
    stored = [const("m", 3), const("yes", True, np.bool_)]
    model = file([node("Loop", "m yes x", "y", body=body)], [value("x", [2])], [value("y", [2])], stored, 5)
    with pytest.raises(GraphError, match="operator set 5 cannot be bounded"):
        InferenceSession(model)


def counting(depth: int, inner: str = "Loop") -> bytes:
    """y counts rounds of `depth` loops in loops, each of `m` rounds; the count is fed."""

    def body(level: int) -> onnx.GraphProto:
        n = f"l{level}"
        step = [node("Add", f"{n}_c one", f"{n}_n")]
        if level > 1:
            step = [node("Loop", f"m - {n}_c", f"{n}_n", body=body(level - 1))]
        if level > 1 and inner == "If":
            branch = helper.make_graph([node("Loop", f"m - {n}_c", f"{n}_b", body=body(level - 1))], "b", [],
                                       [value(f"{n}_b", [], INT64)])  # fmt: skip
            other = helper.make_graph([node("Identity", f"{n}_c", f"{n}_o")], "o", [], [value(f"{n}_o", [], INT64)])
            step = [node("If", "yes", f"{n}_n", then_branch=branch, else_branch=other)]
        return helper.make_graph(
            [*step, node("Identity", f"{n}_go", f"{n}_g")], "body",
            [value(f"{n}_i", [], INT64), value(f"{n}_go", [], TensorProto.BOOL), value(f"{n}_c", [], INT64)],
            [value(f"{n}_g", [], TensorProto.BOOL), value(f"{n}_n", [], INT64)],
        )  # fmt: skip

    return file([node("Loop", "m - x", "y", body=body(depth))],
                [value("m", [], INT64), value("x", [], INT64), value("yes", [], TensorProto.BOOL)],
                [value("y", [], INT64)], [const("one", 1)])  # fmt: skip


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *OWN])
@pytest.mark.parametrize(("depth", "inner"), [(1, "Loop"), (2, "Loop"), (3, "Loop"), (2, "If")])
def test_rounds_of_loops_in_loops_are_counted_together(provider, depth, inner, monkeypatch):
    monkeypatch.setenv("ONTRAIN_LOOP_LIMIT", "50")
    session = InferenceSession(counting(depth, inner), providers=[provider])
    feeds = {"x": np.array(0), "m": np.array(3), "yes": np.array(True)}
    assert int(session.run(None, feeds)[0]) == 3**depth
    # One round of the outermost loop stays below the limit, all of them together do not.
    for many in (49 if depth > 1 else 51, 2**62):
        with pytest.raises(ProviderError, match=r"(?s)more than 50 rounds.*ONTRAIN_LOOP_LIMIT"):
            session.run(None, {**feeds, "m": np.array(many)})


def test_a_guarded_file_still_finds_its_external_data(tmp_path):
    proto = onnx.ModelProto.FromString(
        file([node("Div", "a big", "y")], [value("a", [2], INT64)], [value("y", [2], INT64)], [const("big", [0, 4])])
    )
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    with pytest.raises(ProviderError, match="divided"):
        InferenceSession(tmp_path / "m.onnx").run(None, {"a": np.array([1, 8])})


def test_external_data_that_is_no_file_is_refused_before_onnxruntime_opens_it(tmp_path):
    proto = onnx.ModelProto.FromString(
        file([node("Add", "a big", "y")], [value("a", [2], INT64)], [value("y", [2], INT64)], [const("big", [0, 4])])
    )
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    (tmp_path / "m.data").unlink()
    (tmp_path / "m.data").symlink_to("/dev/zero")
    with pytest.raises(GraphError, match=r"(?s)external data of initializer 'big'"):
        InferenceSession(tmp_path / "m.onnx")


_FAR = {
    "Gather": ("d i", [[1, 9]]), "GatherElements": ("d i", [[1, 9, 0, 1]]), "GatherND": ("d i", [[1, 9]]),
    "ScatterElements": ("d i u", [[1, 9, 0, 1]]), "ScatterND": ("d i v", [[9]]),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("provider", OWN)
@pytest.mark.parametrize("op_type", _FAR)
def test_an_index_out_of_range_is_a_named_error_stored_or_fed(op_type, provider, reduction):
    operands, far = _FAR[op_type]
    far, extra = np.array(far), {"reduction": reduction} if "Scatter" in op_type else {}
    stored = [const("d", np.arange(12).reshape(3, 4), np.float32), const("u", np.ones((1, 4)), np.float32),
              const("v", np.ones((1, 4)), np.float32)]  # fmt: skip
    nodes = [node(op_type, operands, "q", **extra), node("Mul", "q x", "y")]
    x = value("x", [1])
    with pytest.raises(GraphError, match=rf"(?s){op_type} has the index 9 for a dimension of size"):
        InferenceSession(file(nodes, [x], [value("y", None)], [*stored, const("i", far)], 18), providers=[provider])
    fed = file(nodes, [x, value("i", list(far.shape), INT64)], [value("y", None)], stored, 18)
    session = InferenceSession(fed, providers=[provider])
    with pytest.raises(OntrainError):
        session.run(None, {"x": np.ones(1, np.float32), "i": far})


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *OWN])
def test_one_hot_is_off_for_what_lies_outside(provider):
    model = file([node("OneHot", "i depth v", "y")], [value("i", [5], INT64)], [value("y", [5, 3])],
                [const("depth", 3), const("v", [-1, 1], np.float32)])  # fmt: skip
    (encoded,) = InferenceSession(model, providers=[provider]).run(None, {"i": np.array([0, -1, 3, -4, 99])})
    expected = np.full((5, 3), -1, np.float32)
    expected[0, 0] = expected[1, 2] = 1
    np.testing.assert_array_equal(encoded, expected)


_CHAIN = """
import resource, sys
from onnx import helper
from ontrain.capture import load_onnx
from tests.capture.onnx_file.models import node, value

resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
imports = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]
functions = [helper.make_function("c", "f0", ["a"], ["b"], [node("Relu", "a", "b")], imports)]
for i in range(1, 20_000):
    call = node(f"f{i - 1}", "a", "b", domain="c")
    functions.append(helper.make_function("c", f"f{i}", ["a"], ["b"], [call], imports))
graph = helper.make_graph([node("f19999", "x", "y", domain="c")], "g", [value("x", [2])], [value("y", [2])])
loaded = load_onnx(helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8))
print([n.op_type for n in loaded.evaluation.graph])
"""


@pytest.mark.thorough
def test_a_chain_of_twenty_thousand_functions_is_inlined_in_linear_time():
    """The square of it took minutes; the limit is of processor time, a multiple of what is needed."""
    done = subprocess.run([sys.executable, "-c", _CHAIN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['Relu']", done.stderr[-2000:]


def doubling(levels: int) -> bytes:
    """Functions that call the one before twice: 2^levels nodes of Relu."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]
    functions = [helper.make_function("c", "f0", ["a"], ["b"], [node("Relu", "a", "b")], imports)]
    for i in range(1, levels + 1):
        calls = [node(f"f{i - 1}", "a", "m", domain="c"), node(f"f{i - 1}", "m", "b", domain="c")]
        functions.append(helper.make_function("c", f"f{i}", ["a"], ["b"], calls, imports))
    graph = helper.make_graph([node(f"f{levels}", "x", "y", domain="c")], "g", [value("x", [2])], [value("y", [2])])
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8).SerializeToString()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_functions_that_double_are_refused_before_anyone_inlines_them(provider):
    """Onnxruntime's own inliner would go on until the memory is full."""
    feeds = {"x": np.array([-1, 2], np.float32)}
    np.testing.assert_array_equal(InferenceSession(doubling(4), providers=[provider]).run(None, feeds)[0], [0, 2])
    for levels in (16, 40):
        with pytest.raises(GraphError, match=rf"expand to {2**levels} nodes"):
            InferenceSession(doubling(levels), providers=[provider])


def test_layers_written_once_and_called_often_are_no_attack():
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]
    names = ["x", *(f"v{i}" for i in range(149)), "o"]
    chain = [node("Neg", p, q) for p, q in zip(["a", *names[1:-1]], [*names[1:-1], "b"], strict=True)]
    layer = helper.make_function("c", "layer", ["a"], ["b"], chain, imports)
    calls = [node("layer", p, q, domain="c") for p, q in zip(names, [*names[1:-1], "y"], strict=False)][:96]
    calls[-1].output[0] = "y"
    graph = helper.make_graph(calls, "g", [value("x", [2])], [value("y", [2])])
    proto = helper.make_model(graph, opset_imports=imports, functions=[layer], ir_version=8)
    check_expansion(proto, "the model")  # 96 layers of 150 nodes


def test_functions_too_deep_for_onnxruntime_are_refused_before_it_follows_them():
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]
    functions = [helper.make_function("c", "f0", ["a"], ["b"], [node("Relu", "a", "b")], imports)]
    for i in range(1, 3000):
        call = [node(f"f{i - 1}", "a", "b", domain="c")]
        functions.append(helper.make_function("c", f"f{i}", ["a"], ["b"], call, imports))
    graph = helper.make_graph([node("f2999", "x", "y", domain="c")], "g", [value("x", [2])], [value("y", [2])])
    content = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8).SerializeToString()
    with pytest.raises(GraphError, match=r"(?s)call one another 3000 deep.*TorchExecutionProvider"):
        InferenceSession(content)
    feeds = {"x": np.array([-1, 2], np.float32)}
    session = InferenceSession(content, providers=["TorchExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feeds)[0], [0, 2])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("broken", ["no body", "no condition", "no result"])
def test_a_loop_that_is_none_is_refused_by_name(provider, broken):
    body = helper.make_graph(
        [node("Identity", "go", "g"), node("Identity", "c", "n")], "body",
        [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("c", [2])],
        [value("g", [], TensorProto.BOOL), value("n", [2])],
    )  # fmt: skip
    if broken == "no condition":
        del body.output[:]
    loop = node("Loop", "m yes x", "y", **({} if broken == "no body" else {"body": body}))
    if broken == "no result":
        del loop.output[:]
        nodes = [loop, node("Identity", "x", "y")]
    else:
        nodes = [loop]
    stored = [const("m", 3), const("yes", True, np.bool_)]
    with pytest.raises(OntrainError):
        InferenceSession(file(nodes, [value("x", [2])], [value("y", [2])], stored), providers=[provider])


@pytest.mark.parametrize("op_type", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("provider", OWN)
def test_blocks_that_leave_something_over_are_refused(provider, op_type):
    model = file([node(op_type, "x", "y", blocksize=2)], [value("x", [1, 3, 3, 5])], [value("y", None)])
    with pytest.raises(GraphError, match=rf"{op_type} cannot cut dimension"):
        InferenceSession(model, providers=[provider])
    unknown = file([node(op_type, "x", "y", blocksize=2)], [value("x", ["n", "c", "h", "w"])], [value("y", None)])
    session = InferenceSession(unknown, providers=[provider])
    with pytest.raises(OntrainError):
        session.run(None, {"x": np.ones((1, 3, 3, 5), np.float32)})
    assert session.run(None, {"x": np.ones((1, 4, 2, 2), np.float32)})[0].size == 16


@pytest.mark.parametrize("provider", OWN)
def test_a_switch_is_on_or_off(provider):
    """2^40 was off for native inference, which reads 32 bits, and on for the gradient."""
    model = file([node("Gemm", "a b", "y", transB=2**40)], [value("a", [2, 3]), value("b", [3, 4])], [value("y", None)])
    with pytest.raises(GraphError, match=r"(?s)'transB' is 1099511627776.*0 or 1"):
        InferenceSession(model, providers=[provider])


@pytest.mark.parametrize("provider", OWN)
def test_a_seed_may_be_an_integer_as_dropouts_is(provider):
    model = file([node("Dropout", "x", "y", seed=5)], [value("x", [4])], [value("y", [4])])
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(InferenceSession(model, providers=[provider]).run(None, {"x": x})[0], x)


@pytest.mark.parametrize("provider", OWN)
def test_a_result_that_is_no_tensor_is_refused_by_name(provider):
    proto = onnx.ModelProto.FromString(file([node("Optional", "x", "y")], [value("x", [2])], [value("y", [2])], (), 18))
    with pytest.raises(OntrainError, match="y"):
        InferenceSession(proto.SerializeToString(), providers=[provider]).run(None, {"x": np.ones(2, np.float32)})


def test_loops_in_loops_are_planned_without_unrolling_the_inner_one_each_round():
    """1,000 rounds that each try a thousand nodes in vain took minutes; the count is of nodes made, not of seconds."""
    model = new_model([], "loops")
    builder, count = Builder(model.graph), 0

    def inner(op, at, states, rows, outer):
        nonlocal count
        count += 1
        return op.Identity(op.const(np.array(True))), [op.Tanh(states[0])], []

    def outer(op, at, states, rows, captured):
        finals, _ = repeat(op, inner, trip=1000 * UNROLL_LIMIT, carried=states)
        return op.Identity(op.const(np.array(True))), finals, []

    x = builder.call("", "RandomNormal", (), {"shape": [2]}, 1)
    repeat(builder, outer, trip=1000, carried=[x])
    assert count < 20 * UNROLL_LIMIT


def test_a_resize_whose_table_takes_gibibytes_to_make_is_refused():
    model = new_model([ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 1, 4, 4]))], "big")
    op = Builder(model.graph)
    (x,) = model.graph.inputs
    with pytest.raises(NoBodyError, match="Resize"):
        sizes = op.const(np.array([1, 1, 1 << 24, 4]))
        resize(op, x, sizes=sizes, mode="cubic", coordinate_transformation_mode="asymmetric")
    for mode in ("linear", "cubic"):
        with pytest.raises(NoBodyError, match="Interpolate"):
            interpolate(op, x, size=[1 << 26, 4], mode=mode)
        for places in ("half_pixel", "asymmetric"):
            sizes = op.const(np.array([1, 1, 1 << 12, 4]))
            y = resize(op, x, sizes=sizes, mode=mode, coordinate_transformation_mode=places)
            assert y.shape[2] == 1 << 12


def in_sequence(op_type: str) -> bytes:
    """x is put into a sequence twice, then the operator works at the position i."""
    operands = {"SequenceAt": "s i", "SequenceErase": "s i", "SequenceInsert": "s x i"}[op_type]
    nodes = [node("SequenceConstruct", "x x", "s"), node(op_type, operands, "t")]
    if op_type == "SequenceAt":
        nodes.append(node("Identity", "t", "y"))
    else:
        nodes.append(node("ConcatFromSequence", "t", "y", axis=0))
    return file(nodes, [value("x", ["n"]), value("i", None, INT64)], [value("y", None)])


@pytest.mark.parametrize("op_type", ["SequenceAt", "SequenceErase", "SequenceInsert"])
def test_a_position_in_a_sequence_that_is_not_one_number_is_a_named_error(op_type):
    session, x = InferenceSession(in_sequence(op_type), providers=["CPUExecutionProvider"]), np.ones(2, np.float32)
    for positions in (np.zeros(0, np.int64), np.zeros((0, 2), np.int64), np.zeros(3, np.int64)):
        with pytest.raises(ProviderError, match=r"not one number(.|\n)*node: " + op_type):
            session.run(None, {"x": x, "i": positions})
    rows = {"SequenceAt": 2, "SequenceErase": 2, "SequenceInsert": 6}[op_type]
    for position in (np.array(1), np.array([-1])):
        (row,) = session.run(None, {"x": x, "i": position})
        assert row.shape == (rows,)


@pytest.mark.parametrize("provider", OWN)
def test_a_loop_whose_body_returns_nothing_is_refused_by_name(provider):
    body = helper.make_graph([], "body", [value("i", [], INT64), value("go", [], TensorProto.BOOL)], [])
    nodes = [node("Identity", "x", "y"), helper.make_node("Loop", ["", "", ""], [], body=body)]
    with pytest.raises(OntrainError, match="Loop"):
        InferenceSession(file(nodes, [value("x", ["n"])], [value("y", ["n"])]), providers=[provider])


@pytest.mark.parametrize("provider", OWN)
def test_texts_have_no_number_of_bytes_where_plans_add_them_up(provider):
    scores = helper.make_node(
        "LinearClassifier", ["x"], ["label", "y"], domain="ai.onnx.ml", coefficients=[1.0, -1.0], intercepts=[0.0, 0.0],
        classlabels_strings=["a", "b"],
    )  # fmt: skip
    graph = helper.make_graph([scores], "g", [value("x", [2, 1])], [value("label", [2], 8), value("y", [2, 2])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    session = InferenceSession(helper.make_model(graph, opset_imports=opsets).SerializeToString(), providers=[provider])
    labels, _ = session.run(None, {"x": np.array([[3.0], [-2.0]], np.float32)})
    assert list(np.asarray(labels)) == ["a", "b"]


@pytest.mark.parametrize("provider", OWN)
def test_a_picture_that_is_none_is_a_named_error(provider):
    nodes = [node("ImageDecoder", "x", "y")]
    session = InferenceSession(
        file(nodes, [value("x", ["n"], 2)], [value("y", None, 2)], opset=20), providers=[provider]
    )
    with pytest.raises(ProviderError, match="ImageDecoder|UnidentifiedImageError"):
        session.run(None, {"x": np.zeros(5, np.uint8)})


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean", "Einsum"])
@pytest.mark.parametrize("operands", [["x", ""], ["x", "", "x"]])
def test_an_operand_left_out_of_several_is_refused_before_onnxruntime_looks_for_it(op_type, operands):
    extra = {"equation": ",".join("i" * len(operands)) + "->i"} if op_type == "Einsum" else {}
    nodes = [helper.make_node(op_type, operands, ["y"], **extra)]
    with pytest.raises(GraphError, match=f"operand of {op_type}.*left out"):
        InferenceSession(file(nodes, [value("x", ["n"])], [value("y", ["n"])]), providers=["CPUExecutionProvider"])


def test_a_layer_normalization_whose_bias_is_an_empty_name_has_none():
    nodes = [helper.make_node("LayerNormalization", ["x", "s", ""], ["y"])]
    session = InferenceSession(
        file(nodes, [value("x", ["n", 2]), value("s", [2])], [value("y", ["n", 2])]), providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, {"x": np.array([[1, 3]], np.float32), "s": np.array([1, 2], np.float32)})
    np.testing.assert_allclose(y, [[-1, 2]], atol=1e-4)


@pytest.mark.parametrize("provider", [*OWN, "training"])
@pytest.mark.parametrize(
    "changed",
    [
        {"ngram_counts": [LEAST]}, {"ngram_counts": [0, 2**62]}, {"ngram_counts": [1, 0]}, {"ngram_indexes": [2**40]},
        {"ngram_indexes": [-1, 0, 1]}, {"max_gram_length": 2**31}, {"max_skip_count": 2**62}, {"min_gram_length": -1},
    ],
)  # fmt: skip
def test_a_pool_of_n_grams_that_nobody_could_read_is_refused(provider, changed):
    settings = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
        "ngram_indexes": [0, 1, 2], "pool_int64s": [4, 5, 6], **changed,
    }  # fmt: skip
    model = file([node("TfIdfVectorizer", "x", "y", **settings)], [value("x", [3], INT64)], [value("y", [3])])
    with pytest.raises(GraphError, match="attributes of ai.onnx.TfIdfVectorizer do not fit together"):
        if provider == "training":
            load_onnx(model)
        else:
            InferenceSession(model, providers=[provider]).run(None, {"x": np.array([4, 5, 9])})


def test_updates_of_another_shape_are_a_named_error_of_the_gradient():
    u = const("u", np.ones((2, 2, 2)), np.float32)
    nodes = [node("ScatterND", "x i u", "s"), node("ReduceSum", "s", "y", keepdims=0)]
    stored = [u, const("i", np.array([[0]]))]
    model = load_onnx(file(nodes, [value("x", [3, 2, 3])], [value("y", [])], stored), trainable=["u"])
    op = Builder(model.model.graph)
    (weight,) = (v for v in model.model.graph.inputs if v.name == "u")
    with pytest.raises(GradientError, match="ScatterND has the shape .*'u'"):
        differentiate(op, [(model.model.graph.outputs[0], None)], wrt=[weight])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_operator_whose_name_is_no_text_is_refused(provider):
    nodes = [node("Div", "x x", "h"), node("Qqqq", "h", "y")]
    model = file(nodes, [value("x", ["n"])], [value("y", ["n"])]).replace(b"Qqqq", b"\xffqqq")
    with pytest.raises(OntrainError):
        InferenceSession(model, providers=[provider])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("opset", [2**40, -(2**40)])
def test_an_operator_set_that_no_version_has_is_a_named_error(provider, opset):
    model = file([node("Div", "x x", "y")], [value("x", ["n"])], [value("y", ["n"])], opset=opset)
    with pytest.raises(GraphError, match=f"asks for opset {opset}"):
        InferenceSession(model, providers=[provider])
