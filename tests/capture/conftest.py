"""Fixtures of the tests of capture."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def no_dropout():
    """A function that turns a module's dropout probabilities to zero, wherever they are kept."""

    def apply(module):
        for part in module.modules():
            if isinstance(part, torch.nn.modules.dropout._DropoutNd):
                part.p = 0.0
            for name in ("dropout", "attention_dropout", "activation_dropout"):
                if isinstance(getattr(part, name, None), float):
                    setattr(part, name, 0.0)
        return module

    return apply
