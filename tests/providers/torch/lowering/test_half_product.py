"""Products in half precision that are added up in single, in blocks, against float64."""

from __future__ import annotations

import pytest
import torch

from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering import half_product
from ontrain.providers.torch.lowering.product import Factors
from ontrain.providers.torch.plan import plan_memory


def _run(e, *results):
    nbytes = plan_memory(e.program, [buf.storage for buf in results])
    binder = Binder(torch.empty(nbytes, dtype=torch.uint8))
    (code,) = codes([e.program])
    code.bind(binder.resolve)([])
    return [binder.resolve(buf).clone() for buf in results]


@pytest.mark.parametrize("block_bytes", [1, 4_000, 1 << 30], ids=["a row", "some rows", "all"])
@pytest.mark.parametrize("sizes, chunks", [((130, 24, 40), 3), ((7, 5, 3), 1), ((64, 33, 16), 2), ((1, 9, 1), 2)])
def test_chunks_add_up_in_single_precision(sizes, chunks, block_bytes, monkeypatch):
    rows, inner, columns = sizes
    monkeypatch.setattr(half_product, "_BLOCK_BYTES", block_bytes)
    e = Emitter(torch.device("cpu"))
    factors = [(torch.randn(inner, rows).bfloat16().t(), torch.randn(inner, columns).bfloat16()) for _ in range(chunks)]
    out, sums = e.new((rows, columns), torch.bfloat16), e.new((rows, columns), torch.float32)
    for number, (x, w) in enumerate(factors):
        half_product.add_half_product(e, Factors(e.constant(x), e.constant(w), out), sums, first=number == 0)
    (got,) = _run(e, sums)
    products = [x.double() @ w.double() for x, w in factors]
    # Each product is rounded once, to eight bits; what is added up keeps its digits.
    bound = sum(p.abs() for p in products) * 2.0**-8 + 1e-5
    assert ((got.double() - sum(products)).abs() <= bound).all()


@pytest.mark.parametrize("block_bytes", [1, 4_000, 1 << 30], ids=["a row", "some rows", "all"])
def test_a_single_product_is_rounded_as_torch_rounds_it(block_bytes, monkeypatch):
    monkeypatch.setattr(half_product, "_BLOCK_BYTES", block_bytes)
    e = Emitter(torch.device("cpu"))
    x, w = torch.randn(24, 130).bfloat16().t(), torch.randn(24, 40).bfloat16()
    out = e.new((130, 40), torch.bfloat16)
    half_product.add_half_product(e, Factors(e.constant(x), e.constant(w), out), None, first=True)
    (got,) = _run(e, out)
    exact = x.double() @ w.double()
    assert ((got.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-5).all()
