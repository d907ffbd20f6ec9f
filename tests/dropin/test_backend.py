"""onnx's backend API: onnx's own runner, whole models and single nodes, on onnxruntime's and on ontrain's provider."""

from __future__ import annotations

import re
import unittest

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import onnxruntime.backend
import pytest

import ontrain
from ontrain.backend import Backend, TorchBackend
from tests.dropin.models import WEIGHT, scaled, sequence_length, two_inputs

X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
BACKENDS = (Backend, TorchBackend)
CASES = r"^test_(relu|gelu_default_1|matmul_2d|split_equal_parts_1d_opset13|loop11|if_seq|sequence_insert_at_back|"
CASES += r"if_opt|string_concat|nonzero_example|dropout_default|LSTM.*|bvlc_alexnet)_cpu$"


def expected(x=X):
    return np.maximum(x @ WEIGHT, 0)


def suite(backend, pattern=CASES):
    """The cases of onnx's runner that match."""
    groups = onnx.backend.test.BackendTest(backend, __name__).test_cases.values()
    names = [(group, name) for group in groups for name in dir(group) if re.match(pattern, name)]
    return unittest.TestSuite(group(name) for group, name in names)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", [TorchBackend, Backend, ontrain.backend])
def test_onnxs_own_runner_takes_the_backend(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    result = unittest.TestResult()
    suite(backend).run(result)
    assert result.wasSuccessful(), [text[-500:] for _, text in result.failures + result.errors]
    assert result.testsRun >= 10 and not result.skipped


def test_onnxs_runner_leaves_out_a_device_that_is_not_here():
    class WithoutGpu(TorchBackend):
        @classmethod
        def _has_gpu(cls, number):
            return False

    result = unittest.TestResult()
    suite(WithoutGpu, "^test_relu_(cpu|cuda)$").run(result)
    assert result.testsRun == 2 and len(result.skipped) == 1 and result.wasSuccessful()


def test_a_case_that_fails_is_told_by_onnxs_runner():
    """The runner compares what the backend gives: results that are wrong do not pass."""

    class Wrong(TorchBackend):
        @classmethod
        def prepare(cls, model, device=None, **kwargs):
            prepared = super().prepare(model, device, **kwargs)
            right = prepared.run
            prepared.run = lambda inputs, **settings: [value + 1 for value in right(inputs, **settings)]
            return prepared

    result = unittest.TestResult()
    suite(Wrong, "^test_relu_cpu$").run(result)
    assert len(result.failures) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_whatever_holds_a_model_is_prepared(backend, tmp_path):
    path = tmp_path / "scaled.onnx"
    onnx.save(scaled(), path)
    ours = ontrain.InferenceSession(scaled(), providers=["TorchExecutionProvider"])
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for model in (scaled(), path.read_bytes(), str(path), ours, theirs, backend.prepare(scaled())):
        prepared = backend.prepare(model, "CPU")
        for inputs in ([X], (X,), X, {"x": X}):
            (y,) = prepared.run(inputs)
            np.testing.assert_allclose(y, expected(), rtol=1e-6)
        (y,) = backend.run_model(model, [X])
        np.testing.assert_allclose(y, expected(), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_is_one_input(backend):
    (length,) = backend.run_model(sequence_length(), [[X, X, X]])
    assert length == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_too_few_inputs_are_refused_as_onnxruntime_does(backend):
    prepared, theirs = backend.prepare(two_inputs()), onnxruntime.backend.prepare(two_inputs())
    for inputs in ([np.array([True])], np.array([True])):
        with pytest.raises(Exception) as caught:
            theirs.run(inputs)
        with pytest.raises(ontrain.InputError) as ours:
            prepared.run(inputs)
        assert isinstance(ours.value, type(caught.value)) and "a, b" in str(ours.value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["optimized_model_filepath", "profile_file_prefix", "enable_profiling"])
def test_settings_that_write_files_are_refused(backend, name):
    for refusing, model in ((onnxruntime.backend, scaled().SerializeToString()), (backend, scaled())):
        with pytest.raises(RuntimeError, match="not permitted via the backend API"):
            refusing.prepare(model, **{name: "x"})
    with pytest.raises(RuntimeError, match="not permitted"):
        backend.prepare(scaled()).run([X], terminate=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_settings_are_set_and_unknown_ones_left_out(backend):
    level = ontrain.GraphOptimizationLevel.ORT_DISABLE_ALL
    prepared = backend.prepare(scaled(), "CPU", graph_optimization_level=level, rtol=1e-3)
    assert prepared._session.get_session_options().graph_optimization_level == level
    np.testing.assert_allclose(prepared.run([X], logid="here")[0], expected(), rtol=1e-6)


def test_the_provider_is_the_backends():
    assert TorchBackend.prepare(scaled())._session.get_providers() == ["TorchExecutionProvider"]
    assert "CPUExecutionProvider" in Backend.prepare(scaled())._session.get_providers()


def test_a_failure_goes_to_no_other_provider(monkeypatch):
    """A test would not see that the provider under test has failed."""
    monkeypatch.setattr(TorchBackend, "providers", ("TorchExecutionProvider", "CPUExecutionProvider"))
    monkeypatch.setattr(TorchBackend, "_provider_options", classmethod(lambda cls, device: None))
    session = TorchBackend.prepare(scaled())._session

    def fails(*_):
        raise ontrain.ProviderError("the provider fails")

    monkeypatch.setattr(session._own, "run", fails)
    with pytest.raises(ontrain.ProviderError, match="the provider fails"):
        session.run(None, {"x": X})


def test_providers_that_the_environment_excludes_are_not_used(monkeypatch):
    monkeypatch.setenv("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", "AzureExecutionProvider")
    assert Backend.prepare(scaled())._session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("device", ["CPU", "CUDA", "GPU", "Nonsense"])
def test_devices_are_those_of_onnxruntime(device):
    assert Backend.supports_device(device) == onnxruntime.backend.supports_device(device)
    assert Backend.is_compatible(scaled(), device) == onnxruntime.backend.is_compatible(scaled(), device)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_device_that_is_not_here_is_refused(backend):
    for device in ("CUDA:99999", "Nonsense", "CUDA:x"):
        assert not TorchBackend.supports_device(device)
    with pytest.raises(RuntimeError, match="has no device 'Nonsense'"):
        backend.prepare(scaled(), "Nonsense")


def test_an_operator_set_of_the_future_is_skipped_as_onnxruntime_does():
    model = scaled()
    model.opset_import[0].version = 1000
    for backend in (onnxruntime.backend, *BACKENDS):
        with pytest.raises((unittest.SkipTest, onnx.checker.ValidationError)):
            backend.prepare(model)
    assert not any(backend.is_compatible(model) for backend in BACKENDS)


def node(op, inputs, outputs, domain="", **attributes):
    return onnx.helper.make_node(op, inputs, outputs, domain=domain, **attributes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_is_run_alone(backend):
    assert (backend.run_node(node("Add", ["a", "a"], ["b"]), X)[0] == 2 * X).all()
    (y,) = backend.run_node(node("Clip", ["x", "", "most"], ["y"]), [X, np.float32(1)])
    np.testing.assert_array_equal(y, np.minimum(X, 1))
    (y,) = backend.run_node(node("Reshape", ["x", "shape"], ["y"]), {"shape": np.array([4]), "x": X})
    np.testing.assert_array_equal(y, X.reshape(4))
    (y,) = backend.run_node(node("Upsample", ["x"], ["y"], scales=[2.0, 1.0]), [X], opset_version=7)
    np.testing.assert_array_equal(y, X.repeat(2, 0))
    (y,) = backend.run_node(node("ConcatFromSequence", ["s"], ["y"], axis=0), [[X, X]])
    np.testing.assert_array_equal(y, np.concatenate([X, X]))
    (y,) = backend.run_node(node("StringConcat", ["s", "s"], ["y"]), [np.array(["a", "Bc"])])
    assert y.tolist() == ["aa", "BcBc"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_of_a_node_have_their_names(backend):
    outputs = backend.run_node(node("TopK", ["x", "k"], ["values", "1"], axis=0), [X, np.array([1])])
    np.testing.assert_array_equal(outputs.values, [[3, 0.5]])
    np.testing.assert_array_equal(outputs["1"], [[1, 1]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_that_onnx_does_not_know_needs_the_types_of_its_outputs(backend):
    gelu = node("QuickGelu", ["x"], ["y"], "com.microsoft", alpha=1.0)
    (y,) = backend.run_node(gelu, [X], outputs_info=[(np.float32, (2, 2))])
    np.testing.assert_allclose(y, X / (1 + np.exp(-X)), rtol=1e-5)
    with pytest.raises(ontrain.InputError, match="outputs_info"):
        backend.run_node(gelu, [X])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_that_is_none_is_refused(backend):
    with pytest.raises(onnx.checker.ValidationError):
        backend.run_node(node("NoSuchOperator", ["x"], ["y"]), [X], outputs_info=[(np.float32, (2, 2))])
    with pytest.raises(ontrain.InputError, match="2 inputs, 1 are given"):
        backend.run_node(node("Add", ["a", "b"], ["c"]), [X])


def test_onnxruntimes_names_are_there():
    from ontrain.backend.backend import OnnxRuntimeBackend
    from ontrain.backend.backend_rep import OnnxRuntimeBackendRep

    assert isinstance(OnnxRuntimeBackend.prepare(scaled()), OnnxRuntimeBackendRep)
    assert ontrain.backend.run(scaled(), [X])[0].shape == (2, 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("named", [False, True], ids=["value", "by name"])
def test_a_dictionary_is_the_value_of_an_input_that_is_a_map(backend, named):
    node = onnx.helper.make_node("DictVectorizer", ["m"], ["y"], domain="ai.onnx.ml", string_vocabulary=["m", "b"])
    pairs = onnx.helper.make_map_type_proto(onnx.TensorProto.STRING, onnx.helper.make_tensor_type_proto(1, []))
    inputs = [onnx.helper.make_value_info("m", pairs)]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2])]
    graph = onnx.helper.make_graph([node], "g", inputs, outputs)
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    prepared = backend.prepare(onnx.helper.make_model(graph, opset_imports=domains, ir_version=8))
    value = {"m": 2.0, "b": 3.0}
    (y,) = prepared.run({"m": value} if named else value)
    assert np.asarray(y).ravel().tolist() == [2.0, 3.0]
