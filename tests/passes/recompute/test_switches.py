"""onnxruntime's switches drive the same pass: what each of them computes again."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch

from ontrain import OptionError
from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.passes.recompute import (
    Recomputation,
)
from ontrain.passes.recompute.clusters import forced
from ontrain.training import ORTTrainer, optim
from tests.passes.recompute.models import plan, schedule, session
from tests.passes.recompute.switches import again


def _float(name: str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape([64, 64]), type=ir.TensorType(ir.DataType.FLOAT))


def test_gelu_recompute_runs_each_gelu_again_and_nothing_else():
    planned = plan("bert", Recomputation(gelu=True))
    assert again(planned) == {"Gelu": 4}  # one a layer, and the head's
    assert planned.executable.planned_bytes < plan("bert").executable.planned_bytes


def test_gelu_recompute_finds_a_gelu_that_is_written_out():
    op = Builder(new_model([x := _float("x"), seed := set_role(_float("dy"), Role.ADJOINT)], "graph").graph)
    with op.arithmetic():
        h = op.MatMul(x, x)
        y = 0.5 * h * (1.0 + op.Tanh(0.8 * (h + 0.04 * op.Pow(h, 3.0))))
        op.graph.outputs.extend([op.ReduceSum(y, keepdims=0), seed * y * h])
    recomputed = forced(schedule(op.graph), Recomputation(gelu=True))
    assert recomputed == [y]


def test_attn_dropout_recompute_runs_attention_again_with_its_mask():
    planned = plan("bert", Recomputation(attention_dropout=True))
    assert set(again(planned)) <= {"Attention", "And", "Where"} and again(planned)["Attention"] == 3
    second = [n for n in planned.model.graph if n.op_type == "Attention" and n.outputs[0].name.endswith("_again")]
    assert all(node.inputs[4] is not None and node.inputs[4].producer().op_type == "Attention" for node in second)


def test_a_switch_that_finds_nothing_says_so():
    with pytest.warns(UserWarning, match="gelu_recompute finds nothing"):
        plan("convolutions", Recomputation(gelu=True))


def test_the_trainer_hands_its_switches_to_the_pass():
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = torch.nn.functional.gelu(layer(x))
            return x

    description = {"inputs": [("x", [64, 16]), ("y", [64, 16])], "outputs": [("loss", [], True)]}
    x, losses, peaks = torch.randn(64, 16), {}, {}
    asked: dict[str, dict[str, Any]] = {
        "kept": {}, "gelu": {"gelu_recompute": True}, "budget": {"memory_budget": 0.9},
        "layers": {"transformer_layer_recompute": True, "number_recompute_layers": 2},
    }  # fmt: skip
    for key, options in asked.items():
        torch.manual_seed(0)
        trainer = ORTTrainer(
            Net(), description, optim.AdamConfig(), torch.nn.functional.mse_loss,
            {"graph_transformer": options, "device": {"id": "cpu"}},
        )  # fmt: skip
        losses[key] = [float(trainer.train_step(x, x)) for _ in range(2)]
        peaks[key] = trainer.peak_memory()["working memory"]
        assert any("_again" in (n.name or "") for n in trainer.step_model().graph) == bool(options)
    assert len({tuple(curve) for curve in losses.values()}) == 1
    assert max(peaks["gelu"], peaks["layers"]) < peaks["kept"] and peaks["budget"] <= 0.9 * peaks["kept"]


@pytest.mark.parametrize("provider", ["OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"])
def test_a_provider_that_would_save_nothing_refuses(provider):
    with pytest.raises(OptionError, match=f"{provider} cannot recompute"):
        session("convolutions", Recomputation(0.5), provider=provider)
