"""What runs in half precision and what does not; parameters, losses and outputs keep their dtypes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.functions import composites
from ontrain.graph import Role, by_role, extract, schema_of, specialise, verify
from ontrain.operators import OPERATORS, Precision
from ontrain.passes import LowerPrecision, pipeline, run_passes
from ontrain.providers import get_provider

pytestmark = pytest.mark.sampled(4)

HALF = ir.DataType.BFLOAT16


def lowered(module: nn.Module, *inputs: torch.Tensor, dtype: ir.DataType = HALF) -> ir.Model:
    names = [f"x{i}" for i in range(len(inputs))]
    model = capture(module.train(), inputs, input_names=names, dynamic=[{} for _ in inputs], output_names=["y"]).model
    model, _ = run_passes(specialise(model, {}), pipeline("forward"))
    lowered_model, _ = LowerPrecision(dtype).apply(model)
    verify(lowered_model)
    return lowered_model


def dtypes(model: ir.Model, *kinds: str) -> set[str]:
    """The dtypes of the first operands of all operators of these kinds."""
    nodes = [node for node in model.graph if node.op_type in kinds]
    assert nodes, f"no {' or '.join(kinds)} in {[node.op_type for node in model.graph]}"
    return {node.inputs[0].dtype.name for node in nodes}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.register_buffer("angles", torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = x @ self.angles
        y = self.down(nn.functional.gelu(self.up(turned)) * 0.5)
        return self.norm(x + y).softmax(-1).exp().mean()


def test_products_are_in_half_and_what_loses_digits_is_not():
    model = lowered(Block(), torch.randn(4, 8))
    products = [node for node in model.graph if node.op_type in ("Gemm", "MatMul")]
    exact = [node for node in products if any(v.name == "angles" for v in node.inputs)]
    # A product of inputs and constants, as rotary angles are, is no place to save time.
    assert len(exact) == 1 and exact[0].inputs[0].dtype == ir.DataType.FLOAT
    assert len(products) == 3 and {node.inputs[0].dtype for node in products if node not in exact} == {HALF}
    assert dtypes(model, "Gelu") == dtypes(model, "Mul") == {"BFLOAT16"}  # 0.5 follows
    assert dtypes(model, "LayerNormalization") == dtypes(model, "Softmax") == dtypes(model, "Exp") == {"FLOAT"}
    assert dtypes(model, "ReduceMean") == {"FLOAT"}


def test_parameters_stay_and_are_cast_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.tanh(x @ self.weight) @ self.weight).sum()

    model = lowered(Tied(), torch.randn(3, 6))
    (weight,) = by_role(model.graph, Role.PARAMETER)
    assert weight.dtype == ir.DataType.FLOAT
    assert [(use.node.op_type, use.idx) for use in weight.uses()] == [("Cast", 0)]
    assert len(weight.uses()[0].node.outputs[0].uses()) == 2


def test_outputs_keep_their_dtype_and_their_readers_the_half_value():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = torch.relu(self.a(x))
            return hidden, self.b(hidden)

    model = capture(Two().train(), (torch.randn(3, 4),), input_names=["x"], dynamic=[{}], output_names=["h", "y"]).model
    model, _ = run_passes(specialise(model, {}), pipeline("forward"))
    rewritten, count = LowerPrecision(HALF).apply(model)
    verify(rewritten)
    assert [value.dtype for value in rewritten.graph.outputs] == [ir.DataType.FLOAT] * 2
    relu = next(node for node in rewritten.graph if node.op_type == "Relu").outputs[0]
    assert relu.dtype == HALF and {use.node.op_type for use in relu.uses()} == {"Cast", "Gemm"}
    assert count == 3


@pytest.mark.parametrize(("dtype", "limit"), [(ir.DataType.FLOAT16, 65504.0), (HALF, 3.3895313892515355e38)])
def test_a_number_that_half_cannot_hold_keeps_its_operator_in_float32(dtype, limit):
    class Masked(nn.Module):
        def __init__(self, fill: float) -> None:
            super().__init__()
            self.linear, self.fill = nn.Linear(4, 4), fill

        def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
            return self.linear(x).masked_fill(keep, self.fill).softmax(-1)

    keep = torch.zeros(3, 4, dtype=torch.bool)
    for fill, wanted in ((-limit, dtype), (torch.finfo(torch.float32).min, ir.DataType.FLOAT), (-torch.inf, dtype)):
        model = lowered(Masked(fill), torch.randn(3, 4), keep, dtype=dtype)
        (where,) = [node for node in model.graph if node.op_type == "Where"]
        assert where.outputs[0].dtype == wanted, fill


def test_a_mask_of_attention_stays_finite_in_half():
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            q = self.linear(x).view(2, 3, 2, 4).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    model = lowered(Attend(), torch.randn(2, 3, 8), torch.zeros(2, 1, 3, 3), dtype=ir.DataType.FLOAT16)
    (attention,) = [node for node in model.graph if node.op_type == "Attention"]
    mask = attention.inputs[3]
    assert {value.dtype for value in attention.inputs} == {ir.DataType.FLOAT16}
    part = extract(model, [value for value in model.graph.inputs if value.name == "x1"], [mask])
    provider = get_provider("TorchExecutionProvider", "cpu", {})
    bias = torch.tensor([0.0, -1.0, -70000.0, torch.finfo(torch.float32).min, -torch.inf] * 4)[:18].view(2, 1, 3, 3)
    (half,) = provider.compile(part, provider.create_state([])).run({"x1": bias}).values()
    np.testing.assert_array_equal(half, bias.clamp(min=-65504.0).half())


def test_what_the_user_chose_in_another_dtype_is_left_alone():
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(4, 4).double(), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.wide(x.double()).sum() + self.narrow(x).float().double().sum()

    model = lowered(Chosen(), torch.randn(3, 4))
    assert dtypes(model, "Gemm") == {"DOUBLE", "BFLOAT16"}
    assert model.graph.outputs[0].dtype == ir.DataType.DOUBLE


@pytest.mark.parametrize(("dtype", "wanted"), [(ir.DataType.FLOAT16, "FLOAT16"), (HALF, "FLOAT")])
def test_an_operator_that_the_standard_does_not_define_for_a_dtype_stays(dtype, wanted):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bij,ijk,bk->b", x, self.weight, x[:, 0, :3])

    model = lowered(Sum(), torch.randn(2, 4, 5), dtype=dtype)
    assert dtypes(model, "Einsum") == {wanted}


def test_every_operator_of_the_lists_exists():
    for domain, op_type in OPERATORS:
        if OPERATORS[domain, op_type].precision is Precision.FULL:
            continue
        assert op_type in composites if domain else schema_of(op_type) is not None, op_type


class Attending(nn.Module):
    """Attention under a mask of truth values, which gives zero where a query sees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, seen[:, None, None, :])
        return (x + y.transpose(1, 2).flatten(2)).square().mean()


def test_what_three_products_read_is_cast_once_and_truth_values_follow():
    model = lowered(Attending(), torch.randn(2, 5, 8), torch.rand(2, 5) < 0.7)
    casts = [node for node in model.graph if node.op_type == "Cast" and node.outputs[0].dtype == HALF]
    makers = [node.inputs[0].producer() for node in casts]
    assert sorted(maker.op_type for maker in makers if maker is not None) == ["Cast", "LayerNormalization", "Max"]
    (visible,) = [node for node in model.graph if node.op_type == "Mul" and len(node.outputs[0].shape) == 4]
    assert visible.inputs[0].dtype == HALF and visible.inputs[0].producer().op_type == "Attention"
