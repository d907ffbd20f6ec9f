"""onnxruntime's switches drive the same pass: what each of them computes again, and wrong values."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import onnx_ir as ir
import pytest
import torch

from ontrain import OptionError
from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.passes.recompute import (
    ClusterRequest,
    Recomputation,
    Schedule,
    clusters,
    parse_budget,
    parse_clusters,
)
from ontrain.passes.recompute.clusters import forced, layers
from ontrain.training import ORTTrainer, optim
from tests.passes.recompute.models import plan, sample, session


def _float(name: str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape([64, 64]), type=ir.TensorType(ir.DataType.FLOAT))


def again(made: Any) -> Counter[str]:
    """Operators that run a second time."""
    found = (node for node in made.model.graph if any((v.name or "").endswith("_again") for v in node.outputs))
    return Counter(node.op_type for node in found if node.op_type not in ("Reshape", "Transpose", "Split"))


def test_gelu_recompute_runs_each_gelu_again_and_nothing_else():
    made = plan("bert", Recomputation(gelu=True))
    assert again(made) == {"Gelu": 4}  # one a layer, and the head's
    assert made.executable.planned_bytes < plan("bert").executable.planned_bytes


def test_gelu_recompute_finds_a_gelu_that_is_written_out():
    op = Builder(new_model([x := _float("x"), seed := set_role(_float("dy"), Role.ADJOINT)], "graph").graph)
    with op.arithmetic():
        h = op.MatMul(x, x)
        y = 0.5 * h * (1.0 + op.Tanh(0.8 * (h + 0.04 * op.Pow(h, 3.0))))
        op.graph.outputs.extend([op.ReduceSum(y, keepdims=0), seed * y * h])
    found = forced(Schedule(op.graph), Recomputation(gelu=True))
    assert found == [y]


def test_attn_dropout_recompute_runs_attention_again_with_its_mask():
    made = plan("bert", Recomputation(attention_dropout=True))
    assert set(again(made)) <= {"Attention", "And", "Where"} and again(made)["Attention"] == 3
    second = [n for n in made.model.graph if n.op_type == "Attention" and n.outputs[0].name.endswith("_again")]
    assert all(node.inputs[4] is not None and node.inputs[4].producer().op_type == "Attention" for node in second)


def test_a_switch_that_finds_nothing_says_so():
    with pytest.warns(UserWarning, match="gelu_recompute finds nothing"):
        plan("convolutions", Recomputation(gelu=True))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_layers_are_told_by_their_parameters(name):
    found = layers(Schedule(plan(name).model.graph))
    stem = "model.bert.encoder.layer" if name == "bert" else "model.transformer.h"
    assert [one for one, _ in found] == [f"{stem}.{i}" for i in range(3)]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_all_layers_but_the_last_are_computed_again_or_the_first_n(name):
    counted = [again(plan(name, Recomputation(layers=True, number_of_layers=n)))["Attention"] for n in (0, 1, -1)]
    assert counted == [2, 1, 3]


def test_layers_need_a_model_that_has_some():
    with pytest.raises(OptionError, match="no repeated layers"):
        _tiny_trainer(transformer_layer_recompute=True)


def _tiny_trainer(**options: Any) -> Any:
    model = torch.nn.Linear(4, 3)
    description = {"inputs": [("x", [5, 4]), ("label", [5])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(
        model, description, optim.AdamConfig(), torch.nn.functional.cross_entropy,
        {"graph_transformer": options, "device": {"id": "cpu"}},
    )  # fmt: skip
    return trainer.train_step(torch.randn(5, 4), torch.randint(3, (5,)))


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
    assert len({tuple(one) for one in losses.values()}) == 1
    assert max(peaks["gelu"], peaks["layers"]) < peaks["kept"] and peaks["budget"] <= 0.9 * peaks["kept"]


def test_the_plan_table_names_clusters_with_what_they_keep():
    found = clusters(Schedule(plan("bert").model.graph))
    tokens = int(sample("bert").batch["ids"].numel())
    gelu = [one for one in found if one.name == "Gelu+"]
    assert sum(len(one.roots) for one in gelu) == 4 and max(one.bytes for one in gelu) == tokens * 128 * 4
    assert again(plan("bert", Recomputation(clusters=(ClusterRequest("Gelu+", True, 2),)))) == {"Gelu": 2}


def test_a_cluster_can_be_left_out_of_what_a_switch_chooses():
    without = ClusterRequest("Gelu+", recompute=False, count=-1)
    assert again(plan("bert", Recomputation(gelu=True, clusters=(without,)))) == {}


def test_an_unknown_cluster_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match="no cluster 'Gelo\\+'") as error:
        plan("bert", Recomputation(clusters=(ClusterRequest("Gelo+", True, 1),)))
    assert "'Gelu+'" in str(error.value.way_out)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (1000, 1000), (0.5, 0.5), ("0.5", 0.5), ("1.0", 1.0), ("1000", 1000), ("2GiB", 2 << 30), ("1.5 kib", 1536),
        ("500 MB", 500_000_000), (".25", 0.25), ("2 gb", 2_000_000_000),
    ],
)  # fmt: skip
def test_a_budget_is_bytes_or_a_fraction(given, meant):
    found = parse_budget(given)
    assert found == meant and type(found) is type(meant)


@pytest.mark.parametrize("given", [0, -1, 0.0, 1.5, "1.5", "", "GiB", "half", "2 GiBs", True, float("nan"), "-1", None])
def test_another_budget_is_told_what_is_allowed(given):
    with pytest.raises(OptionError, match=r"memory_budget is .*\n.*allowed: bytes"):
        parse_budget(given)
    if given is not None:
        with pytest.raises(OptionError, match="graph_transformer.memory_budget"):
            _tiny_trainer(memory_budget=given)


def test_clusters_are_read_from_a_text_or_a_file(tmp_path):
    meant = (ClusterRequest("Gelu+", True, -1), ClusterRequest("Cast+", False, 3))
    assert parse_clusters("Gelu+:1:-1, Cast+:0:3", "X") == meant
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(["Gelu+:1:-1", "Cast+:0:3"]))
    assert parse_clusters(str(path), "X") == meant
    assert parse_clusters("", "X") == ()


@pytest.mark.parametrize("text", ["Gelu+", "Gelu+:1", "Gelu+:3:1", "Gelu+:1:-2", ":1:1", "Gelu+:1:x", "missing.json"])
def test_another_text_is_told_how_to_write_it(text):
    with pytest.raises(OptionError, match="^X ") as error:
        parse_clusters(text, "X")
    assert error.value.way_out


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "memory.json"
    for content in ("{}", "[1]", "nothing"):
        path.write_text(content)
        with pytest.raises(OptionError):
            parse_clusters(str(path), "X")


@pytest.mark.parametrize("provider", ["OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"])
def test_a_provider_that_would_save_nothing_refuses(provider):
    with pytest.raises(OptionError, match=f"{provider} cannot recompute"):
        session("convolutions", Recomputation(0.5), provider=provider)
