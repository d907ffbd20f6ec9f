"""Attributes that say what means nothing: whatever stock onnxruntime refuses, the torch provider refuses by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as suite
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import AttributeProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import ontrain
from ontrain.errors import OntrainError, ProviderError
from ontrain.functions.registry import adopted
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples.adopted import CONTRIBUTED

MICROSOFT = "com.microsoft"
KIND = onnx.defs.OpSchema.AttrType

DOES_MORE = "onnxruntime refuses what the standard allows, and we compute it as the standard says"
FREE_TYPE = "the suite's file states the type of the result, which contradicts another value"
NEWER = "the installed onnxruntime does not know this version of the operator"
HIDDEN = "its use shows in the values of other operands only"
EXCEPTIONS = {
    ("Attention", "scale"): DOES_MORE,
    ("Attention", "left_window_size"): NEWER,
    ("Attention", "right_window_size"): NEWER,
    ("Bernoulli", "dtype"): FREE_TYPE,
    ("BitCast", "to"): FREE_TYPE,
    ("Cast", "to"): FREE_TYPE,
    ("Col2Im", "pads"): HIDDEN,
    ("ConvTranspose", "output_padding"): DOES_MORE,
    ("ConvTranspose", "output_shape"): DOES_MORE,
    ("DeformConv", "pads"): HIDDEN,
    ("EyeLike", "dtype"): FREE_TYPE,
    ("LRN", "alpha"): DOES_MORE,
    ("LRN", "beta"): DOES_MORE,
    ("LRN", "size"): DOES_MORE,
    ("SplitToSequence", "keepdims"): DOES_MORE,
    ("StringNormalizer", "is_case_sensitive"): "onnxruntime needs a locale that the machine may lack",
}
"""By operator and attribute, where onnxruntime refuses a value that we take, and why."""


@cache
def _contributed() -> dict[str, Any]:
    return {schema.name: schema for schema in get_all_operator_schema() if schema.domain == MICROSOFT}


def _schema(model: onnx.ModelProto) -> Any:
    (node,) = model.graph.node
    if node.domain == MICROSOFT:
        return _contributed()[node.op_type]
    version = next(entry.version for entry in model.opset_import if entry.domain == node.domain)
    return onnx.defs.get_schema(node.op_type, version, node.domain)


@cache
def _cases() -> dict[str, list[tuple[onnx.ModelProto, dict[str, np.ndarray]]]]:
    """Models of one node by operator, the smallest first: onnx's suite, and samples of onnxruntime's operators."""
    cases: dict[str, list[Any]] = {}
    for case in suite.collect_testcases(None):
        model = case.model
        if len(model.graph.node) != 1 or model.functions or model.graph.node[0].domain.startswith("ai.onnx.preview"):
            continue
        arrays = case.data_sets[0][0]
        if not all(isinstance(array, np.ndarray) and array.nbytes < 1 << 20 for array in arrays):
            continue
        feeds = dict(zip((value.name for value in model.graph.input), arrays, strict=True))
        cases.setdefault(model.graph.node[0].op_type, []).append((model, feeds))
    for sample in (dataclasses.replace(s, dtype="float32") for s in CONTRIBUTED if s.domain == MICROSOFT):
        graph = SampleGraph(sample, sample.draw(np.random.default_rng(1)))
        graph.model.graph.outputs[:] = graph.y[:1]
        graph.model.graph.opset_imports.clear()
        graph.model.graph.opset_imports.update({"": 23, MICROSOFT: 1})
        model = ir.to_proto(graph.model)
        if len(model.graph.node) == 1:
            cases.setdefault(f"{MICROSOFT}.{sample.op_type}", []).append((model, dict(graph.feeds)))
    for several in cases.values():
        several.sort(key=lambda case: case[0].ByteSize())
    return cases


def _wrong(kind: Any, stated: AttributeProto | None) -> Iterator[Any]:
    """Values that mean nothing to most attributes of a type."""
    if kind == KIND.STRING:
        yield "ghost"
        if stated is not None and stated.s.decode().swapcase() != stated.s.decode():
            yield stated.s.decode().swapcase()
    elif kind == KIND.INT:
        yield from (-1000, -2, 0, 7, 100)
    elif kind == KIND.INTS and stated is not None and stated.ints:
        numbers = list(stated.ints)
        yield from ([wrong, *numbers[1:]] for wrong in (-1000, 0, 1000))
        yield [*numbers, 1]
        yield numbers[:-1] or [1, 1, 1]
    elif kind == KIND.STRINGS and stated is not None and stated.strings:
        yield ["ghost", *(text.decode() for text in stated.strings[1:])]
    elif kind == KIND.FLOAT:
        yield from (-1.0, 0.0)


def _changed(model: onnx.ModelProto, name: str, value: Any) -> bytes:
    """The model with another value of one attribute, and without shapes of its results."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.ir_version = min(changed.ir_version, 10)
    (node,) = changed.graph.node
    others = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])
    for result in changed.graph.output:
        if result.type.HasField("tensor_type"):
            result.type.tensor_type.ClearField("shape")
    return changed.SerializeToString()


def _ours(content: bytes, feeds: dict[str, np.ndarray]) -> OntrainError | None:
    try:
        session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"], strict_providers=True)
        session.run(None, feeds)
    except OntrainError as error:
        return error
    return None


def _stock_refuses(content: bytes, feeds: dict[str, np.ndarray]) -> str:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception as error:  # noqa: BLE001 (onnxruntime's errors share no other base)
        text = str(error)
        return "" if "till opset" in text or "Could not find an implementation" in text else text
    return ""


def _operators() -> list[str]:
    """The standard's operators that have attributes, and onnxruntime's of which there are samples."""
    schemas = [schema for schema in onnx.defs.get_all_schemas() if schema.domain in ("", "ai.onnx.ml")]
    standard = {schema.name for schema in schemas if schema.attributes}
    contributed = {sample.op_type for sample in CONTRIBUTED if sample.domain == MICROSOFT}
    return sorted({*standard, *(f"{MICROSOFT}.{name}" for name in contributed)})


@pytest.mark.parametrize("operator", _operators())
@pytest.mark.sampled(4)
def test_what_stock_refuses_is_refused(operator: str) -> None:
    unnoticed, tried = [], set()
    for model, feeds in _cases().get(operator, []):
        (node,) = model.graph.node
        stated = {attribute.name: attribute for attribute in node.attribute}
        for name, attribute in _schema(model).attributes.items():
            if (name, name in stated) in tried or (node.op_type, name) in EXCEPTIONS:
                continue
            tried.add((name, name in stated))
            if (error := _stock_refuses(model.SerializeToString(), feeds)) and node.domain == MICROSOFT:
                pytest.skip(f"onnxruntime has no kernel of it here: {error}")
            for value in _wrong(KIND(attribute.type.value), stated.get(name)):
                content = _changed(model, name, value)
                error = _ours(content, feeds)
                if error is None and (reason := _stock_refuses(content, feeds)):
                    unnoticed.append(f"{name} = {value!r}: {reason[-200:]}")
                assert error is None or isinstance(error, ValueError), error
                inner = isinstance(error, ProviderError) and error.node  # a run knows the nodes of its plan
                assert error is None or inner or node.op_type in str(error), f"{name} = {value!r}: {error}"
    assert not unnoticed, "\n".join(unnoticed)


WORDS = [
    (domain, op_type, name)
    for (domain, op_type), record in sorted(ontrain.operators.OPERATORS.items())
    for name, known in record.choices.items()
    if isinstance(known[0], str)
]


@pytest.mark.parametrize(("domain", "op_type", "name"), WORDS, ids=[f"{o}-{n}" for _, o, n in WORDS])
def test_an_unknown_word_is_named_with_those_that_are_known(domain: str, op_type: str, name: str) -> None:
    key = f"{domain}.{op_type}" if domain == MICROSOFT else op_type
    if key not in _cases():
        pytest.skip("no model of the suite has the operator")
    model, feeds = _cases()[key][0]
    if name not in _schema(model).attributes:
        pytest.skip("this version of the operator lacks the attribute")
    error = _ours(_changed(model, name, "ghost"), feeds)
    assert error is not None
    text = str(error)
    assert f"attribute {name!r} is 'ghost'" in text
    assert op_type in (error.node or "")
    known = ontrain.operators.OPERATORS[domain, op_type].choices[name]
    assert all(repr(word) in text for word in known if word)


@pytest.mark.parametrize("labels", [{}, {"classlabels_strings": ["a", "b"], "classlabels_int64s": [0, 1]}])
def test_a_map_of_no_labels_or_of_two_lists_is_refused_when_it_is_loaded(labels: dict[str, Any]) -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", **labels)
    x = helper.make_tensor_value_info("x", 1, [1, 2])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    y = onnx.ValueInfoProto(name="y")
    model = helper.make_model(helper.make_graph([node], "maps", [x], [y]), opset_imports=opsets, ir_version=9)
    with pytest.raises(ValueError, match=r"(?s)the attributes of ai.onnx.ml.ZipMap do not fit.*one list"):
        ontrain.InferenceSession(model, providers=["TorchExecutionProvider"], strict_providers=True)
    assert _stock_refuses(model.SerializeToString(), {"x": np.ones((1, 2), np.float32)})


def test_an_activation_may_be_given_a_parameter_that_it_lacks() -> None:
    model, feeds = _cases()[f"{MICROSOFT}.FusedGemm"][0]
    content = _changed(model, "activation_gamma", 2.0)
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"], strict_providers=True)
    stock = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], stock.run(None, feeds)[0], rtol=1e-5)


@pytest.mark.parametrize("clip", [-1.0, 0.5])
def test_a_bound_of_a_layer_below_zero_is_none(clip: float) -> None:
    model, feeds = _cases()["RNN"][0]
    content = _changed(model, "clip", clip)
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"], strict_providers=True)
    stock = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for ours, theirs in zip(session.run(None, feeds), stock.run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "schema", sorted(_contributed().values(), key=lambda schema: schema.name), ids=lambda s: s.name
)
def test_a_body_takes_every_attribute_that_the_schema_has(schema: Any) -> None:
    """So a file may state a default, also of an attribute that is newer than the body."""
    described = adopted.get((MICROSOFT, schema.name))
    if described is None:
        pytest.skip("it has no body of ours")
    parameters = inspect.signature(described.body).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    assert takes_all or names >= schema.attributes.keys()


def test_a_weight_may_be_said_to_be_in_no_processors_own_order() -> None:
    model, feeds = _cases()[f"{MICROSOFT}.MatMulNBits"][0]
    content = _changed(model, "weight_prepacked", 0)
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"], strict_providers=True)
    stock = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], stock.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
