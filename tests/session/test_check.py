"""Whether a report on a model is true: its operators, its parameters, its problems, and its cost against torch's."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ontrain import InputError, OptionError
from ontrain.functions.cost import count_flops, live_bytes
from ontrain.graph import Builder, new_model
from ontrain.operators.gradients import rules
from ontrain.providers import registry
from ontrain.providers.torch import TorchExecutionProvider
from ontrain.session.check import check_module, check_operators, examine


class Transformer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, 50)
        self.heads = heads

    def forward(self, ids, label):
        x = self.embedding(ids)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), label.flatten())


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 12, 3, dilation=2), nn.ReLU(),
            nn.ConvTranspose2d(12, 6, 2, stride=2), nn.Flatten(), nn.LazyLinear(10),
        )  # fmt: skip
        self.layers(torch.zeros(2, 3, 16, 16))

    def forward(self, x, label):
        return nn.functional.cross_entropy(self.layers(x), label)


def transformer():
    return Transformer(), (torch.randint(50, (3, 7)), torch.randint(50, (3, 7)))


def images():
    return Images(), (torch.randn(2, 3, 16, 16), torch.randint(10, (2,)))


@pytest.mark.parametrize("make", [transformer, images])
def test_products_are_counted_as_torch_counts_them(make):
    module, args = make()
    cost = check_module(module, args).cost
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            loss = module(*args)
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    assert cost.forward_product_flop == forward.get_total_flops()
    assert cost.backward_product_flop == backward.get_total_flops()
    assert cost.forward_flop > cost.forward_product_flop and cost.backward_flop > cost.backward_product_flop


def test_a_grouped_convolution_costs_its_groups_only_backward_too():
    # torch's counter takes the weight's adjoint for that of a dense kernel: counted by hand.
    first, second = 2 * 2 * 8 * 6 * 6 * 4, 2 * 2 * 8 * 4 * 4 * (8 // 4) * 9
    module = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=4))
    cost = check_module(module, (torch.randn(2, 4, 6, 6),)).cost
    assert cost.forward_product_flop == first + second
    assert cost.backward_product_flop == first + 2 * second


def test_bytes_are_those_of_parameters_moments_and_plan():
    module, args = transformer()
    cost = check_module(module, args).cost
    numbers = sum(p.numel() for p in module.parameters())
    assert cost.parameter_bytes == 4 * numbers
    assert cost.optimizer_bytes == 2 * 4 * numbers
    assert check_module(module, args, optimizer="SGD").cost.optimizer_bytes == 0
    assert cost.working_is_planned and cost.working_bytes > 4 * numbers  # the gradients, and activations


def test_what_is_too_large_to_plan_is_estimated_with_the_same_operations(monkeypatch):
    module, args = transformer()
    planned = check_module(module, args).cost
    monkeypatch.setattr(examine, "_PLAN_LIMIT", 0)
    monkeypatch.setattr(TorchExecutionProvider, "create_state", None)  # nothing may be allocated
    estimated = check_module(module, args).cost
    assert not estimated.working_is_planned
    # No result takes the place of an input that dies, so that it is more than the plan's, but of its order.
    assert planned.working_bytes <= estimated.working_bytes <= 2 * planned.working_bytes
    same = ("forward_flop", "backward_flop", "backward_product_flop", "parameter_bytes", "optimizer_bytes")
    assert [getattr(planned, field) for field in same] == [getattr(estimated, field) for field in same]


def model_of(make, **shapes):
    inputs = [ir.Value(name=n, shape=ir.Shape(s), type=ir.TensorType(ir.DataType.FLOAT)) for n, s in shapes.items()]
    model = new_model(inputs, "test")
    model.graph.outputs.append(make(Builder(model.graph), *inputs))
    return model


@pytest.mark.parametrize(
    ("make", "shapes", "products"),
    [
        (lambda op, a, b: op.MatMul(a, b), {"a": [5, 2, 3], "b": [3, 4]}, 2 * 5 * 2 * 3 * 4),
        (lambda op, a, b: op.Gemm(a, b, transA=1), {"a": [3, 2], "b": [3, 4]}, 2 * 2 * 3 * 4),
        (
            lambda op, a, b: op.Einsum(a, b, equation="bij,bjk->bik"),
            {"a": [5, 2, 3], "b": [5, 3, 4]},
            2 * 5 * 2 * 3 * 4,
        ),
        (lambda op, a, b: op.Einsum(a, b, equation="...j,jk->...k"), {"a": [5, 2, 3], "b": [3, 4]}, 2 * 5 * 2 * 3 * 4),
        (lambda op, a, b: op.Tanh(op.Add(a, b)), {"a": [5, 2], "b": [5, 2]}, 0),
    ],
)
def test_a_product_is_two_operations_for_each_pair(make, shapes, products):
    assert count_flops(model_of(make, **shapes)).products == products


def test_elementwise_operations_count_by_elements_and_views_not_at_all():
    count = count_flops(model_of(lambda op, x: op.Reshape(op.Tanh(op.Exp(x)), [6]), x=[2, 3]))
    assert (count.products, count.other) == (0, 12)


def test_bytes_alive_at_once_are_those_of_the_widest_place():
    # Exp and its Tanh are alive together, then Tanh and the sum: 2 × 24 bytes; the view adds nothing.
    assert live_bytes(model_of(lambda op, x: op.Sigmoid(op.Reshape(op.Tanh(op.Exp(x)), [6])), x=[2, 3])) == 48


class Branches(nn.Module):
    """Parameters that are reached, cut off by a rounding, beside the loss, and unused."""

    def __init__(self):
        super().__init__()
        self.cut, self.used, self.beside, self.unused = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        x = torch.tanh(x)
        return self.used(self.cut(x).round()).mean(), self.beside(x)


def test_an_operator_without_a_parameter_behind_it_needs_no_gradient():
    rows = {row.operator: row for row in check_module(Branches(), (torch.randn(2, 4),)).operators}
    assert (rows["Tanh"].gradient, rows["Tanh"].needed) == ("not needed", 0)
    assert (rows["Round"].gradient, rows["Round"].needed) == ("zero", 1)
    assert (rows["MatMul"].count, rows["MatMul"].needed, rows["MatMul"].gradient) == (3, 1, "rule")


def test_parameters_say_whether_the_loss_depends_on_them():
    report = check_module(Branches(), (torch.randn(2, 4),))
    assert {parameter.name for parameter in report.parameters if parameter.reached} == {"used.weight", "used.bias"}
    assert {parameter.name for parameter in report.parameters} == {
        f"{n}.{kind}" for n in ("cut", "used", "beside") for kind in ("weight", "bias")
    }
    assert (report.loss, report.loss_origin, report.trainable) == ("output_0", "output", True)


def test_frozen_parameters_need_nothing_before_them():
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    rows = {r.operator: r for r in check_module(module, (torch.randn(2, 4),), trainable=["2.*"]).operators}
    assert rows["Tanh"].gradient == "not needed" and rows["MatMul"].needed == 1
    report = check_module(module, (torch.randn(2, 4),), frozen=["*"])
    assert not report.trainable and report.problems[0].kind == "loss"


def test_an_operator_without_a_gradient_is_named_with_its_line(monkeypatch):
    monkeypatch.delitem(rules, ("", "Tanh"))
    report = check_module(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), (torch.randn(2, 4),))
    (problem,) = report.problems
    assert problem.kind == "gradient" and problem.node.startswith("Tanh(") and "ai.onnx.Tanh" in problem.reason
    assert problem.source and problem.way_out
    assert not report.trainable and report.cost is None
    frozen_before = check_module(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), (torch.randn(2, 4),), frozen=["0.*"]
    )
    assert frozen_before.trainable


class _WithoutTanh(TorchExecutionProvider):
    name = "WithoutTanh"

    def supports(self, node):
        return "no kernel" if node.op_type == "Tanh" else super().supports(node)


def test_an_operator_that_the_provider_lacks_is_named(monkeypatch):
    monkeypatch.setitem(registry._BUILT_IN, "WithoutTanh", lambda device: _WithoutTanh(device))
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    report = check_module(module, (torch.randn(2, 4),), provider="WithoutTanh")
    (problem,) = report.problems
    assert (problem.kind, problem.reason) == ("run", "no kernel") and problem.node.startswith("Tanh(")
    rows = {row.operator: row for row in report.operators}
    assert rows["Tanh"].provider is None and rows["MatMul"].provider == "WithoutTanh"


def test_what_capture_refuses_is_a_problem_and_not_an_exception():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x) if bool(x.sum() > 0) else x

    report = check_module(Branching(), (torch.randn(2, 4),))
    assert [problem.kind for problem in report.problems] == ["capture"] and not report.operators


def test_a_model_without_a_number_to_minimise_is_a_problem_and_not_a_wrong_command():
    class Labels(nn.Linear):
        def forward(self, x):
            return super().forward(x).argmax(-1)

    report = check_module(Labels(4, 4), (torch.randn(2, 4),))
    assert not report.trainable and [problem.kind for problem in report.problems] == ["loss"]


def test_a_loss_may_be_called_by_torchs_name():
    args = nn.Linear(4, 2), (torch.randn(2, 4),)
    ours, torchs = (check_module(*args, loss=name) for name in ("SoftmaxCrossEntropy", "CrossEntropyLoss"))
    assert ours == torchs and ours.loss_origin == "added"


def test_the_module_stays_in_its_mode():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    module[0].train()
    check_module(module, (torch.randn(2, 4),))
    assert [part.training for part in module.modules()] == [False, True, False]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"provider": "TorchProvider"}, OptionError, "TorchExecutionProvider"),
        ({"loss": "MSEE"}, OptionError, "MSE"),
        ({"optimizer": "adamw"}, OptionError, "AdamW"),
        ({"trainable": ["weigth"]}, OptionError, "weight"),
        ({"kwargs": {"y": torch.zeros(1)}}, InputError, "forward"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_nearest_right_one(options, error, said):
    with pytest.raises(error, match=said):
        check_module(nn.Linear(4, 2), (torch.randn(2, 4),), **options)


@pytest.fixture(scope="module")
def table():
    return {(row.domain, row.operator): row for row in check_operators()}


def test_the_table_has_the_whole_standard_and_all_providers(table):
    import onnx

    names = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}
    assert {name for domain, name in table if domain == "ai.onnx"} == names
    assert all(list(row.providers) == registry.available_providers() for row in table.values())


def test_the_table_agrees_with_what_is_known_of_some_operators(table):
    gemm, shape, text = (table["ai.onnx", name] for name in ("Gemm", "Shape", "StringSplit"))
    assert set(gemm.providers.values()) == {None} and (gemm.gradient, gemm.since) == ("rule", 13)
    assert shape.gradient == "zero"
    assert text.gradient == "none" and "strings" in text.reason
    assert text.providers["TorchExecutionProvider"] is not None
    assert table["ontrain", "Attention"].gradient == "rule"


def test_the_table_refuses_for_want_of_a_kernel_and_not_for_a_bad_example(table):
    said = [row.providers["OnnxRuntimeExecutionProvider"] for row in table.values()]
    known = ("no CPU kernel", "No Op registered", "again and again")
    assert [text for text in said if text is not None and not any(reason in text for reason in known)] == []
