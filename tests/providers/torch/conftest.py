"""Each formulation that a measurement may pick, on one thread and on two."""

from __future__ import annotations

import pytest
import torch

from ontrain.providers.torch.lowering import product
from ontrain.providers.torch.tuning import formulations


@pytest.fixture(params=formulations())
def forced(request, monkeypatch):
    monkeypatch.setenv("ONTRAIN_TUNE", request.param)
    return request.param


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def multiplied(monkeypatch):
    """Lists the formulations of the products that were emitted."""
    names = []
    for name, emit in product.FORMULATIONS.items():

        def noted(e, factors, name=name, emit=emit):
            names.append(name)
            emit(e, factors)

        monkeypatch.setitem(product.FORMULATIONS, name, noted)
    monkeypatch.setattr(product, "_aten", product.FORMULATIONS["aten"])
    return names
