"""Files made by hand: each asks for what a file must not get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["HANDMADE"]

Made = onnx.ModelProto | bytes
HANDMADE: dict[str, Callable[[Path], Made]] = {}
_INFO = helper.make_tensor_value_info
_INT64, _FLOAT = TensorProto.INT64, TensorProto.FLOAT


def _file(function: Callable[[Path], Made]) -> Callable[[Path], Made]:
    HANDMADE[function.__name__] = function
    return function


def _model(
    nodes: list[Any], stored: dict[str, Any], shape: Any = (2,), dtype: int = _FLOAT, out: int = _FLOAT, **more: Any
) -> Made:
    """x -> y, with a weight so that there is something to train."""
    protos = [
        n
        if isinstance(n, onnx.NodeProto)
        else helper.make_node(n[0], n[1].split(), n[2].split(), **(n[3] if len(n) > 3 else {}))
        for n in nodes
    ]
    initializers = [
        numpy_helper.from_array(np.asarray(v), k) for k, v in {"w": np.ones(1, np.float32), **stored}.items()
    ]
    graph = helper.make_graph(protos, "g", [_INFO("x", dtype, shape)], [_INFO("y", out, None)], initializers)
    opsets = [helper.make_opsetid("", more.pop("opset", 17)), *more.pop("imports", [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


_TAIL = [("Cast", "q", "f", {"to": 1}), ("Mul", "f w", "y")]


def _binary(op_type: str, a: Any, b: Any, name: str, **attributes: Any) -> None:
    """Constant, with a computed divisor, and fed."""
    a, b = np.array([a, a], np.int64), np.array([b, b], np.int64)
    HANDMADE[f"{name}_stored"] = lambda _: _model([(op_type, "a b", "q", attributes), *_TAIL], {"a": a, "b": b})
    HANDMADE[f"{name}_computed"] = lambda _: _model(
        [("Shape", "x", "s"), ("Sub", "s s", "z"), ("Add", "b z", "b2"), (op_type, "a b2", "q", attributes), *_TAIL],
        {"a": a, "b": b}, ["n"],
    )  # fmt: skip


_binary("Div", 7, 0, "division_by_zero")
_binary("Mod", 7, 0, "remainder_by_zero")
_binary("Mod", 7, 0, "fmod_by_zero", fmod=1)
_binary("Div", -(2**63), -1, "division_that_overflows")
_binary("Mod", -(2**63), -1, "remainder_that_overflows")
_binary("Mod", -(2**63), -1, "fmod_that_overflows", fmod=1)


def _index(op_type: str, far: int) -> None:
    data, at = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([[0, 1, far, 1]])
    inputs = {
        "Gather": "d i",
        "GatherElements": "d i",
        "GatherND": "d i",
        "ScatterElements": "d i u",
        "ScatterND": "d i u",
    }
    for how in ("stored", "computed"):
        wanted = at.reshape(4, 1) if op_type == "ScatterND" else at
        updates = np.ones((4, 4) if op_type == "ScatterND" else (1, 4), np.float32)
        nodes = [("Size", "x", "n"), ("Sub", "n n", "z"), ("Add", "i z", "i2")] if how == "computed" else []
        operands = inputs[op_type].replace(" i", " i2") if how == "computed" else inputs[op_type]
        stored = {"d": data, "i": wanted, "u": updates}
        HANDMADE[f"{op_type}_{far}_{how}"] = lambda _, n=nodes, o=operands, s=stored: _model(
            [*n, (op_type, o, "q"), *_TAIL], s, ["n"]
        )


for _op in ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"):
    for _far in (99, -99, 2**40, -(2**63)):
        _index(_op, _far)


def _loop(count: int, depth: int, fed: bool) -> Made:
    def body(level: int) -> onnx.GraphProto:
        n = f"l{level}"
        inner = [
            helper.make_node("Tanh", [f"{n}_in"], [f"{n}_t"]),
            helper.make_node("Identity", [f"{n}_go"], [f"{n}_again"]),
        ]
        if level:
            inner.append(helper.make_node("Loop", ["m", "go", f"{n}_t"], [f"{n}_out"], body=body(level - 1)))
        else:
            inner.append(helper.make_node("Identity", [f"{n}_t"], [f"{n}_out"]))
        return helper.make_graph(
            inner, "body",
            [_INFO(f"{n}_i", _INT64, []), _INFO(f"{n}_go", TensorProto.BOOL, []), _INFO(f"{n}_in", _FLOAT, [2])],
            [_INFO(f"{n}_again", TensorProto.BOOL, []), _INFO(f"{n}_out", _FLOAT, [2])],
        )  # fmt: skip

    nodes = [helper.make_node("Loop", ["m", "go", "x"], ["q"], body=body(depth)), *_TAIL]
    stored = {"go": np.array(True)}
    if fed:
        # The count is the number of elements, again and again squared.
        nodes = [("Size", "x", "n0"), ("Mul", "n0 million", "n1"), ("Mul", "n1 n1", "m"), *nodes]
        stored["million"] = np.array(10**6)
    else:
        stored["m"] = np.array(count)
    return _model(nodes, stored, ["n"] if fed else (2,))


for _count in (2**63 - 1, 10**9):
    for _depth in (0, 1, 2):
        HANDMADE[f"loop_{_count}_{_depth}"] = lambda _, c=_count, d=_depth: _loop(c, d, False)
for _depth in (0, 1, 2):
    HANDMADE[f"loop_computed_{_depth}"] = lambda _, d=_depth: _loop(0, d, True)
HANDMADE["loops_of_3000_in_loops"] = lambda _: _loop(3000, 1, False)
HANDMADE["loops_of_3000_in_loops_in_loops"] = lambda _: _loop(3000, 2, False)


def _much(name: str, nodes: list[Any], stored: dict[str, Any], opset: int = 20) -> None:
    HANDMADE[name] = lambda _: _model(
        [*nodes, ("Cast", "q", "f", {"to": 1}), ("ReduceMean", "f", "m", {"keepdims": 0}), ("Mul", "m w", "y")],
        stored,
        opset=opset,
    )


for _n in (10**5, 10**6, 2**31, 2**40, 2**62):
    _much(f"constant_of_shape_{_n}", [("ConstantOfShape", "s", "q")], {"s": np.array([_n])})
    _much(f"range_{_n}", [("Range", "a b c", "q")], {"a": np.array(0), "b": np.array(_n), "c": np.array(1)})
    _much(f"eye_like_{_n}", [("ConstantOfShape", "s", "t"), ("EyeLike", "t", "q")], {"s": np.array([_n, 4])})
    _much(
        f"dft_{_n}",
        [("DFT", "a n axis", "q")],
        {"a": np.ones((1, 8, 1), np.float32), "n": np.array(_n), "axis": np.array(1)},
    )
    _much(
        f"dft_of_an_input_{_n}",
        [("Reshape", "x s", "a"), ("DFT", "a n axis", "q")],
        {"s": np.array([1, 2, 1]), "n": np.array(_n), "axis": np.array(1)},
    )
    _much(
        f"resize_{_n}",
        [
            ("Reshape", "x s", "a"),
            ("Resize", helper.make_node("Resize", ["a", "", "", "to"], ["q"], mode="linear"), "q"),
        ][:1]
        + [helper.make_node("Resize", ["a", "", "", "to"], ["q"], mode="linear")],
        {"s": np.array([1, 1, 1, 2]), "to": np.array([1, 1, min(_n, 2**40), 4])},
    )
    _much(
        f"resize_cubic_{_n}",
        [("Reshape", "x s", "a"), helper.make_node("Resize", ["a", "", "", "to"], ["q"], mode="cubic", antialias=1)],
        {"s": np.array([1, 1, 1, 2]), "to": np.array([1, 1, min(_n, 2**40), 4])},
    )
    _much(f"tile_{_n}", [("Tile", "x r", "q")], {"r": np.array([_n])})
    _much(
        f"one_hot_{_n}",
        [("OneHot", "i d v", "q")],
        {"i": np.array([0, 1]), "d": np.array(_n), "v": np.array([0.0, 1.0], np.float32)},
    )
    _much(f"hann_{_n}", [("HannWindow", "s", "q")], {"s": np.array(_n)})
    _much(
        f"mel_{_n}",
        [("MelWeightMatrix", "a b c d e", "q")],
        {
            "a": np.array(8),
            "b": np.array(_n),
            "c": np.array(8000),
            "d": np.array(0.0, np.float32),
            "e": np.array(4000.0, np.float32),
        },
    )
    _much(f"center_crop_pad_{_n}", [("CenterCropPad", "x s", "q")], {"s": np.array([_n])})
    _much(f"pad_{_n}", [("Pad", "x p", "q")], {"p": np.array([0, _n])})


def _stated(size: int) -> Made:
    return _model([("ReduceMean", "x", "m", {"keepdims": 0}), ("Mul", "m w", "y")], {}, [size])


for _n in (2**31, 2**40, 2**62, 2**63 - 1):
    HANDMADE[f"stated_dimension_{_n}"] = lambda _, n=_n: _stated(n)
HANDMADE["stated_dimensions_product"] = lambda _: _model(
    [("ReduceMean", "x", "m", {"keepdims": 0}), ("Mul", "m w", "y")], {}, [2**21] * 3
)


def _chain(length: int, wide: int = 1, nodes: int = 1) -> Made:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]
    functions = [helper.make_function("c", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)]
    for i in range(1, length):
        names = ["a", *(f"m{k}" for k in range(wide - 1)), "b"]
        calls = [helper.make_node(f"f{i - 1}", [p], [q], domain="c") for p, q in zip(names, names[1:], strict=False)]
        functions.append(helper.make_function("c", f"f{i}", ["a"], ["b"], calls, imports))
    last = helper.make_node(f"f{length - 1}", ["x"], ["q"], domain="c")
    return _model([last, *_TAIL], {}, functions=functions, imports=[imports[1]])


for _length in (900, 3000, 10000):
    HANDMADE[f"chain_of_{_length}_functions"] = lambda _, n=_length: _chain(n)
HANDMADE["functions_that_double"] = lambda _: _chain(40, 2)
HANDMADE["functions_that_double_to_100000"] = lambda _: _chain(17, 2)


@_file
def many_calls_of_one_function(_: Path) -> Made:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]
    f = helper.make_function("c", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)
    names = ["x", *(f"v{i}" for i in range(5000)), "q"]
    calls = [helper.make_node("f", [p], [q], domain="c") for p, q in zip(names, names[1:], strict=False)]
    return _model([*calls, *_TAIL], {}, functions=[f], imports=[imports[1]])


@_file
def many_nodes(_: Path) -> Made:
    names = ["x", *(f"v{i}" for i in range(5000)), "q"]
    return _model([*(helper.make_node("Relu", [p], [q]) for p, q in zip(names, names[1:], strict=False)), *_TAIL], {})


def _conv(op_type: str, weight: tuple[int, ...], shape: tuple[int, ...], **attributes: Any) -> Made:
    stored = {"k": np.ones(weight, np.float32)}
    operands = "x k" if "Conv" in op_type else "x"
    return _model([(op_type, operands, "q", attributes), *_TAIL], stored, shape)


HANDMADE["convolution_without_room"] = lambda _: _conv("Conv", (1, 1, 5, 5), (1, 1, 3, 3))
HANDMADE["convolution_of_zero_groups"] = lambda _: _conv("Conv", (4, 1, 1, 1), (1, 4, 3, 3), group=0)
HANDMADE["convolution_of_other_groups"] = lambda _: _conv("Conv", (4, 2, 1, 1), (1, 4, 3, 3), group=3)
HANDMADE["convolution_of_other_kernel"] = lambda _: _conv("Conv", (4, 4, 3, 3), (1, 4, 5, 5), kernel_shape=[2, 2])
HANDMADE["convolution_of_a_huge_pad"] = lambda _: _conv("Conv", (1, 1, 1, 1), (1, 1, 3, 3), pads=[2**31] * 4)
HANDMADE["convolution_of_a_negative_pad"] = lambda _: _conv("Conv", (1, 1, 3, 3), (1, 1, 5, 5), pads=[-3, -3, 0, 0])
HANDMADE["convolution_of_a_huge_stride"] = lambda _: _conv("Conv", (1, 1, 3, 3), (1, 1, 5, 5), strides=[2**31 - 1] * 2)
HANDMADE["convolution_of_a_huge_dilation"] = lambda _: _conv(
    "Conv", (1, 1, 3, 3), (1, 1, 5, 5), dilations=[2**31 - 1] * 2
)
HANDMADE["transposed_convolution_of_a_given_shape"] = lambda _: _conv(
    "ConvTranspose", (1, 1, 3, 3), (1, 1, 5, 5), output_shape=[2**20, 2**20]
)
HANDMADE["pool_without_room"] = lambda _: _conv("MaxPool", (1,), (1, 1, 3, 3), kernel_shape=[9, 9])
HANDMADE["pool_of_large_pads"] = lambda _: _conv("MaxPool", (1,), (1, 1, 3, 3), kernel_shape=[2, 2], pads=[5, 5, 5, 5])
HANDMADE["average_of_large_pads"] = lambda _: _conv(
    "AveragePool", (1,), (1, 1, 3, 3), kernel_shape=[2, 2], pads=[5, 5, 5, 5]
)
HANDMADE["pool_ceil_mode"] = lambda _: _conv(
    "MaxPool", (1,), (1, 1, 3, 3), kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]
)
HANDMADE["pool_of_rank_two"] = lambda _: _conv("MaxPool", (1,), (3, 3), kernel_shape=[2, 2])


@_file
def stated_output_differs(_: Path) -> Made:
    proto = _conv("Conv", (1, 1, 2, 2), (1, 1, 3, 3))
    proto.graph.output[0].CopyFrom(_INFO("y", _FLOAT, [1, 1, 7, 7]))
    proto.graph.value_info.append(_INFO("q", _FLOAT, [9, 9]))
    return proto


def _external(location: str, **more: str) -> Made:
    proto = _model([("Mul", "x big", "q"), *_TAIL], {"big": np.ones(2, np.float32)})
    tensor = next(t for t in proto.graph.initializer if t.name == "big")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=text)
    return proto


for _place in (
    "zero",
    "fifo",
    "folder",
    "outside",
    "/dev/zero",
    "/etc/passwd",
    "../x",
    "short.bin",
    "data.bin",
    "missing",
):
    HANDMADE[f"external_{_place}"] = lambda _, p=_place: _external(p)
    HANDMADE[f"external_{_place}_of_8"] = lambda _, p=_place: _external(p, length="8", offset="0")


@_file
def stated_tensor_of_terabytes(_: Path) -> Made:
    proto = _model([("Mul", "x w", "q"), *_TAIL], {})
    proto.graph.initializer[0].dims[0] = 2**60
    return proto


@_file
def nested_branches(_: Path) -> Made:
    def branch(level: int) -> onnx.GraphProto:
        n = helper.make_node("Relu", ["x"], [f"o{level}"]) if not level else None
        if n is None:
            n = helper.make_node("If", ["go"], [f"o{level}"], then_branch=branch(level - 1), else_branch=branch(0))
        return helper.make_graph([n], "b", [], [_INFO(f"o{level}", _FLOAT, [2])])

    branches = helper.make_node("If", ["go"], ["q"], then_branch=branch(25), else_branch=branch(0))
    return _model([branches, *_TAIL], {"go": np.array(True)})


@_file
def deep_message(_: Path) -> Made:
    # Each level is an attribute's graph in a node in a graph.
    content = b""
    for _ in range(3000):
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            size, n = b"", len(content)
            while True:
                size += bytes([n & 127 | (128 if n > 127 else 0)])
                n >>= 7
                if not n:
                    break
            content = tag + size + content
    return b"\x3a" + content[1:]


@_file
def empty(_: Path) -> Made:
    return b""


@_file
def text(_: Path) -> Made:
    return b"import os\nos.system('touch /tmp/ran')\n"


@_file
def pickle(_: Path) -> Made:
    return b"cos\nsystem\n(S'touch /tmp/ran'\ntR."


@_file
def string_tensor(_: Path) -> Made:
    return _model([("StringNormalizer", "t", "u"), ("Shape", "u", "q"), *_TAIL], {"t": np.array(["a", "b"], object)})


@_file
def sequence(_: Path) -> Made:
    return _model([("SplitToSequence", "x", "s", {"axis": 0}), ("SequenceAt", "s i", "q"), *_TAIL], {"i": np.array(9)})


@_file
def sequence_of_many(_: Path) -> Made:
    return _model(
        [("SequenceEmpty", "", "s"), ("SequenceErase", "s i", "t"), ("SequenceLength", "t", "q"), *_TAIL],
        {"i": np.array(9)},
    )


@_file
def scan_of_other_lengths(_: Path) -> Made:
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "body",
        [_INFO("a", 1, []), _INFO("b", 1, [])],
        [_INFO("c", 1, [])],
    )
    return _model(
        [helper.make_node("Scan", ["x", "k"], ["q"], body=body, num_scan_inputs=2), *_TAIL],
        {"k": np.ones(5, np.float32)},
    )


@_file
def scan_of_more_inputs(_: Path) -> Made:
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "body",
        [_INFO("a", 1, []), _INFO("b", 1, [])],
        [_INFO("c", 1, [])],
    )
    return _model(
        [helper.make_node("Scan", ["x", "k"], ["q"], body=body, num_scan_inputs=7), *_TAIL],
        {"k": np.ones(5, np.float32)},
    )


@_file
def split_by_zero(_: Path) -> Made:
    return _model([helper.make_node("Split", ["x", "s"], ["q", "r"]), *_TAIL], {"s": np.array([-1, 3])})


@_file
def top_k_of_more(_: Path) -> Made:
    return _model([helper.make_node("TopK", ["x", "k"], ["q", "r"]), *_TAIL], {"k": np.array([99])})


@_file
def reshape_of_two_unknowns(_: Path) -> Made:
    return _model([("Reshape", "x s", "q"), *_TAIL], {"s": np.array([-1, -1])})


@_file
def einsum_of_nonsense(_: Path) -> Made:
    return _model([("Einsum", "x x", "q", {"equation": "i...,->j(("}), *_TAIL], {})


@_file
def cast_to_nothing(_: Path) -> Made:
    return _model([("Cast", "x", "z", {"to": 99}), ("Mul", "z w", "y")], {})


@_file
def cycle_of_functions(_: Path) -> Made:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("c", 1)]
    functions = [
        helper.make_function("c", a, ["a"], ["b"], [helper.make_node(b, ["a"], ["b"], domain="c")], imports)
        for a, b in (("f", "g"), ("g", "f"))
    ]
    return _model(
        [helper.make_node("f", ["x"], ["q"], domain="c"), *_TAIL], {}, functions=functions, imports=[imports[1]]
    )


@_file
def lstm_of_other_sizes(_: Path) -> Made:
    stored = {"W": np.ones((1, 8, 3), np.float32), "R": np.ones((1, 8, 5), np.float32), "s": np.array([1, 1, 2])}
    return _model(
        [("Reshape", "x s", "z"), helper.make_node("LSTM", ["z", "W", "R"], ["q"], hidden_size=2), *_TAIL], stored
    )
