"""Inference sessions on a GPU: arrays and tensors in and out, bindings, threads, sizes from values."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import ontrain as ort
from tests.threads import at_once

pytestmark = pytest.mark.gpu

PROVIDERS = [("TorchExecutionProvider", {"device": "cuda"})]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8), nn.GELU(), nn.Flatten(), nn.Linear(8 * 12, 5)
    ).eval()
    file = tmp_path_factory.mktemp("files") / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(
            network, (torch.randn(2, 4, 12),), file, dynamo=False, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )  # fmt: skip
    return str(file)


def test_results_are_the_cpus(path):
    on_cpu, on_gpu = ort.InferenceSession(path), ort.InferenceSession(path, providers=PROVIDERS)
    for batch in (2, 3, 2, 2, 5, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 4, 12), dtype=np.float32)
        (y,) = on_gpu.run(None, {"x": x})
        assert isinstance(y, np.ndarray)
        np.testing.assert_allclose(y, on_cpu.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_tensors_stay_on_the_device(path):
    session = ort.InferenceSession(path, providers=PROVIDERS)
    x = torch.randn(3, 4, 12, device="cuda")
    (first,), (again,) = session.run_tensors(None, {"x": x}), session.run_tensors(None, {"x": x})
    assert first.is_cuda and torch.equal(first, again)
    assert np.array_equal(session.run(None, {"x": x})[0], first.cpu().numpy())


def test_a_binding_reads_and_writes_the_users_memory(path):
    session = ort.InferenceSession(path, providers=PROVIDERS)
    x, y = torch.randn(2, 4, 12, device="cuda"), torch.zeros(2, 5, device="cuda")
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, tuple(x.shape), x.data_ptr())
    binding.bind_output("y", "cuda", 0, np.float32, tuple(y.shape), y.data_ptr())
    for scale in (1.0, 2.0, 3.0):
        x.mul_(scale)
        session.run_with_iobinding(binding)
        (wanted,) = session.run_tensors(None, {"x": x})
        torch.testing.assert_close(y, wanted)


def test_eight_threads_get_their_own_answers(path):
    session, single = ort.InferenceSession(path, providers=PROVIDERS), ort.InferenceSession(path)
    inputs = [np.random.default_rng(i).standard_normal((1 + i % 5, 4, 12), dtype=np.float32) for i in range(16)]
    wanted, wrong = [single.run(None, {"x": x})[0] for x in inputs], list[int]()

    def ask(start: int) -> None:
        for turn in range(40):
            i = (start + turn) % len(inputs)
            (y,) = session.run(None, {"x": inputs[i]})
            if not np.allclose(y, wanted[i], rtol=1e-4, atol=1e-5):
                wrong.append(i)

    at_once(*(functools.partial(ask, start) for start in range(8)))
    assert not wrong
