"""LoRA adapters stand for a model's initializers in single runs, on every provider as on onnxruntime's."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from ontrain.capi.onnxruntime_pybind11_state import InvalidArgument

import ontrain
from tests.training.conftest import PROVIDERS

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
g (float[n, 4] x, float[4, rank] a, float[rank, 3] b) => (float[n, 3] y) <float[4, 0] a = {}, float[0, 3] b = {}>
{ product = MatMul(a, b)  low = MatMul(x, product)  y = Relu(low) }""").SerializeToString()
EVERYWHERE = pytest.mark.parametrize("provider", [*PROVIDERS, "CPUExecutionProvider"])


@pytest.fixture
def values(rng):
    return {"a": rng.random((4, 2), np.float32), "b": rng.random((2, 3), np.float32)}


def written(folder, values, name="adapter"):
    """The path of an adapter with these values."""
    form = ontrain.AdapterFormat()
    form.set_adapter_version(1)
    form.set_model_version(1)
    form.set_parameters({key: ontrain.OrtValue.ortvalue_from_numpy(value) for key, value in values.items()})
    path = str(folder / name)
    form.export_adapter(path)
    return path


def active(*paths):
    options = ontrain.RunOptions()
    for path in paths:
        adapter = ontrain.LoraAdapter()
        adapter.Load(path)
        options.add_active_adapter(adapter)
    return options


def by_onnxruntime(feeds, *paths):
    options, adapters = onnxruntime.RunOptions(), [onnxruntime.LoraAdapter() for _ in paths]
    for adapter, path in zip(adapters, paths, strict=True):
        adapter.Load(path)
        options.add_active_adapter(adapter)
    theirs = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    return theirs.run(None, feeds, options)  # its options do not keep the adapters


def session(provider):
    return ontrain.InferenceSession(MODEL, providers=[provider])


@EVERYWHERE
def test_an_adapter_stands_for_initializers_in_the_runs_that_name_it(provider, values, tmp_path, rng):
    x = rng.random((2, 4), np.float32)
    path = written(tmp_path, values)
    own = session(provider)
    (expected,) = by_onnxruntime({"x": x}, path)
    np.testing.assert_allclose(expected, x @ values["a"] @ values["b"], rtol=1e-5)
    for _ in range(2):
        np.testing.assert_allclose(own.run(None, {"x": x}, active(path))[0], expected, rtol=1e-5)
        np.testing.assert_array_equal(own.run(None, {"x": x})[0], 0)
    fed = {"x": ontrain.OrtValue.ortvalue_from_numpy(x)}
    np.testing.assert_allclose(own.run_with_ort_values(None, fed, active(path))[0].numpy(), expected, rtol=1e-5)


@EVERYWHERE
def test_of_several_values_that_of_the_first_adapter_counts(provider, values, tmp_path, rng):
    x = rng.random((2, 4), np.float32)
    first, other = written(tmp_path, values), {name: value + 1 for name, value in values.items()}
    options = active(first, written(tmp_path, {"b": other["b"]}, "other"))
    feeds = {"x": x, "a": other["a"]}
    expected = by_onnxruntime(feeds, first, str(tmp_path / "other"))
    np.testing.assert_allclose(session(provider).run(None, feeds, options), expected, rtol=1e-5)


@EVERYWHERE
def test_an_adapter_that_holds_nothing_changes_nothing(provider):
    options = ontrain.RunOptions()
    options.add_active_adapter(ontrain.LoraAdapter())
    np.testing.assert_array_equal(session(provider).run(None, {"x": np.ones((2, 4), np.float32)}, options)[0], 0)


@EVERYWHERE
@pytest.mark.parametrize("damage", ["name", "dtype"])
def test_values_that_do_not_fit_are_an_invalid_argument(provider, damage, values, tmp_path):
    changed = {"z": values["a"]} if damage == "name" else {"a": values["a"].astype(np.float64)}
    with pytest.raises(InvalidArgument) as caught:
        session(provider).run(None, {"x": np.ones((2, 4), np.float32)}, active(written(tmp_path, changed)))
    assert isinstance(caught.value, ontrain.InputError)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_bindings_and_asynchronous_runs_take_no_notice(provider, values, tmp_path, monkeypatch):
    monkeypatch.setattr("ontrain.inference.options._said", set())
    own, options, x = session(provider), active(written(tmp_path, values)), np.ones((2, 4), np.float32)
    binding = own.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    with pytest.warns(UserWarning, match="run_with_iobinding takes no notice of active adapters"):
        own.run_with_iobinding(binding, options)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 0)
    done, told = threading.Event(), []

    def callback(results, user_data, error):
        told.extend([results, error])
        done.set()

    with pytest.warns(UserWarning, match="run_async takes no notice of active adapters"):
        own.run_async(["y"], {"x": x}, callback, None, options)
    assert done.wait(60) and told[1] == ""
    np.testing.assert_array_equal(told[0][0], 0)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_adapter_of_onnxruntimes_own_is_refused_by_name(provider):
    options = ontrain.RunOptions()
    options.add_active_adapter(onnxruntime.LoraAdapter())
    with pytest.raises(ontrain.InputError, match=r"way out: load the file with ontrain\.LoraAdapter"):
        session(provider).run(None, {"x": np.ones((2, 4), np.float32)}, options)


def test_a_file_that_is_no_adapter_is_refused_as_by_onnxruntime(tmp_path):
    (tmp_path / "other").write_bytes(b"text" * 30)
    for path in (tmp_path / "nothing", tmp_path / "other"):
        with pytest.raises(RuntimeError):
            ontrain.LoraAdapter().Load(str(path))
    with pytest.raises(TypeError):
        ontrain.LoraAdapter().Load(3)
