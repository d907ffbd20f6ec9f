"""LSTM, GRU and RNN: the definition that judges the samples is itself judged, and long sequences stay loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from ontrain.autodiff import differentiate
from ontrain.errors import GraphError
from ontrain.functions import inline_all
from ontrain.graph import Builder, control, new_model, rebuild, static_dims, verify
from ontrain.passes import FORWARD_PASSES, run_passes
from ontrain.providers import get_provider
from tests.autodiff.samples.recurrent import RECURRENT, by_definition
from tests.autodiff.samples.sample import Sample

every_sample = pytest.mark.parametrize("case", RECURRENT, ids=[f"{s.op_type}-{i}" for i, s in enumerate(RECURRENT)])


def torch_module(op_type: str, bidirectional: bool) -> Any:
    return {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}[op_type](
        3, 2, bidirectional=bidirectional, dtype=torch.float64)  # fmt: skip


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_the_definition_is_torchs(op_type: str, bidirectional: bool) -> None:
    module = torch_module(op_type, bidirectional)
    # The standard's order of gates, from torch's: LSTM iofc from ifco, GRU zrh from rzh.
    order = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}[op_type]

    def arranged(name: str) -> torch.Tensor:
        parameters = [getattr(module, name + suffix) for suffix in (["", "_reverse"] if bidirectional else [""])]
        return torch.stack([torch.cat([p.chunk(len(order))[i] for i in order]) for p in parameters])

    x = torch.randn(5, 3, 3, dtype=torch.float64)
    bias = torch.cat([arranged("bias_ih_l0"), arranged("bias_hh_l0")], 1)
    y, *states = by_definition(
        op_type, x, arranged("weight_ih_l0"), arranged("weight_hh_l0"), bias, linear_before_reset=1,
        direction="bidirectional" if bidirectional else "forward",
    )  # fmt: skip
    expected, last = module(x)
    torch.testing.assert_close(y.transpose(1, 2).flatten(2), expected)
    for have, want in zip(states, last if op_type == "LSTM" else [last], strict=True):
        torch.testing.assert_close(have, want)


@every_sample
def test_the_definition_is_onnxruntimes(case: Sample, rng: np.random.Generator) -> None:
    if case.attributes.get("layout"):
        pytest.skip("onnxruntime implements layout 0 only")
    arrays = [a.astype(np.float32) if a is not None and a.dtype.kind == "f" else a for a in case.draw(rng)]
    expected = case.twin(*(None if a is None else torch.tensor(a) for a in arrays))
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    values = [ir.Value(name=n, shape=ir.Shape(a.shape), type=ir.TensorType(ir.DataType.from_numpy(a.dtype)))
              for n, a in feeds.items()]  # fmt: skip
    model = new_model(values, case.op_type)
    by_name = {v.name: v for v in values}
    operands = [by_name.get(f"x{i}") for i in range(len(arrays))]
    outputs = Builder(model.graph).call("", case.op_type, operands, case.attributes, case.outputs)
    model.graph.outputs.extend(outputs)
    proto = ir.to_proto(model)
    del proto.opset_import[1:]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for have, want in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(want.numpy(), have, rtol=1e-5, atol=1e-6)


def layer_model(case: Sample, rng: np.random.Generator) -> tuple[ir.Model, dict[str, np.ndarray], list[ir.Value]]:
    """The sample's operator with its gradient, its outputs named y0 … and g0 …."""
    arrays = case.draw(rng)
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    values = {n: ir.Value(name=n, shape=ir.Shape(a.shape), type=ir.TensorType(ir.DataType.from_numpy(a.dtype)))
              for n, a in feeds.items()}  # fmt: skip
    model = new_model(list(values.values()), case.op_type)
    op = Builder(model.graph)
    outputs = op.call(
        "", case.op_type, [values.get(f"x{i}") for i in range(len(arrays))], case.attributes, case.outputs
    )
    for i, y in enumerate(outputs):
        model.graph.outputs.append(y)
        y.name = f"y{i}"
    model, _ = run_passes(model, FORWARD_PASSES)
    op = Builder(model.graph)
    seeds = []
    for i, y in enumerate(list(model.graph.outputs)):
        seed = ir.Value(name=f"dy{i}", shape=y.shape, type=ir.TensorType(y.dtype))
        model.graph.inputs.append(seed)
        feeds[f"dy{i}"] = rng.standard_normal(static_dims(y))
        seeds.append((y, seed))
    wrt = [v for v in model.graph.inputs if v.name in values and v.dtype == ir.DataType.DOUBLE]
    for x, grad in zip(wrt, differentiate(op, seeds, wrt), strict=True):
        output = op.identity(grad)
        output.name = f"d{x.name}"
        model.graph.outputs.append(output)
    return rebuild(model), feeds, wrt


@every_sample
def test_a_layer_kept_as_a_loop_has_the_same_gradient(
    case: Sample, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "UNROLL_LIMIT", 0)
    model, feeds, wrt = layer_model(case, rng)
    verify(model)
    assert any(node.op_type == "Loop" for node in inline_all(model).graph)
    tensors = {n: torch.tensor(a, requires_grad=a.dtype.kind == "f") for n, a in feeds.items()}
    count = max(int(n[1:]) for n in tensors if n.startswith("x")) + 1
    outputs = case.twin(*(tensors.get(f"x{i}") for i in range(count)))
    grads = torch.autograd.grad(
        outputs, [tensors[v.name] for v in wrt], [tensors[f"dy{i}"] for i in range(len(outputs))]
    )
    expected = {f"y{i}": y for i, y in enumerate(outputs)} | {f"d{v.name}": g for v, g in zip(wrt, grads, strict=True)}
    runtime = get_provider("TorchExecutionProvider")
    results = runtime.compile(model, runtime.create_state([])).run(feeds)
    for name, want in expected.items():
        np.testing.assert_allclose(results[name].numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-11)


def test_a_long_sequence_is_a_loop_and_a_short_one_is_not(rng: np.random.Generator) -> None:
    for length, looped in ((4, False), (400, True)):
        x = ir.Value(name="x", shape=ir.Shape([length, 2, 3]), type=ir.TensorType(ir.DataType.FLOAT))
        model = new_model([x], "layer")
        op = Builder(model.graph)
        w, r = (rng.standard_normal(s).astype(np.float32) for s in ((1, 8, 3), (1, 8, 2)))
        y, _, _ = op.LSTM(x, w, r, hidden_size=2, outputs=3)
        model.graph.outputs.append(y)
        model, _ = run_passes(model, FORWARD_PASSES)
        plain = inline_all(model)
        assert any(node.op_type == "Loop" for node in plain.graph) == looped
        verify(plain)
        onnx.checker.check_model(ir.to_proto(plain), full_check=True)


def test_an_unknown_activation_is_refused_by_name() -> None:
    x = ir.Value(name="x", shape=ir.Shape([4, 2, 3]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "layer")
    w, r = np.ones((1, 2, 3), np.float32), np.ones((1, 2, 2), np.float32)
    y = Builder(model.graph).RNN(x, w, r, hidden_size=2, activations=["Cosine"])
    model.graph.outputs.append(y)
    with pytest.raises(GraphError, match=r"(?s)RNN.*'Cosine' is unknown.*use one of"):
        run_passes(model, FORWARD_PASSES)


def test_an_lstm_whose_bias_has_the_shape_of_its_weights_is_refused_by_name() -> None:
    x = ir.Value(name="x", shape=ir.Shape([4, 2, 3]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "layer")
    op = Builder(model.graph)
    w, r = op.const(np.ones((1, 20, 3), np.float32)), op.const(np.ones((1, 20, 5), np.float32))
    with pytest.raises(GraphError, match="do not fit the operator"):
        model.graph.outputs.append(op.LSTM(x, w, r, w, hidden_size=5, outputs=3)[0])
        model, _ = run_passes(model, FORWARD_PASSES)
