"""The ways to take a training step with products in bfloat16 or without: seconds of each, and its curve of losses."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.models import make
from ontrain.passes import BFloat16Products, register_pass, unregister_pass
from ontrain.training.ortmodule import ORTModule

__all__ = ["STEPS", "WAYS", "curve", "measure"]

WAYS = (
    "ORTModule", "ORTModule, autocast", "ORTModule, products", "eager", "eager, autocast", "eager, oneDNN products",
)  # fmt: skip
STEPS = 300
"""Of a curve."""
_ZOO = {"llama": "Llama, 4×256", "vit": "ViT-tiny, 8×224²"}
_WINDOW, _WARM_UP = 128, 3

Loss = Callable[[Any, Any], torch.Tensor]
_PRODUCTS = BFloat16Products()


@contextmanager
def _switched_on(way: str) -> Iterator[None]:
    """What holds while a step is taken in some way, beside autocast."""
    precision = torch.backends.mkldnn.matmul.fp32_precision
    if "oneDNN" in way:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    if way == "ORTModule, products":
        register_pass(_PRODUCTS, stage="forward", after="FuseHead")
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = precision
        if way == "ORTModule, products":
            unregister_pass(_PRODUCTS.name, stage="forward")


class _Training:
    """A copy of a module that is trained in one of the ways."""

    def __init__(self, way: str, module: torch.nn.Module, loss: Loss) -> None:
        module = copy.deepcopy(module)
        self._way, self._loss = way, loss
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
        self.module = ORTModule(module) if way.startswith("ORTModule") else module

    def step(self, batch: Any) -> float:
        with _switched_on(self._way):
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in self._way):
                loss = self._loss(self.module, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())


def _workload(name: str, steps: int) -> tuple[torch.nn.Module, list[Any], Loss]:
    if name in _ZOO:
        from benchmarks.zoo_models import make as make_sample

        sample = make_sample(_ZOO[name])
        return sample.module, [sample.batch], lambda module, batch: module(*batch)
    model, batches = make("cola-epoch" if name == "cola" else name)
    return model, list(batches)[:steps], lambda module, batch: module(**batch).loss


def measure(name: str, rounds: int, epoch_steps: int) -> dict[str, float]:
    """Return each way's seconds: the median of the rounds, or of CoLA the sum from the first step on."""
    module, batches, loss = _workload(name, epoch_steps)
    trainings = {way: _Training(way, module, loss) for way in WAYS}
    as_they_come = name == "cola"
    turns = batches if as_they_come else batches * (rounds + _WARM_UP)
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    for batch in tqdm(turns, desc=name):
        for way, training in trainings.items():
            began = time.perf_counter()
            training.step(batch)
            spent[way].append(time.perf_counter() - began)
    return {way: sum(times) if as_they_come else statistics.median(times[_WARM_UP:]) for way, times in spent.items()}


def _prose() -> torch.Tensor:
    """Bytes of the manual that every Python brings along."""
    from pydoc_data.topics import topics

    return torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.int64)


def curve(way: str, seed: int) -> dict[str, Any]:
    """Train from one seed in one way; return the mean loss of every ten steps, and the loss on other pages."""
    from transformers import GPT2Config, GPT2LMHeadModel

    text = _prose()
    cut = len(text) * 9 // 10
    draws = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=_WINDOW, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    ).train()
    training = _Training(way, model, lambda module, ids: module(input_ids=ids, labels=ids).loss)
    losses: list[float] = []
    for _ in range(STEPS):
        starts = torch.randint(0, cut - _WINDOW, (16,), generator=draws)
        losses.append(training.step(torch.stack([text[at : at + _WINDOW] for at in starts.tolist()])))
    others = text[cut:][: len(text[cut:]) // _WINDOW * _WINDOW].view(-1, _WINDOW)[:256]
    with torch.no_grad():
        evaluated = float(training.module.eval()(input_ids=others, labels=others).loss)
    return {"losses": [statistics.fmean(losses[i : i + 10]) for i in range(0, STEPS, 10)], "evaluated": evaluated}
