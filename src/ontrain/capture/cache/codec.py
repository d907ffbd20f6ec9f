"""A captured graph as bytes, and back: ONNX for the graph, JSON for what ONNX has no place for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import torch

from ontrain.capture.guards import GUARDS, Guards
from ontrain.capture.owners import Owner
from ontrain.capture.structure import Spec
from ontrain.graph import all_nodes, to_text

__all__ = ["Content", "decode", "encode"]

_PLAIN = (bool, int, str, type(None))


@dataclass
class Content:
    """What a cache keeps of a captured graph.

    Attributes:
        specialised: a message for each dimension that the model fixes.
        shapes: of the inputs that `trace` was made with.
        trace: hash of forward's operators at these shapes.
        files: hashes of the Python files that forward ran through, by path.
    """

    model: ir.Model
    guards: Guards
    output_spec: Spec
    specialised: list[str]
    shapes: list[list[int]]
    trace: str
    files: dict[str, str]


def encode(content: Content) -> bytes:
    """Return the bytes of a content, having made sure that they give it back.

    Raises:
        TypeError: something in it cannot be written.
    """
    head = {
        "guards": content.guards.plain(),
        "outputs": _spec(content.output_spec),
        "specialised": content.specialised,
        "shapes": content.shapes,
        "trace": content.trace,
        "files": content.files,
        "floats": _floats(content.model),
    }
    text = json.dumps(head).encode()
    encoded: bytes = len(text).to_bytes(8, "little") + text + ir.to_proto(content.model).SerializeToString()
    if _image(decode(encoded).model) != _image(content.model):
        raise TypeError("the graph does not come back from its file as it was")
    return encoded


def decode(data: bytes) -> Content:
    """Return what `encode` was given.

    Raises:
        ValueError, KeyError, TypeError: it did not make these bytes, or a class of the result is not imported.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:start])
    proto = onnx.ModelProto()
    proto.ParseFromString(data[start:])
    model = ir.from_proto(proto)
    for (node, name), value in zip(_float_attributes(model), head["floats"], strict=True):
        if isinstance(value, list):
            node.attributes[name] = ir.AttrFloat32s(name, [float.fromhex(number) for number in value])
        else:
            node.attributes[name] = ir.AttrFloat32(name, float.fromhex(value))
    guards = Guards.from_plain(head["guards"])
    model.meta[GUARDS] = guards
    return Content(
        model, guards, _spec_from(head["outputs"]), [str(text) for text in head["specialised"]],
        [[int(size) for size in shape] for shape in head["shapes"]], str(head["trace"]),
        {str(path): str(value) for path, value in head["files"].items()},
    )  # fmt: skip


def _floats(model: ir.Model) -> list[Any]:
    """The attributes that are Python's floats: ONNX has them in single precision."""
    numbers: list[Any] = []
    for node, name in _float_attributes(model):
        value = node.attributes[name].value
        numbers.append(
            [float(number).hex() for number in value] if isinstance(value, list | tuple) else float(value).hex()
        )
    return numbers


def _float_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    for node in all_nodes(model.graph):
        for name, attribute in list(node.attributes.items()):
            if attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
                yield node, name


def _image(model: ir.Model) -> Any:
    """All of a model that its use depends on."""
    graph = model.graph
    values = [*graph.inputs, *graph.outputs]
    return [
        to_text(model),
        [(v.name, str(v.shape), str(v.dtype), sorted(v.metadata_props.items())) for v in values],
        [
            (n.domain, n.op_type, sorted(n.metadata_props.items()), [v and v.name for v in n.inputs],
             [(v.name, str(v.shape), str(v.dtype)) for v in n.outputs])
            for n in all_nodes(graph)
        ],
        _floats(model),
        [(name, _bytes(value)) for name, value in graph.initializers.items()],
    ]  # fmt: skip


def _bytes(value: ir.Value) -> Any:
    held = value.const_value
    return None if held is None else (str(held.dtype), list(held.shape.numpy()), held.tobytes())


def _spec(spec: Spec) -> list[Any]:
    if any(type(key) not in _PLAIN for key in spec.keys):
        raise TypeError("the result has keys that are no plain values")
    own = None
    if spec.type is not None and spec.kind != "plain":
        own = _class_name(spec.type)
    return [spec.kind, own, list(spec.keys), _value(spec.value), [_spec(child) for child in spec.children]]


def _spec_from(plain: Any) -> Spec:
    kind, own, keys, written, children = plain
    value = _value_from(written)
    own_type = type(value) if kind == "plain" else None if own is None else _class(own)
    return Spec(kind, tuple(_spec_from(child) for child in children), tuple(keys), own_type, value)


def _value(value: Any) -> Any:
    """A plain value for JSON; those that JSON does not have as the name of their kind and a text."""
    if type(value) in _PLAIN:
        return value
    if type(value) is float:
        return ["float", value.hex()]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if isinstance(value, type):
        return ["class", _class_name(value)]
    if isinstance(value, Owner):
        return ["owner", [value.kind, value.name]]
    raise TypeError(f"the result holds a {type(value).__name__}")


def _value_from(written: Any) -> Any:
    if not isinstance(written, list):
        return written
    kind, text = written
    if kind == "float":
        return float.fromhex(text)
    if kind == "dtype" and isinstance(dtype := getattr(torch, text), torch.dtype):
        return dtype
    if kind == "device":
        return torch.device(text)
    if kind == "class":
        return _class(text)
    if kind == "owner":
        return Owner(*map(str, text))
    raise ValueError(f"there is no {kind} {text!r}")


def _class_name(cls: type) -> list[str]:
    name = [cls.__module__, cls.__qualname__]
    if _find(*name) is not cls:
        raise TypeError(f"the class {cls.__qualname__} of the result cannot be found under its name")
    return name


def _class(name: Any) -> type:
    cls = _find(*name)
    if not isinstance(cls, type):
        raise ValueError(f"there is no class {name}")
    return cls


def _find(module: str, name: str) -> Any:
    """A class of a module that is imported already; a file must not have modules imported."""
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return target
