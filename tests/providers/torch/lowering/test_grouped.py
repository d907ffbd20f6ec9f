"""Products of groups of rows: kernels give what the bodies give, in each formulation, and compute no other rows."""

from __future__ import annotations

import copy

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ontrain.operators import record_of
from ontrain.providers.torch.lowering.grouped import LINEAR, _by_aten, _by_onednn, _outer
from ontrain.training.ortmodule import ORTModule
from tests.providers.bodies import compare, lowered_in


@lowered_in("grouped")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


def test_a_plan_with_groups_is_not_recorded():
    """The products read on the host where groups end."""
    for name in ("GroupedMatMul", "GroupedOuter"):
        assert record_of(ir.Node("ontrain", name, [])).asks_device


WAYS = [_by_aten, *([_by_onednn] if LINEAR is not None else [])]
ENDS = [[20, 40, 64], [0, 0, 64], [64, 64, 64], [0, 0, 0], [1, 2, 3], [30, 20, 64], [-4, 70, 99]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("columns_first", [False, True])
def test_each_formulation_multiplies_each_row_once_and_writes_all_of_the_result(way, ends, columns_first):
    torch.manual_seed(0)
    x, w = torch.randn(64, 48), torch.randn(3, 32, 48).transpose(1, 2) if columns_first else torch.randn(3, 48, 32)
    wanted, start = torch.zeros(64, 32), 0
    for matrix, end in zip(w, ends, strict=True):
        end = min(max(end, start), 64)
        wanted[start:end] = x[start:end] @ matrix
        start = end
    out = torch.full((64, 32), torch.nan)
    way(x, w, torch.tensor(ends), out)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


def test_sums_over_an_empty_group_are_zero():
    out = torch.full((2, 3, 4), torch.nan)
    _outer(torch.ones(5, 3), torch.ones(5, 4), torch.tensor([0, 5]), out)
    assert torch.equal(out[0], torch.zeros(3, 4)) and torch.equal(out[1], torch.full((3, 4), 5.0))


def products(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """What transformers calls in single precision: torch's own operator has shapes for bfloat16 alone."""
    pytest.importorskip("transformers.integrations.moe")
    return torch.ops.transformers.grouped_mm_fallback(x, w, ends)


class Experts(nn.Module):
    """Rows that each go to two of the experts, sorted by expert, as transformers sends them."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(16, experts)
        self.up, self.down = (nn.Parameter(torch.randn(experts, *size) / 4) for size in ((24, 16), (16, 24)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = self.router(x).softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort(stable=True)
        counts = nn.functional.one_hot(chosen.flatten(), self.up.shape[0]).sum(0)
        ends = counts.cumsum(0, dtype=torch.int32)
        rows = x[order // 2]
        inner = products(rows, self.up.transpose(1, 2), ends).relu()
        y = products(inner, self.down.transpose(1, 2), ends) * shares.flatten()[order][:, None]
        return torch.zeros_like(x).index_add(0, order // 2, y)


@pytest.mark.parametrize("rows", [(12, 12, 7), (2, 40, 1)], ids=str)
def test_experts_train_as_in_eager_pytorch(rows):
    torch.manual_seed(1)
    eager = Experts(5)
    ours = copy.deepcopy(eager)
    wrapped = ORTModule(ours)
    for count in rows:
        x = torch.randn(count, 16)
        for module in (eager, wrapped):
            module(x).square().sum().backward()
        for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)


def test_work_grows_with_the_rows_and_not_with_the_experts():
    counts = []
    for experts in (4, 16):
        module, x = ORTModule(Experts(experts)), torch.randn(64, 16)
        module(x).sum().backward()
        with FlopCounterMode(display=False) as counter:
            module(x).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[1] < 1.5 * counts[0]
