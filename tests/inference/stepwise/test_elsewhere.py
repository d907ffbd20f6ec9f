"""A list of providers: parts of a model that the first one lacks are run by onnxruntime."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch

import ontrain
from ontrain.inference.graph_inference import GraphSession
from ontrain.inference.stepwise import Following


def onnxruntime_error(name: str) -> type[Exception]:
    return getattr(onnxruntime.capi.onnxruntime_pybind11_state, name)


BOTH = ["TorchExecutionProvider", "CPUExecutionProvider"]
SAMPLES = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
m (float[rows, 3] x, bool deep) => (float[rows] y, int64[two, k] places, float[rows] z)
<float[3, 4] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, 1, 2, 3}, float scale = {0.5}> {
    h0 = MatMul(x, w)
    size = Shape(h0)
    h = Reshape(h0, size)
    best = ArgMax<axis = 1, keepdims = 0>(h)
    small = Cast<to = 1>(best)
    sample = com.microsoft.SampleOp(small)
    again = com.microsoft.SampleOp(sample)
    wide = Neg(again)
    y = Mul(wide, scale)
    places = NonZero(h)
    z = If(deep) <
        then_branch = then () => (float[n] t) {
            third = com.microsoft.SampleOp(again)
            t = Neg(third)
        },
        else_branch = other () => (float[n] e) { e = Neg(y) }
    >
}"""


@pytest.fixture(scope="module")
def model() -> bytes:
    return bytes(onnx.parser.parse_model(SAMPLES).SerializeToString())


def test_what_the_first_provider_lacks_runs_on_the_next_and_is_reported(model):
    options = ontrain.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ontrain.InferenceSession(model, options, BOTH)
    theirs = onnxruntime.InferenceSession(model, providers=BOTH[1:])
    for rows, deep in ((4, True), (2, False), (4, False)):
        x = np.random.default_rng(rows).standard_normal((rows, 3), np.float32)
        feeds = {"x": x, "deep": np.array(deep)}
        for mine, other in zip(session.run(None, feeds), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)
    assert session.get_providers() == BOTH
    regions = session.get_provider_graph_assignment_info()
    assert {region.ep_name for region in regions} == set(BOTH)
    theirs_alone = [[node.op_type for node in region.get_nodes()] for region in regions if region.ep_name == BOTH[1]]
    assert theirs_alone == [["SampleOp", "SampleOp"], ["SampleOp"]]
    torchs = [node.op_type for region in regions if region.ep_name == BOTH[0] for node in region.get_nodes()]
    assert sorted(torchs) == sorted(
        ["MatMul", "Shape", "Reshape", "ArgMax", "Cast", "Neg", "Mul", "NonZero", "If", "Neg", "Neg"]
    )


def test_alone_the_first_provider_refuses_it_by_name(model):
    with pytest.raises(ontrain.OntrainError, match="SampleOp"):
        ontrain.InferenceSession(model, providers=BOTH[:1]).run(
            None, {"x": np.ones((2, 3), np.float32), "deep": np.array(True)}
        )


def test_a_recurrent_layer_of_open_sizes_stays_with_the_first_provider():
    rng = np.random.default_rng(0)
    weights = [("w", (1, 12, 3)), ("r", (1, 12, 4)), ("b", (1, 24))]
    arrays = [onnx.numpy_helper.from_array(rng.standard_normal(s, np.float32), n) for n, s in weights]
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    m (float[batch, length, 3] x) => (float[length, 1, batch, 4] y) {
        rows = Transpose<perm = [1, 0, 2]>(x)
        y = GRU<hidden_size = 4>(rows, w, r, b)
    }""")
    model.graph.initializer.extend(arrays)
    stated = onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, ["length", "batch", 3])
    model.graph.value_info.append(stated)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ontrain.InferenceSession(model, providers=BOTH)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=BOTH[1:])
    for shape in ((2, 5, 3), (3, 4, 3)):
        x = rng.standard_normal(shape, np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0], atol=1e-6)
    assert session.get_providers()[0] == BOTH[0]


def test_an_operator_that_no_provider_of_the_list_has_is_refused_when_the_model_is_loaded():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "my.own" : 1]>
    m (float[n] x) => (float[n] y) { h = Relu(x) y = my.own.Thing(h) }""")
    with pytest.raises(onnxruntime_error("Fail"), match="my.own:Thing"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=BOTH[1:])
    warned = pytest.warns(UserWarning, match="neither TorchExecutionProvider nor CPUExecutionProvider has it")
    with warned, pytest.raises(onnxruntime_error("Fail"), match="Thing"):
        ontrain.InferenceSession(model, providers=BOTH)


def test_a_part_that_the_next_provider_cannot_load_is_told_by_its_node():
    """With libraries of custom operators nobody knows before a part is opened which operators they have."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "my.own" : 1]>
    m (float[n] x) => (float[n] y) { h = Relu(x) y = my.own.Thing(h) }""")

    def opened(part: bytes) -> ontrain.InferenceSession:
        return ontrain.InferenceSession(part, providers=BOTH[1:])

    session = GraphSession(model, BOTH[0], {}, following=Following(BOTH[1], opened))
    with pytest.raises(ontrain.ProviderError, match="CPUExecutionProvider cannot load a part of the model") as caught:
        session.compute(None, {"x": torch.ones(2)})
    assert "my.own.Thing(h" in caught.value.node and "my.own:Thing" in caught.value.reason
    assert "register_custom_ops_library" in caught.value.way_out


TABLE = "<float[5, 5] table = {0,9,1,2,3, 1,0,9,2,3, 1,2,0,9,3, 9,1,2,0,3, 1,2,3,9,0}>"
NEW = """logits = Gather(table, {ids})
        zero = Constant<value_ints=[0]>()
        two = Constant<value_ints=[2]>()
        narrow = Slice(logits, zero, two, two)
        heads = Constant<value_ints=[1]>()
        new = Unsqueeze(narrow, heads)"""


def spoken() -> bytes:
    """A search for text behind sounds, whose operator reads the names of the graphs inside it."""
    encoder = onnx.parser.parse_graph(f"""encoder (float[b, f, t] encoder_input_ids, int32[b, s] decoder_input_ids)
    => (float[b, s, 5] logits, float[b, f, t] encoder_hidden_states, float[b, 1, s, 2] present_key_self_0,
    float[b, 1, s, 2] present_value_self_0, float[b, 1, s, 2] present_key_cross_0,
    float[b, 1, s, 2] present_value_cross_0) {TABLE} {{
        encoder_hidden_states = Identity(encoder_input_ids)
        {NEW.format(ids="decoder_input_ids")}
        present_key_self_0 = Identity(new)
        present_value_self_0 = Identity(new)
        present_key_cross_0 = Identity(new)
        present_value_cross_0 = Identity(new)
    }}""")
    decoder = onnx.parser.parse_graph(f"""decoder (int32[b, 1] input_ids, float[b, 1, p, 2] past_key_self_0,
    float[b, 1, p, 2] past_value_self_0, float[b, 1, e, 2] past_key_cross_0, float[b, 1, e, 2] past_value_cross_0)
    => (float[b, 1, 5] logits, float[b, 1, q, 2] present_key_self_0, float[b, 1, q, 2] present_value_self_0)
    {TABLE} {{
        {NEW.format(ids="input_ids")}
        present_key_self_0 = Concat<axis=2>(past_key_self_0, new)
        present_value_self_0 = Concat<axis=2>(past_value_self_0, new)
    }}""")
    names = ["input_ids", "max_length", "min_length", "num_beams", "num_return_sequences", "length_penalty"]
    node = onnx.helper.make_node(
        "BeamSearch", names, ["sequences"], domain="com.microsoft", encoder=encoder, decoder=decoder, eos_token_id=4,
        pad_token_id=4, decoder_start_token_id=1, model_type=2,
    )  # fmt: skip
    whole, inputs = onnx.TensorProto.INT32, []
    for name, shape in zip(names, [["b", "f", "t"], [1], [1], [1], [1], [1]], strict=True):
        inputs.append(onnx.helper.make_tensor_value_info(name, 1 if name in (names[0], names[-1]) else whole, shape))
    output = onnx.helper.make_tensor_value_info("sequences", whole, ["b", "k", "n"])
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "g", inputs, [output])
    return bytes(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())


def test_a_search_whose_graphs_are_known_by_their_names_stays_whole_with_the_first():
    content, numbers = spoken(), {"max_length": 6, "min_length": 0, "num_beams": 2, "num_return_sequences": 1}
    feeds = {name: np.array([number], np.int32) for name, number in numbers.items()}
    feeds |= {"input_ids": np.ones((2, 3, 4), np.float32), "length_penalty": np.ones(1, np.float32)}
    (expected,) = onnxruntime.InferenceSession(content, providers=BOTH[1:]).run(None, feeds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ontrain.InferenceSession(content, providers=BOTH)
        (result,) = session.run(None, feeds)
    np.testing.assert_array_equal(result, expected)
    assert session.get_providers() == BOTH[:1]


def test_a_search_over_an_unknown_kind_of_model_is_refused_with_the_provider_that_may_have_it():
    model = onnx.load_from_string(spoken())
    next(a for a in model.graph.node[0].attribute if a.name == "model_type").i = 3
    with pytest.raises(ontrain.GraphError, match="how it runs the graphs inside(.|\n)*let CPUExecutionProvider follow"):
        ontrain.InferenceSession(model, providers=BOTH[:1])
