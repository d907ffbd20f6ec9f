"""What sessions do that onnxruntime's do not: inner values by name, tensors out, a list of providers for each model."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as errors

import ontrain
from tests.dropin.models import MODELS, WEIGHT, write
from tests.training.conftest import PROVIDERS

X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
EVERYWHERE = pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models"))


@EVERYWHERE
@pytest.mark.parametrize("name", ["scaled", "outside"])
def test_inner_values_are_outputs_where_they_are_asked_for(provider, name, folder):
    session = ontrain.InferenceSession(folder / f"{name}.onnx", providers=[provider])
    for _ in range(2):
        y, h = session.run(["y", "h"], {"x": X})
        np.testing.assert_allclose(h, X @ WEIGHT, rtol=1e-6)
        np.testing.assert_allclose(y, np.maximum(X @ WEIGHT, 0), rtol=1e-6)
    assert [value.name for value in session.get_outputs()] == ["y"]
    with pytest.raises(errors.InvalidArgument, match="no output 'hh'"):
        session.run(["hh"], {"x": X})


@EVERYWHERE
def test_tensors_come_out(provider):
    session = ontrain.InferenceSession(MODELS["scaled"], providers=[provider])
    for x in (X, torch.from_numpy(X), X.tolist(), onnxruntime.OrtValue.ortvalue_from_numpy(X)):
        (y,) = session.run_tensors(None, {"x": x})
        assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
        np.testing.assert_allclose(y.numpy(), np.maximum(X @ WEIGHT, 0), rtol=1e-6)


def test_tensors_and_values_share_the_memory_that_was_written():
    session = ontrain.InferenceSession(MODELS["scaled"], providers=["TorchExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    assert value.data_ptr() == binding.results[0].data_ptr() == torch.from_dlpack(value).data_ptr()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_bfloat16_goes_in_on_the_torch_provider(kind):
    x = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    feed = x if kind == "numpy" else torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    session = ontrain.InferenceSession(MODELS["half"], providers=["TorchExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": feed})[0], [1.5, -2.0])


@EVERYWHERE
def test_optimum_finds_where_a_session_has_its_model_from(provider, folder):
    path = folder / "scaled.onnx"
    session = ontrain.InferenceSession(path, providers=[provider])
    assert session._model_path == str(path) and session._model_bytes is None
    session = ontrain.InferenceSession(path.read_bytes(), providers=[provider])
    assert session._model_path is None and session._model_bytes == path.read_bytes()


@EVERYWHERE
def test_a_message_is_a_model(provider):
    session = ontrain.InferenceSession(MODELS["scaled"], providers=[provider])
    assert session.run(None, {"x": X})[0].shape == (2, 2)


def test_bytes_that_fill_their_width_are_read_to_their_end():
    session = ontrain.InferenceSession(MODELS["strings"])
    words = np.array([b"abcd", b"ef", "ü".encode()])
    assert session.run(None, {"x": words})[0].tolist() == ["abcd", "ef", "ü"]


def nodes_of(session):
    return [(region.ep_name, len(region.get_nodes())) for region in session.get_provider_graph_assignment_info()]


def recording():
    options = ontrain.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


BOTH = ["TorchExecutionProvider", "CPUExecutionProvider"]


def test_the_first_of_the_list_that_can_gets_the_model(folder):
    session = ontrain.InferenceSession(folder / "scaled.onnx", recording(), BOTH)
    assert session.get_providers() == ["TorchExecutionProvider"]
    assert nodes_of(session) == [("TorchExecutionProvider", 2)]


def test_the_next_gets_a_model_that_the_first_cannot_run(folder):
    with pytest.warns(UserWarning, match="TorchExecutionProvider cannot run this model, so CPUExecutionProvider does"):
        session = ontrain.InferenceSession(folder / "sparse.onnx", recording(), BOTH)
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("form", ["path", "bytes"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_model_in_onnxruntimes_own_format_runs(provider, form, folder):
    source = folder / "scaled.ort" if form == "path" else (folder / "scaled.ort").read_bytes()
    session = ontrain.InferenceSession(source, providers=[provider])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.maximum(X @ WEIGHT, 0), rtol=1e-6)
    assert session.get_providers() == [provider]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_damaged_model_in_onnxruntimes_own_format_is_refused(provider, folder):
    with pytest.raises(ontrain.GraphError, match="in its own format") as caught:
        ontrain.InferenceSession((folder / "scaled.ort").read_bytes()[:200], providers=[provider])
    assert isinstance(caught.value, errors.Fail)


@EVERYWHERE
def test_a_file_of_another_format_than_the_one_that_is_stated_is_refused(provider, folder):
    options = ontrain.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    with pytest.raises(ontrain.OntrainError) as caught:
        ontrain.InferenceSession(folder / "scaled.onnx", options, [provider])
    assert isinstance(caught.value, errors.Fail)
    session = ontrain.InferenceSession(folder / "scaled.ort", options, [provider])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.maximum(X @ WEIGHT, 0), rtol=1e-6)


@pytest.mark.parametrize("columns", [3, 5])
@EVERYWHERE
def test_stated_shapes_that_contradict_the_operators_are_refused_where_this_is_asked_for(provider, columns):
    x, y = (onnx.helper.make_tensor_value_info(*value) for value in (("x", 1, [2, 3]), ("y", 1, [2, columns])))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "stated", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = ontrain.SessionOptions()
    options.log_severity_level = 4
    ontrain.InferenceSession(model, options, [provider])
    options.add_session_config_entry("session.strict_shape_type_inference", "1")
    if columns == 3:
        ontrain.InferenceSession(model, options, [provider])
        return
    with pytest.raises(ontrain.OntrainError, match="ShapeInferenceError") as caught:
        ontrain.InferenceSession(model, options, [provider])
    assert isinstance(caught.value, errors.Fail)


@pytest.mark.parametrize("asked", ["entry", "name"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_optimised_model_is_written_in_the_format_that_is_asked_for(provider, asked, folder, tmp_path):
    options = ontrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / ("model.onnx" if asked == "entry" else "model.ort"))
    if asked == "entry":
        options.add_session_config_entry("session.save_model_format", "ORT")
    ontrain.InferenceSession(folder / "scaled.onnx", options, [provider])
    content = Path(options.optimized_model_filepath).read_bytes()
    assert content[4:8] == b"ORTM"
    again = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(again.run(None, {"x": X})[0], np.maximum(X @ WEIGHT, 0), rtol=1e-6)


@pytest.mark.parametrize("providers", [["TorchExecutionProvider"], BOTH, BOTH[1:]], ids=str)
def test_a_session_is_neither_pickled_nor_copied_whole(providers, folder):
    session = ontrain.InferenceSession(folder / "scaled.onnx", ontrain.SessionOptions(), providers)
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            way(session)
    np.testing.assert_array_equal(copy.copy(session).run(None, {"x": X})[0], session.run(None, {"x": X})[0])


def test_outputs_that_no_run_has_made_are_refused_on_onnxruntimes_provider(folder):
    session = ontrain.InferenceSession(folder / "scaled.onnx", providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    with pytest.raises(ontrain.InputError, match="call session.run_with_iobinding first"):
        binding.copy_outputs_to_cpu()
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(None, {"x": X})[0])


def test_sparse_tensors_are_fed_to_the_next_provider(folder):
    sparse = ontrain.SparseTensor.sparse_csr_from_numpy(
        [2, 2],
        np.array([2.0, 3.0], np.float32),
        np.array([1, 0]),
        np.array([0, 1, 2]),
        ontrain.OrtDevice.make("cpu", 0),
    )
    with pytest.warns(UserWarning, match="so CPUExecutionProvider does: value 'a' in .* is a sparse tensor"):
        session = ontrain.InferenceSession(folder / "sparse.onnx", recording(), BOTH)
    feeds = {"a": ontrain.OrtValue.ort_value_from_sparse_tensor(sparse), "b": ontrain.OrtValue.ortvalue_from_numpy(X)}
    (y,) = session.run_with_ort_values(None, feeds)
    np.testing.assert_allclose(y.numpy(), np.array([[0, 2], [3, 0]]) @ X)
    assert [name for name, _ in nodes_of(session)] == ["CPUExecutionProvider"]


def test_without_another_in_the_list_a_model_is_refused(folder):
    for options in ({}, {"enable_fallback": 0}):
        with pytest.raises(ontrain.OntrainError):
            providers = BOTH if options else BOTH[:1]
            ontrain.InferenceSession(folder / "sparse.onnx", providers=providers, **options)
    settings = ontrain.SessionOptions()
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(ontrain.OntrainError):
        ontrain.InferenceSession(folder / "sparse.onnx", settings, BOTH)


def test_onnxruntime_may_be_the_one_that_cannot():
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, [2, 2])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BFLOAT16, [2, 2])
    node = onnx.helper.make_node("MatMul", ["x", "x"], ["y"])
    graph = onnx.helper.make_graph([node], "half", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(errors.NotImplemented):
        ontrain.InferenceSession(model)
    with pytest.warns(UserWarning, match="onnxruntime cannot run this model, so TorchExecutionProvider does"):
        session = ontrain.InferenceSession(model, providers=BOTH[::-1])
    (result,) = session.run(None, {"x": np.eye(2).astype(ml_dtypes.bfloat16)})
    assert result.dtype == ml_dtypes.bfloat16 and result.astype(np.float32).tolist() == np.eye(2).tolist()


def test_a_provider_that_is_not_here_is_warned_of(folder):
    path = folder / "scaled.onnx"
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider names"):
        session = ontrain.InferenceSession(path, providers=["CUDAExecutionProvider", "TorchExecutionProvider"])
    assert session.get_providers() == ["TorchExecutionProvider"]
    with pytest.warns(UserWarning, match="No execution provider is called 'TorchProvider'; nearest: 'TorchExecution"):
        ontrain.InferenceSession(path, providers=["TorchProvider"])


def test_settings_that_mean_nothing_are_said_once(folder, monkeypatch):
    monkeypatch.setattr("ontrain.inference.options._said", set())
    options = ontrain.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.disable_prepacking", "1")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            ontrain.InferenceSession(folder / "scaled.onnx", options, ["TorchExecutionProvider"])
    texts = [str(warning.message) for warning in said]
    assert len(texts) == 2 and "intra_op_num_threads" in texts[0] and "session.disable_prepacking" in texts[1]


@EVERYWHERE
def test_errors_are_caught_by_both_names_and_survive_a_pickle(provider):
    session = ontrain.InferenceSession(MODELS["scaled"], providers=[provider])
    with pytest.raises(ontrain.InputError) as caught:
        session.run(None, {"x": X[0]})
    assert isinstance(caught.value, errors.InvalidArgument) and isinstance(caught.value, ValueError)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # between processes of one program
    assert type(again) is type(caught.value) and str(again) == str(caught.value)
    assert again.way_out == caught.value.way_out


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_ontrains_providers_cannot_do_is_refused(provider, folder):
    session = ontrain.InferenceSession(folder / "scaled.onnx", providers=[provider])
    with pytest.raises(ontrain.OptionError, match="set_ep_dynamic_options"):
        session.set_ep_dynamic_options({})
    with pytest.raises(ontrain.GraphError, match="value 'a' in .* is a sparse tensor"):
        ontrain.InferenceSession(folder / "sparse.onnx", providers=[provider])
    with pytest.raises(ontrain.InputError, match="another session"):
        session.run_with_iobinding(ontrain.InferenceSession(folder / "scaled.onnx", providers=[provider]).io_binding())


def test_a_run_that_is_stopped_stays_with_its_provider(folder):
    session = ontrain.InferenceSession(folder / "rounds.onnx", None, ["TorchExecutionProvider", "CPUExecutionProvider"])
    options = ontrain.RunOptions()
    options.terminate = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(errors.Fail, match="terminate flag"):
            session.run(None, {"n": np.array(2), "x": X}, options)
    options.terminate = False
    session.run(None, {"n": np.array(2), "x": X}, options)
    assert session.get_providers() == ["TorchExecutionProvider"]


def test_bytes_that_are_no_text_are_refused_by_the_inputs_name(folder):
    session = ontrain.InferenceSession(folder / "strings.onnx", providers=["TorchExecutionProvider"])
    for bytes_ in (np.array([b"\xff"], object), [b"\xff"], np.array([b"\xff"])):
        with pytest.raises(ontrain.InputError, match="'x' holds bytes that are no text"):
            session.run(None, {"x": bytes_})
    with pytest.raises(ontrain.InputError, match="takes strings"):
        session.run(None, {"x": [["a"], ["b", "c"]]})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_memory_of_a_gpu_is_refused_where_there_is_none(folder):
    binding = ontrain.InferenceSession(folder / "scaled.onnx", providers=["TorchExecutionProvider"]).io_binding()
    with pytest.raises(RuntimeError, match="PyTorch finds no GPU") as caught:
        binding.bind_input("x", "cuda", 0, np.float32, [2, 2], X.ctypes.data)
    assert isinstance(caught.value, ontrain.OntrainError)


@EVERYWHERE
def test_sizes_of_one_name_may_differ_from_run_to_run(provider):
    """The file calls all sizes that vary N; strings and whole numbers that choose a shape are among them."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    m (string[N] words, int64[N] counts, float[N] x) => (float[N] y, int64[N] ids, float[N] sum) {
        ids = ai.onnx.ml.LabelEncoder<keys_strings=["a", "b"], values_int64s=[1, 2], default_int64=0>(words)
        y = Expand(x, counts)
        sum = Add(x, x)
    }""")
    session = ontrain.InferenceSession(model, providers=[provider])
    for words, counts, x in [(["a", "c"], [3, 1], [5.0]), (["b"], [2], [1.0]), (["b", "a", "a"], [1, 2], [4.0, 6.0])]:
        feeds = {"words": np.array(words, object), "counts": np.array(counts), "x": np.array(x, np.float32)}
        y, ids, twice = session.run(None, feeds)
        np.testing.assert_array_equal(y, np.broadcast_to(feeds["x"], np.broadcast_shapes((len(x),), counts)))
        assert ids.tolist() == [{"a": 1, "b": 2, "c": 0}[word] for word in words] and twice.tolist() == [
            2 * v for v in x
        ]
    assert [value.shape for value in session.get_inputs()] == [["N"], ["N"], ["N"]]


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_an_initializer_may_be_given_in_a_type_that_numpy_lacks(provider):
    weight, override = np.ones(2, ml_dtypes.bfloat16), np.array([3, -2.5], ml_dtypes.bfloat16)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    m (float[n] x) => (float[n] y) { wide = Cast<to = 1>(w) y = Add(x, wide) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    options = ontrain.SessionOptions()
    options.graph_optimization_level = ontrain.GraphOptimizationLevel.ORT_DISABLE_ALL  # else stock folds the old one
    kind = onnx.TensorProto.BFLOAT16
    value = ontrain.OrtValue.ortvalue_from_numpy_with_onnx_type(override.view(np.uint16), kind)
    options.add_initializer("w", value)
    session = ontrain.InferenceSession(model, options, providers=[provider])
    np.testing.assert_array_equal(session.run(None, {"x": X[0]})[0], X[0] + override.astype(np.float32))


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[2] x, float[3] z) => (float[n] y) { y = Add(x, z) }",
        "g (float[2] x) => (float[2] y) { y = Relu(x) y = Neg(x) }",
        "g (float[2] x) => (float[2] y) { y = nowhere.Foo(x) }",
        "g (int64[2] x) => (float[2] y) { y = Sqrt(x) }",
        "g (float[2] x) => (float[2] y) { y = Foo(x) }",
    ],
    ids=["sizes", "a name twice", "a foreign operator", "a type", "an operator"],
)  # fmt: skip
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_damaged_graph_is_refused_as_onnxruntime_refuses_it(graph, provider):
    text = f'<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]> {graph}'
    content = onnx.parser.parse_model(text).SerializeToString()
    with pytest.raises(Exception, match="ONNXRuntimeError") as theirs:
        onnxruntime.InferenceSession(content)
    with pytest.raises(theirs.type) as ours:
        ontrain.InferenceSession(content, providers=[provider])
    assert isinstance(ours.value, ontrain.OntrainError)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_sequences_of_maps_that_are_bound_are_copied_out(provider):
    session = ontrain.InferenceSession(MODELS["zip_map"], providers=[provider])
    feeds = {value.name: X for value in session.get_inputs()}
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for value in session.get_outputs():
        binding.bind_output(value.name)
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu() == session.run(None, feeds)
