"""Random numbers from the operating system in a forward: refused by line, as those of generators are."""

from __future__ import annotations

import os
import random
import secrets
import threading
import uuid

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.capture.entropy import entropy_refused
from ontrain.errors import CaptureError
from tests.training.ortmodule.networks import assert_same_gradients, pair


class Scaled(nn.Module):
    """Its input, times a factor that a function returns."""

    def __init__(self, factor):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.factor = factor

    def forward(self, x):
        return (x * self.weight * self.factor()).sum()


DRAWS = {
    "bytes": lambda: os.urandom(1)[0] / 255,
    "secrets": lambda: secrets.randbelow(100) / 100,
    "the system's generator": lambda: random.SystemRandom().random(),
    "a unique name": lambda: uuid.uuid4().int % 100 / 100,
    "Python's generator without a seed": lambda: random.Random().random(),
    "numpy's generator without a seed": lambda: np.random.default_rng().random(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_that_moves_no_generator_is_refused_by_line(draw):
    with pytest.raises(CaptureError, match=r"draws random numbers[\s\S]*test_entropy.py"):
        capture(Scaled(draw), [torch.ones(3)])


@pytest.mark.parametrize(
    "name", [lambda: f"rows.{uuid.uuid4().int}", lambda: str(uuid.uuid4()), lambda: uuid.uuid4().hex],
    ids=["f-string", "str", "hex"],
)  # fmt: skip
def test_a_uuid_that_becomes_a_name_is_no_number(name):
    class Named(Scaled):
        def forward(self, x):
            key = self.factor()
            return {key: x * self.weight}[key].sum()

    ours, eager = pair(Named(name))
    for rows in (2, 3):
        x = torch.randn(rows, 3)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        assert_same_gradients(ours, eager)
    assert ours._engine.captures == 1


@pytest.mark.parametrize(
    "draw", [lambda: random.Random(3).random(), lambda: np.random.default_rng(3).random()], ids=["Python", "numpy"]
)
def test_a_generator_that_forward_makes_from_a_seed_draws_the_same_in_each_step(draw):
    model = Scaled(draw)
    assert capture(model, [torch.ones(3)]).output_spec.tensors() == 1


class Seeded(nn.Module):
    """Noise from a generator of its own, added in one of several ways."""

    def __init__(self, noise):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.noise, self.generator = noise, torch.Generator().manual_seed(0)

    def forward(self, x):
        return (x * self.weight + self.noise(x, self.generator)).sum()


NOISES = {
    "a function": lambda x, generator: torch.rand(x.shape, generator=generator),
    "a method in place": lambda x, generator: torch.empty_like(x).normal_(generator=generator),
    "of probabilities": lambda x, generator: torch.bernoulli(torch.sigmoid(x), generator=generator),
}


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_a_generator_of_torch_that_the_module_holds_is_refused_by_line(noise):
    with pytest.raises(
        CaptureError, match=r"draws from a torch.Generator[\s\S]*test_entropy.py[\s\S]*leave generator= out"
    ):
        capture(Seeded(noise), [torch.ones(3)])


def test_other_threads_draw_meanwhile():
    drawn = []
    with entropy_refused(""):
        thread = threading.Thread(target=lambda: drawn.append(os.urandom(4)))
        thread.start()
        thread.join()
    assert len(drawn[0]) == 4
    assert len(os.urandom(4)) == 4
