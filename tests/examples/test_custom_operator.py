"""The example of an operator in C++, compiled and loaded; and a library that a package ships."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import ontrain

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_operator" / "snake.cc"
PROVIDERS = [["CPUExecutionProvider"], ["TorchExecutionProvider", "CPUExecutionProvider"]]


def headers() -> str | None:
    """Where onnxruntime's headers are: no wheel has them, and Debian's libonnxruntime-dev does."""
    folders = (os.environ.get("ONNXRUNTIME_INCLUDE"), "/usr/include/onnxruntime")
    return next((f for f in folders if f and Path(f, "onnxruntime_cxx_api.h").is_file()), None)


def model(text, domain):
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "{domain}" : 1]> m {text}')
    return proto.SerializeToString()


def options(library):
    session_options = ontrain.SessionOptions()
    session_options.register_custom_ops_library(str(library))
    return session_options


@pytest.fixture(scope="module")
def snake(tmp_path_factory) -> Path:
    compiler, include = shutil.which("g++"), headers()
    if compiler is None:
        pytest.skip("there is no g++")
    if include is None:
        pytest.skip("there are no headers of onnxruntime: set ONNXRUNTIME_INCLUDE, or install libonnxruntime-dev")
    library = tmp_path_factory.mktemp("library") / "libsnake.so"
    flags = ["-std=c++20", "-O1", "-Wall", "-fPIC", "-shared", "-I", include]
    subprocess.run([compiler, *flags, str(EXAMPLE), "-o", str(library)], check=True, timeout=300)
    return library


@pytest.mark.parametrize("providers", PROVIDERS)
def test_the_library_in_cpp_computes_its_operator(snake, providers):
    text = "(float[n, 4] x) => (float[n, 4] y) { h = Abs(x) s = audio.Snake<alpha = 2.0>(h) y = Neg(s) }"
    session = ontrain.InferenceSession(model(text, "audio"), options(snake), providers=providers)
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    wanted = -(np.abs(x) + np.sin(2 * np.abs(x)) ** 2 / 2)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-6, atol=1e-7)
    assert session.get_providers() == providers


@pytest.fixture(scope="module")
def extensions() -> str:
    return pytest.importorskip("onnxruntime_extensions").get_library_path()


@pytest.mark.parametrize("providers", PROVIDERS)
def test_a_library_that_a_package_ships_runs_its_operators_beside_other_nodes(extensions, providers):
    text = "(string[n] s, float[n] x) => (string[n] up, float[n] y) { up = ai.onnx.contrib.StringUpper(s) y = Relu(x) }"
    session = ontrain.InferenceSession(model(text, "ai.onnx.contrib"), options(extensions), providers=providers)
    up, y = session.run(None, {"s": np.array(["ab", "ß"], object), "x": np.array([-1, 2], np.float32)})
    assert up[0] == "AB" and y.tolist() == [0, 2]
    assert session.get_providers() == providers


def test_a_library_alone_on_a_provider_that_cannot_load_it_is_refused(extensions):
    text = "(string[n] s) => (string[n] up) { up = ai.onnx.contrib.StringUpper(s) }"
    with pytest.raises(ontrain.OptionError, match="let CPUExecutionProvider follow"):
        ontrain.InferenceSession(model(text, "ai.onnx.contrib"), options(extensions), ["TorchExecutionProvider"])


def test_a_library_that_is_none_is_an_error_with_its_name(tmp_path):
    path = tmp_path / "libnone.so"
    path.write_bytes(b"no library")
    with pytest.raises(Exception, match="libnone.so"):
        options(path)
