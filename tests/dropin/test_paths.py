"""Paths that a program names: what onnxruntime refuses is refused, under onnxruntime's class and by name."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from tests.dropin.models import WEIGHT, model, scaled, tensor

X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
PROVIDERS = ("CPUExecutionProvider", "TorchExecutionProvider")
PLACES = ("missing/x.onnx", "folder", "file/x.onnx")
OUTSIDE_FOLDER = "session.model_external_initializers_file_folder_path"
DATA_NAME = "session.optimized_model_external_initializers_file_name"
DATA_LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    onnx.save(scaled(), tmp_path / "scaled.onnx")
    onnx.save(scaled(), tmp_path / "outside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return tmp_path


def options_of(module, **settings):
    options = module.SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    return options


def refusal(module, source, provider, **settings):
    with pytest.raises(Exception) as caught:  # onnxruntime's errors share no base but Exception
        module.InferenceSession(source, options_of(module, **settings), providers=[provider])
    return caught.value


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("path", PLACES)
def test_an_optimised_model_that_cannot_be_written_is_refused_by_its_path(place, path, provider):
    source, target = str(place / "scaled.onnx"), str(place / path)
    theirs = refusal(onnxruntime, source, "CPUExecutionProvider", optimized_model_filepath=target)
    ours = refusal(ontrain, source, provider, optimized_model_filepath=target)
    assert isinstance(ours, type(theirs)) and isinstance(ours, ontrain.OptionError)
    assert target in str(ours) and "folder" in ours.reason


@pytest.fixture
def without_rights():
    """The superuser may write everywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


@pytest.mark.parametrize("setting", ["optimized_model_filepath", "profile_file_prefix"])
def test_a_folder_without_permission_is_named(tmp_path, without_rights, setting):
    locked = "/proc/self"
    error = refusal(
        ontrain, scaled(), "TorchExecutionProvider", enable_profiling=setting == "profile_file_prefix",
        **{setting: f"{locked}/x"},
    )  # fmt: skip
    assert isinstance(error, ontrain.OptionError) and f"'{locked}' may not be written to" in error.reason


@pytest.mark.parametrize("path", ["missing/x", "file/x", "a\0b"])
def test_a_profile_that_cannot_be_written_is_refused_before_the_run(place, path):
    prefix = str(place / path)
    error = refusal(ontrain, scaled(), "TorchExecutionProvider", enable_profiling=True, profile_file_prefix=prefix)
    assert isinstance(error, ontrain.OptionError) and repr(prefix) in str(error)


def test_onnxruntime_that_loses_a_profile_is_told_of(place):
    options = options_of(ontrain, enable_profiling=True, profile_file_prefix=str(place / "missing" / "x"))
    with pytest.warns(UserWarning, match="no profile .* no folder"):
        session = ontrain.InferenceSession(scaled(), options, providers=["CPUExecutionProvider"])
    assert not Path(session.end_profiling()).exists()


@pytest.mark.parametrize("prefix", ["folder/", "folder/trace", "folder"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_profile_lies_where_its_prefix_says(place, prefix, provider):
    options = options_of(ontrain, enable_profiling=True, profile_file_prefix=f"{place}/{prefix}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ontrain.InferenceSession(scaled(), options, providers=[provider])
    session.run(None, {"x": X})
    path = session.end_profiling()
    assert path.startswith(f"{place}/{prefix}_") and json.loads(Path(path).read_text())


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("path", ["folder", "file/x.onnx", "missing/x.onnx", "missing.onnx"])
def test_a_path_to_no_model_is_of_onnxruntimes_class(place, path, provider):
    theirs = refusal(onnxruntime, str(place / path), "CPUExecutionProvider")
    ours = refusal(ontrain, str(place / path), provider)
    assert isinstance(ours, type(theirs)) and isinstance(ours, ontrain.InputError)
    assert str(place / path) in str(ours)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("location", ["", "missing.bin", "folder", "file", "file/w.bin", "../w.bin", "/etc/passwd"])
def test_external_data_that_cannot_be_read_is_of_onnxruntimes_class(place, location, provider):
    proto = onnx.load(place / "outside.onnx", load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = location
    (place / "bad.onnx").write_bytes(proto.SerializeToString())
    theirs = refusal(onnxruntime, str(place / "bad.onnx"), "CPUExecutionProvider")
    ours = refusal(ontrain, str(place / "bad.onnx"), provider)
    assert isinstance(ours, type(theirs)) and isinstance(ours, ValueError)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("folder", ["", "missing", "file", "folder"])
def test_a_folder_without_the_external_data_is_of_onnxruntimes_class(place, folder, provider):
    content = (place / "outside.onnx").read_bytes()

    def caught(module, name):
        options = module.SessionOptions()
        options.add_session_config_entry(OUTSIDE_FOLDER, str(place / folder) if folder else "")
        with pytest.raises(Exception) as error:
            module.InferenceSession(content, options, providers=[name])
        return error.value

    error = caught(ontrain, provider)
    assert isinstance(error, type(caught(onnxruntime, "CPUExecutionProvider"))) and isinstance(error, ValueError)
    assert "MatMul" not in str(error), "the message names the model by its bytes"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_bytes_find_their_external_data_in_the_folder_told(place, provider):
    options = ontrain.SessionOptions()
    options.add_session_config_entry(OUTSIDE_FOLDER, str(place))
    session = ontrain.InferenceSession((place / "outside.onnx").read_bytes(), options, providers=[provider])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.maximum(X @ WEIGHT, 0), rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_external_data_need_not_be_on_the_disk_if_the_options_have_it(place, provider):
    (place / "w.bin").unlink()
    values = ontrain.SessionOptions()
    values.add_external_initializers(["w"], [ontrain.OrtValue.ortvalue_from_numpy(2 * WEIGHT)])
    contents = ontrain.SessionOptions()
    data = (2 * WEIGHT).tobytes()
    contents.add_external_initializers_from_files_in_memory(["w.bin"], [data], [len(data)])
    for options in (values, contents):
        session = ontrain.InferenceSession(str(place / "outside.onnx"), options, providers=[provider])
        np.testing.assert_allclose(session.run(None, {"x": X})[0], np.maximum(2 * X @ WEIGHT, 0), rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("least", "is_outside"), [("0", True), ("10000", False)])
def test_weights_of_the_optimised_model_lie_in_the_file_named(place, provider, least, is_outside):
    options = options_of(ontrain, optimized_model_filepath=str(place / "optimised.onnx"))
    options.add_session_config_entry(DATA_NAME, "weights.bin")
    options.add_session_config_entry(DATA_LEAST, least)
    ontrain.InferenceSession(str(place / "scaled.onnx"), options, providers=[provider])
    (place / "scaled.onnx").unlink()
    stored = onnx.load(place / "optimised.onnx", load_external_data=False)
    assert any(tensor.external_data for tensor in stored.graph.initializer) == is_outside
    again = onnxruntime.InferenceSession(place / "optimised.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(again.run(None, {"x": X})[0], np.maximum(X @ WEIGHT, 0), rtol=1e-6)


def test_sizes_stay_in_the_optimised_model_so_that_its_shapes_are_inferred(place):
    """onnx's inference does not read pads from another file."""
    nodes = [onnx.helper.make_node("Pad", ["x", "pads"], ["h"]), onnx.helper.make_node("MatMul", ["h", "w"], ["y"])]
    weights = [
        onnx.numpy_helper.from_array(np.array([1, 0, 1, 0]), "pads"),
        onnx.numpy_helper.from_array(WEIGHT, "w"),
    ]
    proto = model(nodes, [tensor("x", shape=["rows", 2])], [tensor("y", shape=None)], weights)
    options = options_of(ontrain, optimized_model_filepath=str(place / "optimised.onnx"))
    options.add_session_config_entry(DATA_NAME, "weights.bin")
    options.add_session_config_entry(DATA_LEAST, "0")
    ontrain.InferenceSession(proto, options, providers=["TorchExecutionProvider"])
    onnx.checker.check_model(str(place / "optimised.onnx"), full_check=True)
    again = onnxruntime.InferenceSession(place / "optimised.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(again.run(None, {"x": X})[0], np.pad(X, [(1, 1), (0, 0)]) @ WEIGHT, rtol=1e-6)


def test_weights_of_just_the_least_size_lie_outside(place):
    options = options_of(ontrain, optimized_model_filepath=str(place / "optimised.onnx"))
    options.add_session_config_entry(DATA_NAME, "weights.bin")
    options.add_session_config_entry(DATA_LEAST, str(WEIGHT.nbytes))
    ontrain.InferenceSession(str(place / "scaled.onnx"), options, providers=["TorchExecutionProvider"])
    assert (place / "weights.bin").stat().st_size == WEIGHT.nbytes


def test_data_of_the_optimised_model_lies_beside_it(place):
    options = options_of(ontrain, optimized_model_filepath=str(place / "optimised.onnx"))
    options.add_session_config_entry(DATA_NAME, "../weights.bin")
    with pytest.raises(ontrain.OptionError, match="beside the model"):
        ontrain.InferenceSession(scaled(), options, providers=["TorchExecutionProvider"])


def test_a_file_that_differentiates_is_written_as_it_is(place):
    """`Gradient` is spelled out in plans only."""
    nodes = [
        onnx.helper.make_node("Mul", ["x", "x"], ["y"]),
        onnx.helper.make_node("Gradient", ["x"], ["d"], domain="ai.onnx.preview.training", xs=["x"], y="y"),
    ]
    proto = model(nodes, [tensor("x", shape=[2])], [tensor("y", shape=[2]), tensor("d", shape=[2])])
    proto.opset_import.add(domain="ai.onnx.preview.training", version=1)
    path = place / "optimised.onnx"
    options = options_of(ontrain, optimized_model_filepath=str(path))
    session = ontrain.InferenceSession(proto, options, providers=["TorchExecutionProvider"])
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Mul", "Gradient"]
    np.testing.assert_allclose(session.run(["d"], {"x": X[0]})[0], 2 * X[0], rtol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_bytes_find_their_external_data_where_the_process_runs(place, provider, monkeypatch):
    """With onnxruntime's optimisation off: it asks for the model's path."""
    content = (place / "outside.onnx").read_bytes()

    def opened(module, name):
        options = module.SessionOptions()
        options.graph_optimization_level = module.GraphOptimizationLevel.ORT_DISABLE_ALL
        return module.InferenceSession(content, options, providers=[name])

    monkeypatch.chdir(place)
    (theirs,) = opened(onnxruntime, "CPUExecutionProvider").run(None, {"x": X})
    np.testing.assert_allclose(opened(ontrain, provider).run(None, {"x": X})[0], theirs, rtol=1e-6)
    monkeypatch.chdir("/")
    with pytest.raises(ontrain.OntrainError):
        opened(ontrain, provider)
