"""Iterators that outlive a forward which takes their items."""

import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ontrain.capture import capture
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule


def halves() -> Iterator[float]:
    rate = 1.0
    while True:
        yield rate
        rate /= 2


class Scaled(nn.Module):
    """Takes its factor from an iterator."""

    def __init__(self, factors: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.factors = factors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * next(self.factors)


class OfGlobal(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * next(FACTORS)


class InALoop(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = x * factor
            break
        return self.layer(x)


class Sent(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factors.send(None)


class OfItsOwn(Scaled):
    """Makes its iterators itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factors, more = iter([1.0, 2.0]), (factor for factor in self.factors)
        return self.layer(x) * next(factors) * sum(more)


class Counting:
    """An iterator in Python, which is followed by what it writes."""

    def __init__(self) -> None:
        self.count = 0.0

    def __iter__(self) -> "Counting":
        return self

    def __next__(self) -> float:
        self.count += 1
        return self.count


FACTORS = itertools.count(1)
X = torch.linspace(-1, 1, 6).reshape(2, 3)
ITERATORS: dict[str, Callable[[], Any]] = {
    "list": lambda: iter([1.0, 2.0, 3.0]),
    "range": lambda: iter(range(5)),
    "dict": lambda: iter({1.0: 0, 2.0: 0}),
    "count": lambda: itertools.count(1),
    "cycle": lambda: itertools.cycle([1.0, 2.0]),
    "map": lambda: map(float, range(5)),
    "generator": halves,
    "DataLoader": lambda: iter(DataLoader([1.0, 2.0, 3.0])),
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
def test_the_next_item_of_an_iterator_that_is_held_is_refused_by_line(make: Callable[[], Any]) -> None:
    module = Scaled(make())
    first, factors = next(make()), module.factors
    with pytest.raises(CaptureError, match=r"next item[\s\S]*test_iterators.py:\d+: return .*next\(self.factors\)"):
        capture(module, (X,))
    assert module.factors is factors and next(factors) == first


@pytest.mark.parametrize("kind", [OfGlobal, InALoop, Sent])
def test_all_ways_to_an_item_are_refused(kind: type[Scaled]) -> None:
    with pytest.raises(CaptureError, match="next item"):
        capture(kind(halves()), (X,))


def test_an_iterator_in_a_list_is_refused() -> None:
    module = Scaled([itertools.count(1)])
    module.forward = lambda x: module.layer(x) * next(module.factors[0])  # type: ignore[method-assign]
    with pytest.raises(CaptureError, match=re.escape("an iterator, itertools.count")):
        capture(module, (X,))


def test_an_iterator_in_a_tuple_or_behind_its_method_is_refused() -> None:
    taking: dict[str, Callable[[Any], float]] = {
        "tuple": lambda factors: next(factors[1][0]),
        "method": lambda factors: factors(),
        "partial": lambda factors: factors(),
    }
    held: dict[str, Callable[[Any], Any]] = {
        "tuple": lambda items: (2, (items,)),
        "method": lambda items: items.__next__,
        "partial": lambda items: functools.partial(next, items),
    }
    for name, take in taking.items():
        items = halves()
        module = Scaled(value := held[name](items))
        module.forward = lambda x, module=module, take=take: module.layer(x) * take(module.factors)  # type: ignore[method-assign, misc]
        with pytest.raises(CaptureError, match=re.escape("an iterator, generator")):
            capture(module, (X,))
        assert module.factors is value and next(items) == 1.0


def test_iterators_of_a_forward_s_own_are_none_of_that() -> None:
    capture(OfItsOwn([1.0, 2.0]), (X,))


def test_an_iterator_in_python_gives_each_call_its_item() -> None:
    ours, eager = ORTModule(Scaled(Counting())), Scaled(Counting())
    eager.load_state_dict(ours.state_dict())
    for _ in range(3):
        torch.testing.assert_close(ours(X), eager(X))


@pytest.mark.parametrize("options", [{"breaks": "allow"}, {"fallback": "FALLBACK_UNSUPPORTED_TORCH_MODEL"}])
def test_pytorch_takes_all_items_where_it_answers(options: dict[str, Any]) -> None:
    ours, eager = ORTModule(Scaled(halves()), **options), Scaled(halves())
    eager.load_state_dict(ours.state_dict())
    for _ in range(4):
        torch.testing.assert_close(ours(X), eager(X))


@pytest.mark.thorough
def test_an_iterator_that_comes_later_gives_each_call_its_item_in_pieces() -> None:
    """The first call makes it, and the loop sets another one."""

    class Begins(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.factors is None:
                self.factors = halves()
            return self.layer(x) * next(self.factors)

    ours, eager = ORTModule(Begins(None), breaks="allow"), Begins(None)
    eager.load_state_dict(ours.state_dict())
    for call in range(6):
        if call == 3:
            ours.module.factors, eager.factors = halves(), halves()
        torch.testing.assert_close(ours(X), eager(X))


def test_another_thread_takes_items_meanwhile() -> None:
    class Waiting(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=lambda: next(self.factors))
            thread.start()
            thread.join()
            return self.layer(x)

    module = Waiting(itertools.count(7))
    capture(module, (X,))
    assert next(module.factors) == 8
