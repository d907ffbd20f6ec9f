"""Small ONNX files of every kind that a user may bring, with the description and a batch that train each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

Array = np.ndarray[Any, Any]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass
class File:
    """A model file: its message, how to describe it to a trainer, a batch, and the name of a loss (None: its own)."""

    proto: onnx.ModelProto
    desc: dict[str, Any]
    batch: dict[str, Array]
    loss: str | None = None
    external: list[str] = field(default_factory=list)


def value(name: str, shape: Sequence[int | str] | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(rng: np.random.Generator, name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32), name)


def const(name: str, content: Any, dtype: Any = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(content, dtype), name)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; inputs and outputs are names with spaces between, "-" is an absent one."""
    names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
    domain = attributes.pop("domain", "")
    return helper.make_node(op_type, *names, name=f"{op_type}_{outputs.split()[0]}", domain=domain, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto], opset: int = 17, functions: Sequence[onnx.FunctionProto] = (),
    ir_version: int = 8,
) -> onnx.ModelProto:  # fmt: skip
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    proto = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=ir_version)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def classifier(x: Sequence[int | str], classes: int) -> dict[str, Any]:
    return {
        "inputs": [("x", [*x]), ("label", [x[0]])],
        "outputs": [("loss", [], True), ("y", [x[0], classes])],
    }


def regressor(x: Sequence[int | str], y: Sequence[int | str]) -> dict[str, Any]:
    return {"inputs": [("x", [*x]), ("target", [*y])], "outputs": [("loss", [], True), ("y", [*y])]}


def mlp(rng: np.random.Generator, opset: int = 13) -> File:
    """Gemm, batch normalisation and dropout, the last two in inference form."""
    late = opset >= 12
    nodes = [
        node("Gemm", "x fc1.weight fc1.bias", "h", transB=1),
        node("Relu", "h", "r"),
        node("BatchNormalization", "r norm.weight norm.bias norm.mean norm.var", "n", epsilon=1e-5, momentum=0.9),
        node("Dropout", "n ratio" if late else "n", "d", **({} if late else {"ratio": 0.0})),
        node("Gemm", "d fc2.weight fc2.bias", "y", transB=1),
    ]
    stored = [
        weight(rng, "fc1.weight", 8, 6), weight(rng, "fc1.bias", 8),
        const("norm.weight", np.linspace(0.5, 1.5, 8), np.float32), weight(rng, "norm.bias", 8),
        const("norm.mean", np.zeros(8), np.float32), const("norm.var", np.ones(8), np.float32),
        weight(rng, "fc2.weight", 4, 8), weight(rng, "fc2.bias", 4),
        *([const("ratio", 0.0, np.float32)] if late else []),
    ]  # fmt: skip
    proto = model(nodes, [value("x", ["N", 6])], [value("y", ["N", 4])], stored, opset)
    batch = {"x": rng.standard_normal((5, 6)).astype(np.float32), "label": rng.integers(0, 4, 5)}
    return File(proto, classifier(["batch", 6], 4), batch, "CrossEntropyLoss")


def convolution(rng: np.random.Generator, opset: int = 11) -> File:
    """Convolutions, pooling, a residual sum, Upsample or Resize, and a head behind Flatten."""
    nodes = [
        node("Conv", "x c1", "a", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a n.weight n.bias n.mean n.var", "b"),
        node("LeakyRelu", "b", "c", alpha=0.1),
        node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p c2 c2.bias", "q", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Add", "p q", "s"),
        node("Resize", "s roi scales", "u", mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        node("GlobalAveragePool", "u", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f fc fc.bias", "y"),
    ]  # fmt: skip
    stored = [
        weight(rng, "c1", 4, 2, 3, 3), const("n.weight", np.ones(4), np.float32), weight(rng, "n.bias", 4),
        const("n.mean", np.zeros(4), np.float32), const("n.var", np.ones(4), np.float32),
        weight(rng, "c2", 4, 4, 3, 3), weight(rng, "c2.bias", 4), const("roi", [], np.float32),
        const("scales", [1, 1, 2, 2], np.float32), weight(rng, "fc", 4, 3), weight(rng, "fc.bias", 3),
    ]  # fmt: skip
    proto = model(nodes, [value("x", ["N", 2, 8, 8])], [value("y", ["N", 3])], stored, opset)
    batch = {"x": rng.standard_normal((3, 2, 8, 8)).astype(np.float32), "label": rng.integers(0, 3, 3)}
    return File(proto, classifier(["batch", 2, 8, 8], 3), batch, "CrossEntropyLoss")


def transformer(rng: np.random.Generator, opset: int = 17) -> File:
    """An embedding, one attention block as exporters write it with shape arithmetic, layer normalisation, GELU."""
    nodes = [
        node("Gather", "embed ids", "x"),
        node("LayerNormalization", "x ln.weight ln.bias", "n", axis=-1),
        node("MatMul", "n qkv", "w"),
        node("Add", "w qkv.bias", "wb"),
        node("Split", "wb sizes", "q0 k0 v0", axis=-1),
        node("Shape", "ids", "shape"),
        node("Gather", "shape zero", "batch0"),
        node("Gather", "shape one", "length0"),
        node("Unsqueeze", "batch0 axes", "batch"),
        node("Unsqueeze", "length0 axes", "length"),
        node("Concat", "batch length heads width", "split", axis=0),
        *(node("Reshape", f"{n}0 split", f"{n}1") for n in "qkv"),
        node("Transpose", "q1", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "k1", "k", perm=[0, 2, 3, 1]),
        node("Transpose", "v1", "v", perm=[0, 2, 1, 3]),
        node("MatMul", "q k", "qk"),
        node("Mul", "qk scale", "scores"),
        node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p v", "o0"),
        node("Transpose", "o0", "o1", perm=[0, 2, 1, 3]),
        node("Reshape", "o1 joined", "o"),
        node("MatMul", "o out", "o2"),
        node("Add", "x o2", "r"),
        node("Div", "r sqrt2", "e0"),
        node("Erf", "e0", "e1"),
        node("Add", "e1 onef", "e2"),
        node("Mul", "r e2", "e3"),
        node("Mul", "e3 half", "e"),
        node("ReduceMean", "e", "m", axes=[1], keepdims=0),
        node("MatMul", "m head", "y"),
    ]
    stored = [
        weight(rng, "embed", 7, 8), const("ln.weight", np.ones(8), np.float32), weight(rng, "ln.bias", 8),
        weight(rng, "qkv", 8, 24), weight(rng, "qkv.bias", 24), const("sizes", [8, 8, 8]), const("zero", 0),
        const("one", 1), const("axes", [0]), const("heads", [2]), const("width", [4]),
        const("scale", 0.5, np.float32), const("joined", [0, 0, 8]), weight(rng, "out", 8, 8),
        const("sqrt2", np.sqrt(2), np.float32), const("onef", 1, np.float32), const("half", 0.5, np.float32),
        weight(rng, "head", 8, 3),
    ]  # fmt: skip
    proto = model(nodes, [value("ids", ["N", "L"], INT64)], [value("y", ["N", 3])], stored, opset)
    desc = classifier(["batch", "length"], 3)
    desc["inputs"][0] = ("ids", ["batch", "length"])
    return File(proto, desc, {"ids": rng.integers(0, 7, (2, 4)), "label": rng.integers(0, 3, 2)}, "CrossEntropyLoss")


def recurrent(rng: np.random.Generator, opset: int = 14) -> File:
    """An LSTM over [length, batch, width], read at the last step."""
    nodes = [
        node("LSTM", "x W R B", "h last", hidden_size=5),
        node("Squeeze", "last axes", "s"),
        node("MatMul", "s head", "y"),
    ]
    stored = [
        weight(rng, "W", 1, 20, 3), weight(rng, "R", 1, 20, 5), weight(rng, "B", 1, 40), const("axes", [0]),
        weight(rng, "head", 5, 2),
    ]  # fmt: skip
    proto = model(nodes, [value("x", ["L", "N", 3])], [value("y", ["N", 2])], stored, opset)
    batch = {
        "x": rng.standard_normal((4, 2, 3)).astype(np.float32),
        "target": rng.standard_normal((2, 2)).astype(np.float32),
    }
    return File(proto, regressor(["length", "batch", 3], ["batch", 2]), batch, "MSELoss")


def functions(rng: np.random.Generator, opset: int = 18) -> File:
    """Two model-local functions, one calling the other, with an attribute handed through."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    scaled = helper.make_function(
        "local", "Scaled", ["a"], ["b"],
        [node("Elu", "a", "e"), node("Add", "e a", "b")], [helper.make_opsetid("", opset)], ["alpha"],
    )  # fmt: skip
    reference = scaled.node[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "alpha", onnx.AttributeProto.FLOAT
    layer = helper.make_function(
        "local", "Layer", ["a", "w", "c"], ["b"],
        [node("MatMul", "a w", "m"), node("Add", "m c", "n"), node("Scaled", "n", "b", domain="local", alpha=0.5)],
        imports,
    )  # fmt: skip
    nodes = [
        node("Layer", "x w1 b1", "h", domain="local"),
        node("Layer", "h w2 b2", "g", domain="local"),
        node("ReduceMean", "g", "y", axes=[1], keepdims=1) if opset < 18 else node("ReduceMean", "g axes", "y"),
    ]
    stored = [
        weight(rng, "w1", 4, 6), weight(rng, "b1", 6), weight(rng, "w2", 6, 6), weight(rng, "b2", 6),
        const("axes", [1]),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "graph", [value("x", ["N", 4])], [value("y", ["N", 1])], stored)
    proto = helper.make_model(graph, opset_imports=imports, functions=[scaled, layer], ir_version=8)
    batch = {
        "x": rng.standard_normal((3, 4)).astype(np.float32),
        "target": rng.standard_normal((3, 1)).astype(np.float32),
    }
    return File(proto, regressor(["batch", 4], ["batch", 1]), batch, "MSELoss")


def control(rng: np.random.Generator, opset: int = 16) -> File:
    """An If on a constant and a Loop of three rounds, both reading weights from outside."""
    then = helper.make_graph([node("MatMul", "h w1", "t")], "then", [], [value("t", ["N", 4])])
    other = helper.make_graph([node("Neg", "h", "f")], "else", [], [value("f", ["N", 4])])
    body = helper.make_graph(
        [node("MatMul", "carried w2", "m"), node("Tanh", "m", "next"), node("Identity", "go", "goes")],
        "body", [value("round", [], INT64), value("go", [], TensorProto.BOOL), value("carried", ["N", 4])],
        [value("goes", [], TensorProto.BOOL), value("next", ["N", 4])],
    )  # fmt: skip
    nodes = [
        node("Relu", "x", "h"),
        node("If", "yes", "i", then_branch=then, else_branch=other),
        node("Loop", "count yes i", "l", body=body),
        node("MatMul", "l w3", "y"),
    ]
    stored = [
        weight(rng, "w1", 4, 4), weight(rng, "w2", 4, 4), weight(rng, "w3", 4, 2), const("yes", True, np.bool_),
        const("count", 3),
    ]  # fmt: skip
    proto = model(nodes, [value("x", ["N", 4])], [value("y", ["N", 2])], stored, opset)
    batch = {
        "x": rng.standard_normal((3, 4)).astype(np.float32),
        "target": rng.standard_normal((3, 2)).astype(np.float32),
    }
    return File(proto, regressor(["batch", 4], ["batch", 2]), batch, "MSELoss")


def legacy(rng: np.random.Generator, opset: int = 6) -> File:
    """An operator set of 2017: initializers among the inputs, broadcasts with an axis, inputs still attributes."""
    nodes = [
        node("Conv", "x c1", "a", kernel_shape=[3, 3]),
        node("Add", "a b1", "b", broadcast=1, axis=1),
        node("BatchNormalization", "b n.weight n.bias n.mean n.var", "n", is_test=1),
        node("PRelu", "n slope", "p"),
        node("Dropout", "p", "d", is_test=1, ratio=0.0),
        node("Pad", "d", "q", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.0),
        node("Slice", "q", "s", starts=[1, 1], ends=[7, 7], axes=[2, 3]),
        node("AveragePool", "s", "v", kernel_shape=[6, 6]),
        node("Squeeze", "v", "z", axes=[2, 3]),
        node("Clip", "z", "l", min=-3.0, max=3.0),
        node("Gemm", "l fc fc.bias", "y", broadcast=1),
    ]
    stored = [
        weight(rng, "c1", 4, 2, 3, 3), weight(rng, "b1", 4), const("n.weight", np.ones(4), np.float32),
        weight(rng, "n.bias", 4), const("n.mean", np.zeros(4), np.float32), const("n.var", np.ones(4), np.float32),
        const("slope", [0.1, 0.2, 0.3, 0.4], np.float32), weight(rng, "fc", 4, 2), weight(rng, "fc.bias", 2),
    ]  # fmt: skip
    inputs = [value("x", [3, 2, 8, 8]), *(value(t.name, list(t.dims)) for t in stored)]
    proto = model(nodes, inputs, [value("y", [3, 2])], stored, opset, ir_version=3)
    batch = {
        "x": rng.standard_normal((3, 2, 8, 8)).astype(np.float32),
        "target": rng.standard_normal((3, 2)).astype(np.float32),
    }
    return File(proto, regressor([3, 2, 8, 8], [3, 2]), batch, "MSELoss")


def legacy_in_torch(stored: Mapping[str, torch.Tensor], x: torch.Tensor, *, training: bool) -> torch.Tensor:
    """What `legacy` computes, its batch normalisation in one mode or the other."""
    a = functional.conv2d(x, stored["c1"]) + stored["b1"][:, None, None]
    n = functional.batch_norm(
        a, stored["n.mean"].clone(), stored["n.var"].clone(), stored["n.weight"], stored["n.bias"], training, eps=1e-5
    )
    p = functional.prelu(n, stored["slope"])
    v = functional.avg_pool2d(functional.pad(p, (1, 1, 1, 1))[:, :, 1:7, 1:7], 6).flatten(1)
    return v.clamp(-3, 3) @ stored["fc"] + stored["fc.bias"]


def own_loss(rng: np.random.Generator, opset: int = 17) -> File:
    """A file that ends in its own loss, with weights in a file beside it."""
    nodes = [
        node("MatMul", "x w1", "h"),
        node("Sigmoid", "h", "s"),
        node("MatMul", "s w2", "y"),
        node("SoftmaxCrossEntropyLoss", "y label", "loss", reduction="mean"),
    ]
    stored = [weight(rng, "w1", 6, 16), weight(rng, "w2", 16, 3)]
    inputs = [value("x", ["N", 6]), value("label", ["N"], INT64)]
    proto = model(nodes, inputs, [value("loss", []), value("y", ["N", 3])], stored, opset)
    batch = {"x": rng.standard_normal((4, 6)).astype(np.float32), "label": rng.integers(0, 3, 4)}
    return File(proto, classifier(["batch", 6], 3), batch, None, external=["w1", "w2"])


KINDS = {f.__name__: f for f in (mlp, convolution, transformer, recurrent, functions, control, legacy, own_loss)}


def save_external(file: File, path: Any) -> None:
    """Write the file with its external initializers in `weights.bin` beside it."""
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    offset = 0
    with (path.parent / "weights.bin").open("wb") as data:
        for tensor in proto.graph.initializer:
            if tensor.name in file.external:
                content = tensor.raw_data
                data.write(content)
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, text in (("location", "weights.bin"), ("offset", offset), ("length", len(content))):
                    tensor.external_data.add(key=key, value=str(text))
                offset += len(content)
    path.write_bytes(proto.SerializeToString())
