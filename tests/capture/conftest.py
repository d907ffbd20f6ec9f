"""Fixtures of the tests of capture."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def no_dropout():
    """A function that turns a module's dropout probabilities to zero, wherever they are kept."""

    def apply(module):
        for one in module.modules():
            if isinstance(one, torch.nn.modules.dropout._DropoutNd):
                one.p = 0.0
            for name in ("dropout", "attention_dropout", "activation_dropout"):
                if isinstance(getattr(one, name, None), float):
                    setattr(one, name, 0.0)
        return module

    return apply
