"""What a graph holds as a constant, and how a change of it is noticed."""

import dataclasses
import enum
import types

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import pair

pytestmark = pytest.mark.sampled(4)


class Sign(enum.Enum):
    PLUS, MINUS = 1.0, -1.0


class Scaled(nn.Module):
    """Multiplies by what it finds in its attributes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.tensor(2.0)
        self.scales, self.options = [1.0, 2.0], {"shift": {"by": 1.0}}
        self.sign, self.steps = Sign.PLUS, {"shift"}

    def forward(self, x, how=None):
        y = self.linear(x) * self.scale * self.scales[1] * self.sign.value
        if "shift" in self.steps:
            y = y + self.options["shift"]["by"]
        return y if how is None else y * how.factor


def replace(module):
    module.scale = torch.tensor(3.0)


def write(module):
    module.scale.mul_(2)


def in_a_list(module):
    module.scales[1] = 5.0


def in_a_dict(module):
    module.options["shift"]["by"] = -1.0


def in_an_enumeration(module):
    module.sign = Sign.MINUS


def in_a_set(module):
    module.steps.clear()


def own_forward(module):
    module.linear.forward = lambda x: x * 7


def hook_later(module):
    module.linear.register_forward_hook(lambda module, args, output: output * 2)


CHANGES = [replace, write, in_a_list, in_a_dict, in_an_enumeration, in_a_set, own_forward, hook_later]


@pytest.mark.filterwarnings("ignore:the forward hooks")
@pytest.mark.parametrize("change", CHANGES)
def test_an_attribute_that_changes_is_noticed(change):
    ours, eager = pair(Scaled())
    x = torch.randn(2, 4)
    torch.testing.assert_close(ours(x), eager(x))
    for module in (ours.module, eager):
        change(module)
    torch.testing.assert_close(ours(x), eager(x))
    ours(x)
    assert ours._engine.captures == 2 and len(ours._engine.entries) == 1


def test_tensors_kept_beside_the_graph_make_no_new_capture():
    ours, _ = pair(Scaled())
    for _ in range(3):
        ours.last = ours(torch.randn(2, 4)).detach()
        ours.module.seen = torch.randn(3)
    assert ours._engine.captures == 1


@dataclasses.dataclass
class Options:
    factor: float
    mask: torch.Tensor | None = None


@pytest.mark.parametrize("make", [Options, lambda factor: Options(factor, torch.ones(2)),
                                  lambda factor: types.SimpleNamespace(factor=factor)])  # fmt: skip
def test_numbers_within_an_argument_are_part_of_the_graph(make):
    ours, eager = pair(Scaled())
    x = torch.randn(2, 4)
    for factor in (2.0, 3.0, 2.0):
        torch.testing.assert_close(ours(x, make(factor)), eager(x, make(factor)))
    argument = make(1.0)
    for _ in range(2):
        argument.factor += 1
        torch.testing.assert_close(ours(x, argument), eager(x, argument))


class Phased(nn.Module):
    """Notes what its loop does, as Lightning's modules do."""

    def __init__(self):
        super().__init__()
        self.inner, self.phase, self.losses, self.history, self.scales = nn.Linear(3, 2), "train", [], {}, [1.0]

    def forward(self, x):
        return (self.inner(x) * self.scales[0]).sum()


class Asking(Phased):
    """Reads what its loop does."""

    def forward(self, x):
        return super().forward(x) * len(self.phase)


def test_attributes_that_come_and_go_are_captured_once_for_each_value():
    ours, eager = pair(Asking())
    x = torch.randn(4, 3)
    for phase in ("train", "validate", "train", "validate", "test", "train"):
        ours.phase = eager.phase = phase
        torch.testing.assert_close(ours(x), eager(x))
    assert ours._engine.captures == 3


def test_a_value_that_comes_back_finds_the_parameters_of_now():
    ours = ORTModule(Phased())
    x = torch.randn(4, 3)
    ours(x)
    ours.scales[0] = 2.0
    ours(x)
    ours.module.inner = nn.Linear(3, 2)
    ours(x)
    ours.scales[0] = 1.0
    torch.testing.assert_close(ours(x), ours.module(x))
    with torch.no_grad():
        ours.inner.weight.add_(1.0)
    ours.scales[0] = 2.0
    torch.testing.assert_close(ours(x), ours.module(x))


def test_notes_that_a_loop_takes_in_containers_cost_no_capture():
    ours = ORTModule(Phased())
    x = torch.randn(4, 3)
    for step in range(3):
        loss = ours(x)
        ours.losses.append(loss.detach() if step % 2 else loss.item())
        ours.history[step] = float(loss)
    assert ours._engine.captures == 1
    ours.scales[0] = 3.0  # forward names this one
    torch.testing.assert_close(ours(x), ours.module(x))


def test_containers_that_forward_may_name_by_texts_that_it_makes_are_followed():
    class Named(Phased):
        def forward(self, x):
            return (self.inner(x) * getattr(self, "sca" + "les"[: len(self.phase) - 2])[0]).sum()

    ours = ORTModule(Named())
    x = torch.randn(4, 3)
    ours(x)
    ours.scales[0] = 3.0
    torch.testing.assert_close(ours(x), ours.module(x))
