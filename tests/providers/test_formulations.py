"""Each formulation of a product is the same product, in the layouts and sizes that models have."""

from __future__ import annotations

import itertools

import pytest
import torch

from ontrain.providers.torch import tuning
from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering import product
from ontrain.providers.torch.plan import plan_memory
from ontrain.providers.torch.settings import Settings


class _Always(tuning.Forced):
    def __init__(self, name):
        super().__init__(name)
        self.asked = []

    def fastest(self, product, names, measure):
        self.asked.append(product)
        return super().fastest(product, names, measure)


def _matrix(order, *size):
    down, across = size if order in "Nn" else size[::-1]
    matrix = torch.randn(down, across + 5 * order.islower())[:, :across]
    return matrix if order in "Nn" else matrix.t()


def _multiplied(name, x, w, out, bias=None, before=None):
    """What `multiply` computes, and into `out`."""
    always = _Always(name)
    e = Emitter(torch.device("cpu"), settings=Settings(tuning=always))
    held = [e.constant(tensor) if tensor is not None else None for tensor in (x, w, out, bias)]
    there = held[2] if before is out else e.constant(before) if before is not None else None
    product.multiply(e, product.Factors(*held, there))
    memory = torch.empty(plan_memory(e.program, []), dtype=torch.uint8)
    (code,) = codes([e.program])
    code.bind(Binder(memory).resolve)([])
    return always.asked


_CASES = [
    (name, "".join(orders), adds, None)
    for name, orders, adds in itertools.product(
        product.FORMULATIONS, itertools.product("NTn", repeat=3), ("", "bias", "result", "other")
    )
] + [
    (name, orders, adds, 1 << 12)
    for name in ("linear", "packed") for orders in ("NTN", "NNn", "TNT") for adds in ("", "bias", "result", "other")
]  # fmt: skip


@pytest.mark.parametrize(("name", "orders", "adds", "block"), _CASES)
def test_every_formulation_is_the_same_product(name, orders, adds, block, monkeypatch):
    monkeypatch.setattr(product, "_WORTH", 0)
    if block is not None:
        monkeypatch.setattr(product, "_BLOCK", block)
    rows, inner, columns = 37, 83, 101
    x, w, out = _matrix(orders[0], rows, inner), _matrix(orders[1], inner, columns), _matrix(orders[2], rows, columns)
    bias = torch.randn(columns) if adds == "bias" else None
    before = out if adds == "result" else torch.randn(rows, columns) if adds == "other" else None
    added = bias if bias is not None else before if before is not None else torch.zeros(())
    wanted = x.double() @ w.double() + added.double()
    _multiplied(name, x, w, out, bias, before)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "sizes", [(768, 3072, 3072), (3072, 3072, 3072), (160, 768, 30522), (30522, 160, 768), (160, 30522, 768)]
)
def test_no_large_matrix_is_given_to_onednn(sizes):
    rows, inner, columns = sizes
    e = Emitter(torch.device("cpu"))
    whole = product.Factors(e.new((rows, inner)), e.new((inner, columns)), e.new((rows, columns)))
    blocks = product._blocks(e, whole)
    matrices = [buf for block in blocks for buf in (block.x, block.w, block.out)]
    assert max(4 * buf.meta.numel() for buf in matrices) <= 1.01 * product._BLOCK
    work = sum(2 * block.sizes[0] * block.sizes[1] * block.sizes[2] for block in blocks)
    assert work == 2 * rows * inner * columns  # each part once


@pytest.mark.skipif("linear" not in product.FORMULATIONS, reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("order", ["N", "T", "n", "t"])
def test_the_kernel_for_linear_layers_is_given_no_gaps(order):
    """With gaps in the second factor oneDNN is a thousand times slower."""
    e = Emitter(torch.device("cpu"))
    x, w, out = (e.constant(tensor) for tensor in (_matrix("N", 64, 32), _matrix(order, 32, 48), _matrix("N", 64, 48)))
    product.FORMULATIONS["linear"](e, product.Factors(x, w, out))
    operand = e.program[-1].args[1]
    assert sorted(operand.meta.stride()) in ([1, 32], [1, 48])


def test_products_of_nearly_the_same_size_share_a_measurement(monkeypatch):
    asked = {
        _multiplied("aten", torch.ones(rows, 768), torch.ones(768, 768), torch.ones(rows, 768))[0]
        for rows in (513, 600, 640)
    }
    assert asked == {"640x768x768 NNN"}


@pytest.mark.parametrize("size", [(8, 8, 8), (1 << 12, 8, 1 << 12)])
def test_small_and_thin_products_are_not_measured(size):
    rows, inner, columns = size
    assert not _multiplied("linear", torch.ones(rows, inner), torch.ones(inner, columns), torch.ones(rows, columns))


def test_double_precision_is_not_measured():
    x = torch.ones(512, 512, dtype=torch.float64)
    assert not _multiplied("linear", x, x, torch.empty_like(x))


@pytest.mark.parametrize(("orders", "adds"), [("NTN", " + bias"), ("TNN", " + result"), ("ntn", "")])
def test_measuring_gives_a_time_for_each(orders, adds, monkeypatch):
    monkeypatch.setattr(product, "delay", float)  # other work may disturb it here
    times = product._measure((64, 256, 512), orders, adds)
    assert set(times) == set(product.FORMULATIONS)
    assert all(0 < seconds < 60 for seconds in times.values())


def test_measuring_minds_no_defaults_of_the_users(monkeypatch):
    monkeypatch.setattr(product, "delay", float)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        assert all(0 < seconds < 60 for seconds in product._measure((64, 256, 512), "TNN", " + bias").values())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
