"""`InferenceSession` for who comes from onnxruntime: the same calls give the same, on its providers and on ours."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import ontrain
from ontrain import InputError, OntrainError, OptionError, ProviderError
from tests.training.conftest import PROVIDERS, Net, batches, make_trainer


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A trained model, exported, with metadata of its own."""
    torch.manual_seed(3)
    trainer = make_trainer(Net(dropout=0.2))
    for batch in batches(2):
        trainer.train_step(*batch)
    file = tmp_path_factory.mktemp("model") / "model.onnx"
    trainer.save_as_onnx(file)
    model = onnx.load(file)
    model.doc_string, model.model_version = "a small one", 7
    model.metadata_props.add(key="trained", value="on two batches")
    onnx.save(model, file)
    return file


IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 10]])


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_every_provider_gives_what_onnxruntime_gives(path, provider):
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ours = ontrain.InferenceSession(path, providers=[provider])
    assert ours.get_providers() == [provider]
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(v.name, v.type, v.shape) for v in mine] == [(v.name, v.type, v.shape) for v in other]
    meta, wanted = ours.get_modelmeta(), theirs.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(meta, name) == getattr(wanted, name)
    for ids in (IDS, IDS[:1, :2], IDS):
        expected = theirs.run(None, {"ids": ids})
        for outputs in (ours.run(None, {"ids": ids}), ours.run(["output"], {"ids": torch.as_tensor(ids)})):
            assert [type(array) for array in outputs] == [np.ndarray]
            np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_model_is_taken_from_bytes(path, provider):
    session = ontrain.InferenceSession(path.read_bytes(), providers=[(provider, {"device": "cpu"})])
    assert session.run([], {"ids": IDS})[0].shape == (2, 4, 11)
    assert session.get_provider_options() == {provider: {"device": "cpu"}}


def test_session_options_and_provider_options_reach_onnxruntime(path, tmp_path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.optimized_model_filepath = 1, str(tmp_path / "optimised.onnx")
    session = ontrain.InferenceSession(path, options, [("CPUExecutionProvider", {"arena_extend_strategy": "0"})])
    assert session.get_session_options().intra_op_num_threads == 1
    assert (tmp_path / "optimised.onnx").stat().st_size > 0
    ontrain.InferenceSession(path, providers=["CPUExecutionProvider"], provider_options=[{}])


def test_bindings_and_run_options_are_onnxruntimes(path):
    session = ontrain.InferenceSession(path)
    binding = session.io_binding()
    binding.bind_cpu_input("ids", IDS)
    binding.bind_output("output")
    session.run_with_iobinding(binding)
    options = onnxruntime.RunOptions()
    options.log_severity_level = 3
    (wanted,) = session.run(["output"], {"ids": IDS}, options)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], wanted)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
@pytest.mark.parametrize(
    ("outputs", "feeds", "says"),
    [
        (None, {"idz": IDS}, "no input 'idz'.*'ids'"),
        (["ouput"], {"ids": IDS}, "no output 'ouput'.*'output'"),
        (None, {}, "ids"),
        (None, {"ids": IDS.astype(np.float32)}, "ids.*int64"),
        (None, {"ids": IDS[0]}, "ids"),
    ],
)
def test_feeds_that_do_not_fit_are_told_what_the_model_takes(path, provider, outputs, feeds, says):
    with pytest.raises(InputError) as error:
        ontrain.InferenceSession(path, providers=[provider]).run(outputs, feeds)
    assert re.search(says, str(error.value), re.DOTALL)


ADDED = [helper.make_node("Add", ["x", "z"], ["y"])]
CHOSEN = [
    helper.make_node("Compress", ["x", "rows"], ["chosen"], axis=0), helper.make_node("Add", ["chosen", "z"], ["y"])
]  # fmt: skip
WRONG_DTYPE = np.ones((2, 4)), (2, 4), r"expects float32\n  reason: the file states x: float.*feed it as float32$"
WRONG_SIZE = np.ones((2, 5), "f"), (2, 5), r"expects \['n', 4\]\n  way out: feed that shape, or export the file with"
WRONG_RANK = np.ones(4, "f"), (2, 4), r"expects \['n', 4\]\n  way out: feed that shape$"
TWO_SIZES = np.ones((2, 4), "f"), (3, 4), r"'n' is 3 in input 'z' and 2 in 'x'\n  way out: .* two names in the file$"


@pytest.mark.parametrize(
    ("nodes", "x", "z", "says"),
    [
        *((nodes, *wrong) for nodes in (ADDED, CHOSEN) for wrong in (WRONG_DTYPE, WRONG_SIZE, WRONG_RANK)),
        (ADDED, *TWO_SIZES),
    ],
)  # fmt: skip
def test_feeds_that_do_not_fit_are_told_in_words_of_the_file(nodes, x, z, says):
    """Whoever runs a file, whole or in steps, captured no module and described no inputs."""
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "z")]
    rows = [helper.make_tensor_value_info("rows", TensorProto.BOOL, [None])] if nodes is CHOSEN else []
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "sum", [*types, *rows], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    feeds = {"x": x, "z": np.ones(z, "f"), **({"rows": np.array([True])} if rows else {})}
    with pytest.raises(InputError) as error:
        session.run(None, feeds)
    assert re.search(says, str(error.value), re.DOTALL)
    assert not re.search("captured|model_desc|describe", str(error.value))


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_an_index_out_of_range_is_an_error_of_ours(path, provider):
    with pytest.raises((InputError, ProviderError), match="11"):
        ontrain.InferenceSession(path, providers=[provider]).run(None, {"ids": IDS + 1})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"providers": ["CPUExecutionProvidr"]}, "no execution provider 'CPUExecutionProvidr'.*'CPUExecutionProvider'"),
        ({"providers": ["TorchProvider"]}, "'TorchExecutionProvider'"),
        ({"providers": ["CUDAExecutionProvider", "TorchExecutionProvider"]}, "no execution provider 'CUDA"),
        ({"providers": [("TorchExecutionProvider", {"divice": "cpu"})]}, "no option 'divice'"),
        ({"providers": ["TorchExecutionProvider", 3]}, "write a name"),
        ({"providers": ["TorchExecutionProvider"], "provider_options": []}, "same length"),
        ({"providers": [("TorchExecutionProvider", {})], "provider_options": [{}]}, "in one place"),
    ],
)
def test_providers_and_options_are_checked(path, arguments, says):
    with pytest.raises(OptionError) as error:
        ontrain.InferenceSession(path, strict_providers=True, **arguments)
    assert re.search(says, str(error.value), re.DOTALL)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_a_missing_or_truncated_file_is_refused(path, provider, tmp_path):
    with pytest.raises(InputError, match="there is no model file"):
        ontrain.InferenceSession(tmp_path / "nothing.onnx", providers=[provider])
    (tmp_path / "half.onnx").write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(OntrainError, match="cannot load|damaged|holds no graph"):
        ontrain.InferenceSession(tmp_path / "half.onnx", providers=[provider])


def test_what_only_onnxruntime_has_says_so(path):
    session = ontrain.InferenceSession(path, providers=["TorchExecutionProvider"])
    with pytest.raises(OptionError, match="TorchExecutionProvider has no 'set_ep_dynamic_options'"):
        session.set_ep_dynamic_options({})


def test_providers_of_onnxruntime_are_listed_before_ours():
    assert ontrain.get_available_providers() == [*onnxruntime.get_available_providers(), *PROVIDERS]


def _model(nodes, inputs, outputs) -> bytes:
    """Bytes of a small model; nodes of ai.onnx.ml are allowed."""
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    graph = onnx.helper.make_graph(nodes, "small", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()


def _tensor(name: str, dtype: int = onnx.TensorProto.FLOAT, shape=None):
    return onnx.helper.make_tensor_value_info(name, dtype, shape)


def test_a_sequence_is_fed_as_a_list():
    node = onnx.helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    sequence = onnx.helper.make_tensor_sequence_value_info("x", onnx.TensorProto.FLOAT, None)
    session = ontrain.InferenceSession(_model([node], [sequence], [_tensor("y")]))
    parts = [torch.ones(2, requires_grad=True), np.zeros(1, np.float32)]
    np.testing.assert_array_equal(session.run(None, {"x": parts})[0], [1, 1, 0])


def test_a_map_is_fed_as_a_dictionary():
    node = onnx.helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml", cast_to="TO_FLOAT", map_form="DENSE")
    number = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    map_ = onnx.helper.make_value_info("x", onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, number))
    session = ontrain.InferenceSession(_model([node], [map_], [_tensor("y")]))
    np.testing.assert_array_equal(session.run(None, {"x": {1: 2.0, 0: 3.0}})[0], [[3, 2]])


@pytest.mark.parametrize("words", [["a", "bc"], np.array(["a", "bc"]), np.array(["a", "bc"], object)])
def test_strings_are_fed(words):
    string = onnx.TensorProto.STRING
    model = _model([onnx.helper.make_node("Identity", ["x"], ["y"])], [_tensor("x", string, ["n"])],
                   [_tensor("y", string, ["n"])])  # fmt: skip
    assert ontrain.InferenceSession(model).run(None, {"x": words})[0].tolist() == ["a", "bc"]


@pytest.mark.parametrize(
    "x",
    [
        [1.0, 2.0], (1.0, 2.0), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0, 2.0, 0.0])[::2],
        onnxruntime.OrtValue.ortvalue_from_numpy(np.array([1, 2], np.float32)),
    ],
    ids=["list", "tuple", "tensor", "strided tensor", "OrtValue"],
)  # fmt: skip
def test_a_tensor_is_fed_as_whatever_holds_it(x):
    x = tuple(map(np.float32, x)) if isinstance(x, tuple) else x
    model = _model([onnx.helper.make_node("Add", ["x", "x"], ["y"])], [_tensor("x", shape=[2])], [_tensor("y")])
    np.testing.assert_array_equal(ontrain.InferenceSession(model).run(None, {"x": x})[0], [2, 4])


def test_bfloat16_is_fed():
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT)
    model = _model([node], [_tensor("x", onnx.TensorProto.BFLOAT16, [2])], [_tensor("y", shape=[2])])
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    np.testing.assert_array_equal(ontrain.InferenceSession(model).run(None, {"x": x})[0], [1.5, -2])


def _normalising(training: int) -> bytes:
    """Scale, bias and statistics of three channels; in training mode the next statistics are outputs."""
    values = np.random.default_rng(5)
    names = ["scale", "bias", "mean", "var"]
    weights = [onnx.numpy_helper.from_array(values.uniform(0.5, 2, 3).astype(np.float32), name) for name in names]
    outputs = ["y", "next_mean", "next_var"][: 3 if training else 1]
    node = onnx.helper.make_node("BatchNormalization", ["x", *names], outputs, training_mode=training, momentum=0.8)
    graph = onnx.helper.make_graph(
        [node], "norm", [_tensor("x", shape=["n", 3, 4])], [_tensor(name) for name in outputs], weights
    )
    sets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("training", [0, 1])
def test_a_batch_normalisation_runs_in_the_mode_that_the_file_says(training, provider, rng):
    model, x = _normalising(training), rng.standard_normal((5, 3, 4), np.float32)
    expected = onnxruntime.InferenceSession(model).run(None, {"x": x})
    session = ontrain.InferenceSession(model, providers=[provider])
    for _ in range(2):  # the statistics of the file stay what they are
        for ours, theirs in zip(session.run(None, {"x": x}), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("training", [False, True])
def test_a_dropout_runs_in_the_mode_that_the_file_says(training, provider):
    flags = [
        onnx.numpy_helper.from_array(np.array(0.25, np.float32), "ratio"),
        onnx.numpy_helper.from_array(np.array(training), "training"),
    ]
    node = onnx.helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])
    graph = onnx.helper.make_graph([node], "drop", [_tensor("x", shape=["n"])], [_tensor("y", shape=["n"])], flags)
    sets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()
    session = ontrain.InferenceSession(model, providers=[provider])
    x = np.ones(4000, np.float32)
    outputs = [session.run(None, {"x": x})[0] for _ in range(2)]
    if not training:
        np.testing.assert_array_equal(outputs, [x, x])
        return
    for y in outputs:
        np.testing.assert_allclose(np.unique(y), [0, 1 / 0.75], rtol=1e-6)
        assert abs((y == 0).mean() - 0.25) < 0.04
    assert (outputs[0] != outputs[1]).any(), "each run draws masks of its own, as in onnxruntime"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("pads", ["even", "uneven"])
def test_places_of_maxima_are_counted_by_columns_where_the_file_says_so(provider, rank, pads, rng):
    padding = {"even": [1] * (2 * rank), "uneven": [0] * rank + [1] * rank}[pads]
    node = onnx.helper.make_node(
        "MaxPool", ["x"], ["y", "places"], kernel_shape=[3] * rank, strides=[2] * rank, pads=padding, storage_order=1
    )
    places = _tensor("places", onnx.TensorProto.INT64)
    model = _model([node], [_tensor("x", shape=[2, 3, *range(6, 6 + rank)])], [_tensor("y"), places])
    x = rng.standard_normal((2, 3, *range(6, 6 + rank)), np.float32)
    expected = onnxruntime.InferenceSession(model).run(None, {"x": x})
    for ours, theirs in zip(ontrain.InferenceSession(model, providers=[provider]).run(None, {"x": x}), expected,
                            strict=True):  # fmt: skip
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("read", [[], ["mean"], ["mean", "var"]], ids=["none", "mean", "both"])
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_a_normalisation_in_training_mode_is_the_same_in_each_run(provider, read):
    x = np.random.default_rng(0).normal(1, 3, (64, 4)).astype(np.float32)
    state = {"scale": np.ones(4), "bias": np.zeros(4), "mean_before": np.zeros(4), "var_before": np.ones(4)}
    node = onnx.helper.make_node("BatchNormalization", ["x", *state], ["y", "mean", "var"], training_mode=1)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node], "g", [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
            [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("y", *read)],
            [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in state.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    before = options.graph_optimization_level
    session = ontrain.InferenceSession(model.SerializeToString(), options, providers=[provider])
    wanted = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    for _ in range(3):
        np.testing.assert_allclose(session.run(["y"], {"x": x})[0], wanted, atol=1e-5)
    assert options.graph_optimization_level == before
