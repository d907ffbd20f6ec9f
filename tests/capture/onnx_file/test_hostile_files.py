"""A damaged or hostile file ends in a named error or in the right answer: no crash, no hang, no gigabytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ontrain import GraphError, OntrainError
from ontrain.capture import load_onnx
from tests.capture.onnx_file.models import KINDS, const, mlp, model, node, own_loss, save_external, value, weight

ROOT = Path(__file__).parents[3]
CASES, WORKERS = 500, 2


def judged(first: int, last: int, seed: int) -> dict[int, str]:
    """What each case came to, in processes of their own; one that dies is named and the next goes on behind it."""
    outcomes: dict[int, str] = {}
    while first < last:
        done = subprocess.run(
            [sys.executable, "-m", "tests.capture.onnx_file.worker", str(first), str(last), str(seed)],
            cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        number, stage = first, ""
        for line in done.stdout.splitlines():
            text, _, stage = line.partition(" ")
            number = int(text)
            if stage.startswith("done "):
                outcomes[number] = stage.removeprefix("done ")
        if done.returncode == 0:
            return outcomes
        if not stage.startswith("done "):
            # Where onnxruntime dies of the file there is nobody to compare with.
            outcomes[number] = "unjudged" if stage == "oracle" else f"DIED {done.returncode} {done.stderr[-1000:]}"
        elif not outcomes:
            raise AssertionError(done.stderr)
        first = number + 1
    return outcomes


@pytest.mark.slow
def test_hundreds_of_mutations_end_in_a_named_error_or_the_right_answer(seed):
    bounds = np.linspace(0, CASES, WORKERS + 1).astype(int)
    with ThreadPoolExecutor(WORKERS) as pool:
        parts = [pool.submit(judged, int(a), int(b), seed) for a, b in zip(bounds, bounds[1:], strict=False)]
        outcomes = {number: outcome for part in parts for number, outcome in part.result().items()}
    assert len(outcomes) == CASES
    bad = {n: text for n, text in outcomes.items() if text.split()[0] in ("WRONG", "BARE", "DIED")}
    assert not bad
    kinds = Counter(" ".join(text.split()[:2]) for text in outcomes.values())
    # Neither is everything refused, nor is it only unread bytes that were damaged.
    assert kinds["trained right"] > CASES // 10, kinds
    assert sum(n for kind, n in kinds.items() if kind.startswith("refused")) > CASES // 3, kinds


def test_every_truncation_is_a_named_error(rng):
    content = mlp(rng).proto.SerializeToString()
    for length in np.linspace(0, len(content) - 1, 40).astype(int):
        with pytest.raises(OntrainError):
            load_onnx(content[:length])


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret.bin", "link.bin", "missing.bin", "", "a\0b", "."])
def test_external_data_stays_in_the_models_folder(rng, tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(9999))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    save_external(own_loss(rng), folder / "m.onnx")
    proto = onnx.load(folder / "m.onnx", load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = location
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(GraphError, match="external data of initializer 'w1'"):
        load_onnx(folder / "m.onnx")


def test_short_external_data_is_an_error(rng, tmp_path):
    save_external(own_loss(rng), tmp_path / "m.onnx")
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(GraphError, match=r"(?s)'w2'.*is short.*weights\.bin"):
        load_onnx(tmp_path / "m.onnx")


def one_node(case: onnx.NodeProto, stored=(), shape=(2,), opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph([case], "g", [value("x", shape)], [value("y", None)], list(stored))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


HUGE = 2**40


@pytest.mark.parametrize(
    ("case", "stored", "says"),
    [
        (node("Expand", "x big", "y"), [const("big", [HUGE, 2])], "Expand needs"),
        (node("Tile", "x big", "y"), [const("big", [HUGE])], "Tile needs"),
        (node("Pad", "x big", "y"), [const("big", [0, HUGE])], "Pad needs"),
        (node("Range", "z big one", "y"), [const("z", 0), const("big", HUGE), const("one", 1)], "Range needs"),
        (node("ConstantOfShape", "big", "y"), [const("big", [HUGE, 3])], "ConstantOfShape needs"),
        (node("OneHot", "z big v", "y"), [const("z", [0, 1]), const("big", HUGE), const("v", [0.0, 1.0], np.float32)],
         "OneHot needs"),
    ],
    ids=lambda entry: entry.op_type if isinstance(entry, onnx.NodeProto) else None,
)  # fmt: skip
def test_a_few_bytes_that_ask_for_terabytes_are_refused_before_planning(case, stored, says):
    from ontrain.graph import check_sizes, specialise

    with pytest.raises(GraphError, match=says):
        check_sizes(specialise(load_onnx(one_node(case, stored)).evaluation, {}), 1 << 30)


def test_functions_that_grow_without_bound_are_counted_not_inlined():
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    functions = [helper.make_function("l", "f0", ["a"], ["b"], [node("Relu", "a", "b")], imports)]
    for i in range(1, 40):
        twice = [node(f"f{i - 1}", "a", "m", domain="l"), node(f"f{i - 1}", "m", "b", domain="l")]
        functions.append(helper.make_function("l", f"f{i}", ["a"], ["b"], twice, imports))
    graph = helper.make_graph([node("f39", "x", "y", domain="l")], "g", [value("x", [2])], [value("y", [2])])
    with pytest.raises(GraphError, match="functions of the model expand to"):
        load_onnx(helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8))


def test_a_function_that_calls_itself_is_named():
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    around = helper.make_function("l", "round", ["a"], ["b"], [node("round", "a", "b", domain="l")], imports)
    graph = helper.make_graph([node("round", "x", "y", domain="l")], "g", [value("x", [2])], [value("y", [2])])
    with pytest.raises(GraphError, match=r"(?s)calls itself.*l\.round"):
        load_onnx(helper.make_model(graph, opset_imports=imports, functions=[around], ir_version=8))


def test_branches_nested_beyond_reason_are_refused():
    deep = one_node(node("Relu", "x", "y"), [const("yes", True, np.bool_)])
    graph = deep.graph
    for level in range(40):
        branch = graph.node.add(op_type="If", input=["yes"], output=[f"y{level}"])
        other = helper.make_graph([node("Relu", "x", f"z{level}")], "other", [], [value(f"z{level}", [2])])
        branch.attribute.append(helper.make_attribute("else_branch", other))
        graph = branch.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        graph.output.append(value(f"y{level + 1}", [2]))
    with pytest.raises(GraphError, match="nests"):
        load_onnx(deep)


def renamed(proto: onnx.ModelProto, index: int, name: str) -> None:
    proto.graph.node[index].output[0] = name


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: renamed(p, 1, "h"), "the name 'h' is defined twice"),
        (lambda p: p.graph.node[0].input.__setitem__(0, p.graph.node[-1].output[0]),
         "(?s)used before it is made.*node: .*circle"),
        (lambda p: setattr(p.graph.node[0], "op_type", "Gemn"), r"(?s)no operator 'Gemn' at opset 13.*'Gemm'"),
        (lambda p: setattr(p.graph.node[0].attribute[0], "name", "transC"), r"(?s)no attribute 'transC'.*'transA'"),
        (lambda p: setattr(p.graph.node[2].attribute[0], "f", float("nan")), r"(?s)'epsilon' is not a number.*Batch"),
        (lambda p: setattr(p.graph.node[0].attribute[0], "type", 1), "'transB'"),
        (lambda p: p.graph.initializer[0].dims.append(2), r"'fc1.weight'.* its shape \[8, 6, 2\] of FLOAT needs 384"),
        (lambda p: p.graph.initializer[0].dims.__setitem__(0, -8), "a dimension is negative"),
        (lambda p: p.graph.initializer[0].dims.extend([1] * 63), "'fc1.weight'.* has 65 dimensions"),
        (lambda p: p.graph.node[0].attribute.append(p.graph.node[0].attribute[0]), "an attribute is given twice"),
        (lambda p: p.graph.initializer[0].segment.SetInParent(), "'fc1.weight'.* is stored in segments"),
        (lambda p: setattr(p.graph.initializer[0], "raw_data", p.graph.initializer[0].raw_data + b"0000"),
         "'fc1.weight'.* has 196 bytes, its shape .* needs 192"),
        (lambda p: setattr(p.opset_import[0], "version", 9999), "asks for opset 9999"),
        (lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 0), "input 'x'"),
        (lambda p: setattr(p.graph.output[0], "name", "z"), "output 'z' of the model is made by no node"),
        (lambda p: p.graph.node[0].input.__setitem__(1, ""), "Gemm lacks its input 'B'"),
        (lambda p: p.graph.sparse_initializer.add(), "tensor .. in the model has no data type"),
        (lambda p: setattr(p.graph.input[0].type.sequence_type.elem_type.tensor_type, "elem_type", 1), "'x' is of"),
    ],
)  # fmt: skip
def test_damage_is_named(rng, damage, says):
    proto = mlp(rng).proto
    damage(proto)
    with pytest.raises(GraphError, match=says):
        load_onnx(proto)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attribute", "others"),
    [
        ("Conv", "x w", "group", {}),
        ("Conv", "x w", "strides", {}),
        ("Conv", "x w", "dilations", {}),
        ("MaxPool", "x", "kernel_shape", {}),
        ("ConvTranspose", "x w", "group", {}),
        ("LRN", "x", "size", {}),
        ("DepthToSpace", "x", "blocksize", {}),
        ("SpaceToDepth", "x", "blocksize", {}),
        ("Split", "x", "num_outputs", {}),
        ("GroupNormalization", "x b b", "num_groups", {}),
        ("LSTM", "t r r", "hidden_size", {}),
        ("Attention", "t t t", "q_num_heads", {"kv_num_heads": 1}),
        ("Attention", "t t t", "kv_num_heads", {"q_num_heads": 1}),
        ("MaxRoiPool", "x m", "pooled_shape", {}),
    ],
)
@pytest.mark.parametrize("number", [0, -1])
def test_a_number_that_kernels_divide_by_is_positive(op_type, inputs, attribute, others, number):
    several = attribute in ("strides", "dilations", "kernel_shape", "pooled_shape")
    attributes = {**others, attribute: [number, number] if several else number}
    shapes = {"w": (4, 4, 1, 1), "b": (4,), "t": (1, 2, 8), "r": (1, 8, 8), "m": (1, 5)}
    stored = [const(name, np.ones(shape), np.float32) for name, shape in shapes.items()]
    proto = one_node(node(op_type, inputs, "y", **attributes), stored, (1, 4, 6, 6), opset=23)
    with pytest.raises(GraphError, match=f"(?s)attribute '{attribute}' is .*{number}.*must be positive"):
        load_onnx(proto)


@pytest.mark.parametrize(("number", "says"), [(0, "must be positive"), (-1, "must not be negative")])
def test_heads_of_rows_that_are_not_cut_into_heads_are_stated(number, says):
    stored = [const("t", np.ones((1, 2, 8)), np.float32), const("m", np.ones((1, 5)), np.float32)]
    proto = one_node(node("RotaryEmbedding", "t m m", "y", num_heads=number), stored, (1, 4, 6, 6), opset=23)
    with pytest.raises(GraphError, match=f"(?s)attribute 'num_heads' is .*{number}.*{says}"):
        load_onnx(proto)


def test_a_negative_number_of_samples_is_refused():
    align = node("RoiAlign", "x rois images", "y", sampling_ratio=-1)
    with pytest.raises(GraphError, match=r"(?s)attribute 'sampling_ratio' is \[-1\].*must not be negative"):
        load_onnx(one_node(align, [const("rois", [[0, 0, 3, 3]], np.float32), const("images", [0])], (1, 2, 6, 6)))


def test_names_that_are_no_text_are_refused(rng):
    content = mlp(rng).proto.SerializeToString().replace(b"fc1.weight", b"fc1\xff\xfeeight")
    with pytest.raises(GraphError, match="no text|damaged"):
        load_onnx(content)


def test_a_loop_without_end_is_refused(rng):
    body = helper.make_graph(
        [node("Tanh", "c", "n"), node("Identity", "go", "g")], "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("c", [2])],
        [value("g", [], TensorProto.BOOL), value("n", [2])],
    )  # fmt: skip
    for count, says in (("-", "without end"), ("count", "1099511627776 times")):
        loop = node("Loop", f"{count} yes x", "y", body=body)
        stored = [const("yes", True, np.bool_), const("count", HUGE)]
        with pytest.raises(GraphError, match=says):
            load_onnx(one_node(loop, stored))


def test_a_files_own_metadata_speaks_to_nobody(rng):
    file = mlp(rng)
    for key, text in (("ontrain.role", "parameter"), ("ontrain.updates", "fc1.weight")):
        file.proto.graph.input[0].metadata_props.add(key=key, value=text)
        file.proto.graph.output[0].metadata_props.add(key=key, value=text)
    loaded = load_onnx(file.proto)
    assert loaded.input_names == ["x"] and "x" not in loaded.trainable
    plain = load_onnx(mlp(rng).proto)
    assert [v.name for v in loaded.model.graph.outputs] == [v.name for v in plain.model.graph.outputs]


@pytest.mark.parametrize("kind", KINDS)
def test_loading_changes_no_message_of_the_users(kind, seed):
    proto = KINDS[kind](np.random.default_rng(seed)).proto
    before = proto.SerializeToString(deterministic=True)
    load_onnx(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_a_sum_over_what_is_not_zero_is_refused_by_node(rng):
    """The size of NonZero's result depends on the data."""
    from ontrain.training import ORTTrainer, optim

    nodes = [
        node("Mul", "x w", "m"),
        node("NonZero", "m", "i"),
        node("Cast", "i", "c", to=1),
        node("ReduceSum", "c", "y"),
    ]
    proto = model(nodes, [value("x", [3])], [value("y", [1, 1])], [weight(rng, "w", 3)])
    desc = {"inputs": [("x", [3])], "outputs": [("y", [], True)]}
    trainer = ORTTrainer(proto, desc, optim.SGDConfig(), options={"device": {"id": "cpu"}})
    with pytest.raises(GraphError, match=r"(?s)not known before the step runs.*NonZero"):
        trainer.train_step(np.ones(3, np.float32))
