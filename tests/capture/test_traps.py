"""What an exporter loses in training, each loss a claim that we have it."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.capture import REQUIRES_GRAD, capture, validate
from ontrain.errors import CaptureError
from ontrain.graph import Role, role_of, source_of, updates_of
from tests.capture.harness import nodes, operators, run_captured
from tests.capture.networks import Attending, Convolutional, LanguageModel, Stack, Tied


def test_attention_dropout_is_kept_in_training_and_absent_in_evaluation():
    module, x = Attending(), torch.randn(2, 3, 8)
    (attention,) = nodes(capture(module, (x,)), "Attention")
    assert attention.attributes["dropout"].value == pytest.approx(0.25)
    (absent,) = nodes(capture(module.eval(), (x,)), "Attention")
    assert absent.attributes["dropout"].value == 0


def test_a_boolean_attention_mask_is_a_finite_bias_made_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Attending(0.0), Attending(0.0)

        def forward(self, x, mask):
            return self.second(self.first(x, mask), mask)

    module, x, mask = Twice(), torch.randn(2, 3, 8), torch.rand(2, 1, 3, 3) > 0.5
    captured = capture(module, (x, mask))
    assert operators(captured)["Where"] == 1
    assert operators(captured)["ReduceMax"] == 1
    validate(captured, module, (x, mask))


def test_dropout_trains():
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)), (torch.randn(2, 4),))
    (dropout,) = nodes(captured, "Dropout")
    ratio, training = dropout.inputs[1].const_value.numpy(), dropout.inputs[2].const_value.numpy()
    assert ratio == pytest.approx(0.3) and ratio.shape == () and bool(training)


@pytest.mark.parametrize(
    ("sizes", "dynamic"),
    [((4, 5), {0: "batch", 2: "length"}), ((2, 3), {0: "batch", 2: "length"}), ((4, 5), {})],
    ids=["sample", "other", "fixed"],
)
def test_batch_norm_statistics_after_a_step_are_those_of_torch(sizes, dynamic):
    module = nn.BatchNorm1d(3, momentum=0.3)
    sample = torch.randn(4, 3, 5)
    captured = capture(module, (sample,), dynamic=[dynamic])
    (norm,) = nodes(captured, "BatchNormalization")
    assert norm.attributes["training_mode"].value == 1
    x = torch.randn(sizes[0], 3, sizes[1])
    y, updates = run_captured(captured, (x,))
    torch.testing.assert_close(y, module(x))
    assert set(updates) == {"running_mean", "running_var", "num_batches_tracked"}
    for name, value in updates.items():
        torch.testing.assert_close(value, module.state_dict()[name])


def test_batch_norm_in_evaluation_uses_its_statistics_and_updates_none():
    module = nn.BatchNorm1d(3)
    module(torch.randn(4, 3))
    x = torch.randn(4, 3)
    y, updates = run_captured(capture(module.eval(), (x,)), (x,))
    torch.testing.assert_close(y, module(x))
    assert not updates


def test_padding_idx_reaches_the_graph():
    (embedding,) = nodes(capture(nn.Embedding(5, 3, padding_idx=-5), (torch.tensor([0, 1]),)), "Embedding")
    assert embedding.attributes["padding_idx"].value == 0


def test_identically_initialised_layers_keep_their_own_names():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].load_state_dict(module[0].state_dict())
    captured = capture(module, (torch.randn(2, 4),))
    assert list(captured.parameters) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert not captured.aliases


def test_a_tied_weight_is_one_input_with_two_uses():
    captured = capture(Tied(), (torch.tensor([[1, 2]]),))
    assert list(captured.parameters) == ["embedding.weight"]
    assert captured.aliases == {"head.weight": "embedding.weight"}
    (weight,) = (v for v in captured.model.graph.inputs if role_of(v) is Role.PARAMETER)
    assert len(weight.uses()) == 2


def test_inputs_come_by_role_and_unused_parameters_are_listed():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused, self.frozen, self.bn = nn.Linear(2, 2), nn.Linear(3, 3), nn.BatchNorm1d(3)
            self.frozen.weight.requires_grad_(False)

        def forward(self, x):
            return self.bn(self.frozen(x))

    captured = capture(Partly(), (torch.randn(2, 3),))
    roles = [(v.name, role_of(v)) for v in captured.model.graph.inputs]
    assert roles == [
        ("x", Role.INPUT),
        *((n, Role.PARAMETER) for n in ("frozen.weight", "frozen.bias", "bn.weight", "bn.bias")),
        *((n, Role.BUFFER) for n in ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked")),
    ]
    assert captured.unused == ["unused.weight", "unused.bias"]
    frozen = [v.name for v in captured.model.graph.inputs if v.metadata_props.get(REQUIRES_GRAD) == "0"]
    assert frozen == ["frozen.weight"]


def test_every_intermediate_value_has_dtype_and_shape():
    ids = torch.randint(20, (6, 2))
    captured = capture(LanguageModel(), (ids, ids), dynamic=[{0: "length", 1: "batch"}] * 2)
    assert not captured.specialised
    for node in captured.model.graph:
        for value in node.outputs:
            assert value.dtype is not None and value.shape is not None, value.name
            assert all(isinstance(d, int) or d.value for d in value.shape), (value.name, value.shape)


def test_a_joint_projection_is_one_split():
    captured = capture(Attending(), (torch.randn(2, 3, 8),))
    assert operators(captured)["Split"] == 1
    assert not any(name.startswith("Sequence") for name in operators(captured))


def test_nodes_grow_linearly_in_layers():
    x, padding = torch.randn(2, 3, 8), torch.zeros(2, 3, dtype=torch.bool)
    counts = [len(capture(Stack(n), (x, padding)).model.graph) for n in (1, 2, 3)]
    assert counts[2] - counts[1] <= counts[1] - counts[0]


def test_nodes_carry_the_users_line_and_module():
    captured = capture(Convolutional(), (torch.randn(2, 3, 8, 8), torch.tensor([0, 1])))
    first, _ = nodes(captured, "Conv")
    assert source_of(first).startswith("networks.py:")
    assert "self.bn1(self.conv1(x))" in source_of(first)
    assert source_of(first).endswith("(in conv1)")


def test_a_detached_value_and_a_no_grad_block_let_no_gradient_through():
    class Stops(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x, assigned: bool):
            with torch.no_grad():
                target = self.a(x)
            y = self.c(x).clone()
            if assigned:
                y.reshape(-1)[:3] = target[0]  # makes torch functionalise the program, which drops the block
            return y + self.b(x).detach() + target

    for assigned in (False, True):
        captured = capture(Stops(), (torch.randn(2, 3), assigned))
        reached = {v for v in captured.model.graph.inputs if v.name.startswith(("a.", "b."))}
        for node in captured.model.graph:
            if node.op_type != "Detach" and any(v in reached for v in node.inputs):
                reached.update(node.outputs)
        assert captured.model.graph.outputs[0] not in reached
        assert captured.parameters.keys() >= {"a.weight", "b.weight", "c.weight"}


def test_in_place_operators_on_fresh_values_need_no_decomposition(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("decomposed")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", refuse)
    x, y = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
    module = Convolutional()
    captured = capture(module, (x, y))
    assert operators(captured)["Relu"] == 2
    validate(captured, module, (x, y))


def _shifted(x):
    y = torch.zeros_like(x)
    y[..., 1:] = x[..., :-1].clone()
    y[..., 0] = 7
    return y


def _seen_through_an_older_view(x):
    y = x.clone()
    view = y[:, 1:]
    inner, turned = view[:, ::2], y.t()
    y *= 2
    view.transpose(0, 1)[0] = 5
    inner.add_(1)
    return y, view.sum(), inner, turned, y.view(-1)[1]


def _through_a_joined_shape(x):
    y = x.clone()
    flat, column = y.view(-1), y.unsqueeze(1).permute(2, 0, 1)[1]
    flat[1:3].mul_(3)
    column[0].zero_()
    flat[-1] += 1
    return y, flat, column


@pytest.mark.parametrize("function", [_shifted, _seen_through_an_older_view, _through_a_joined_shape])
def test_writes_through_views_are_seen_under_all_names_without_decomposition(function, monkeypatch):
    class Writes(nn.Module):
        def forward(self, x):
            return function(x)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    captured = capture(Writes(), (torch.randn(2, 3),), dynamic=[{0: "rows"}])
    x = torch.randn(3, 3)
    torch.testing.assert_close(run_captured(captured, (x,))[0], function(x))


def test_writes_through_what_may_be_a_copy_are_left_to_torch():
    class Writes(nn.Module):
        def forward(self, x):
            y = x.clone()
            y.reshape(-1)[1:3] = 0
            y.t().contiguous()[0] = 9
            return y

    x = torch.randn(2, 3)
    torch.testing.assert_close(run_captured(capture(Writes(), (x,)), (x,))[0], Writes()(x))


def test_a_buffer_written_through_a_view_is_an_update():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.zeros(4, 2))

        def forward(self, x):
            with torch.no_grad():
                self.queue[1:3] = x
            return x @ self.queue.t()

    module, x = Remembers(), torch.randn(2, 2)
    output, updates = run_captured(capture(module, (x,)), (x,))
    torch.testing.assert_close(output, module(x))
    torch.testing.assert_close(updates["queue"], module.queue)


def test_what_has_no_translation_is_decomposed_and_nothing_else():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn, self.attending = nn.BatchNorm1d(8), Attending()
            self.drop = nn.Dropout(0.3)

        def forward(self, x):
            x = self.attending(F.hardshrink(x, 0.1))
            with torch.no_grad():
                fixed = self.attending(x)
            x = self.drop(self.bn(x.transpose(1, 2)))
            return F.cross_entropy(x, x.argmax(1)), F.layer_norm(x, x.shape[-1:]) + fixed.transpose(1, 2)

    module, x = Mixed(), torch.randn(2, 3, 8)
    captured = capture(module, (x,))
    counts = operators(captured)
    assert counts["Attention"] == 2 and counts["BatchNormalization"] == 1 and counts["Dropout"] == 1
    assert counts["SoftmaxCrossEntropyLoss"] == 1 and counts["LayerNormalization"] == 1 and counts["Detach"] == 1
    validate(captured, module, (x,))


def test_a_buffer_changed_in_forward_is_an_update():
    class Averages(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("count", torch.tensor(0), persistent=False)
            self.register_buffer("table", torch.arange(3.0))

        def forward(self, x):
            self.mean.mul_(0.5).add_(x.mean(0))
            self.count = self.count + 1
            return x - self.mean + self.table

    module, x = Averages(), torch.randn(2, 3)
    captured = capture(module, (x,))
    y, updates = run_captured(captured, (x,))
    torch.testing.assert_close(y, module(x))
    assert set(updates) == {"mean", "count"}
    assert captured.buffers.keys() == {"mean", "count", "table"}
    torch.testing.assert_close(updates["mean"], module.mean)
    assert updates["count"] == module.count == 1


def test_capture_is_deterministic():
    ids = torch.randint(20, (6, 2))
    module = LanguageModel()
    texts = [ir.to_proto(capture(module, (ids, ids)).model).SerializeToString(deterministic=True) for _ in range(2)]
    assert texts[0] == texts[1]


def test_updates_name_buffers_that_are_inputs():
    captured = capture(Convolutional(), (torch.randn(2, 3, 8, 8), torch.tensor([0, 1])))
    assert {updates_of(v) for v in captured.model.graph.outputs} - {None} == set(captured.buffers)


SHAPES_ASKED = []


OPERATORS = torch.library.Library("ontrain_tests", "FRAGMENT")
OPERATORS.define("moody(Tensor x) -> Tensor")
OPERATORS.impl("moody", torch.clone, "CompositeExplicitAutograd")


@torch.library.register_fake("ontrain_tests::moody", lib=OPERATORS)
def _(x):
    SHAPES_ASKED.append(x.shape)
    assert len(SHAPES_ASKED) < 2
    return torch.empty_like(x)


def test_an_operator_that_fails_while_torch_decomposes_is_a_named_error():
    class Moody(nn.Module):
        def forward(self, x):
            return torch.ops.ontrain_tests.moody(x) + 1

    with pytest.raises(CaptureError, match=r"torch cannot write the traced program[\s\S]*AssertionError"):
        capture(Moody(), (torch.randn(3),))
