"""Tensors that forward reads and that are no inputs, parameters or buffers of the module: gradients and new values."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint

from ontrain.errors import OptionError
from ontrain.training.ortmodule import ORTModule
from tests.distributed import together
from tests.training.ortmodule.networks import LanguageModel


def trained() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_()


class Box:
    """A user's own object."""

    def __init__(self) -> None:
        self.tensor = trained()


GLOBAL, BOX, OTHER = trained(), Box(), nn.Linear(3, 4).double()


class Reading(nn.Module):
    kind = trained()

    def __init__(self, read):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.read = read
        self.tensor, self.tensors, self.named, self.box = trained(), [trained()], {"w": trained()}, Box()
        self.others = [OTHER]  # so that it is no submodule
        self.register_buffer("buffer", trained())
        self.__dict__["unregistered"] = nn.Parameter(trained().detach())

    def forward(self, x, default=GLOBAL):
        return READS[self.read][0](self, self.layer(x).relu(), default)


def within_no_grad(module, h, default):
    with torch.no_grad():
        fixed = h @ GLOBAL
    return fixed + h @ GLOBAL


def written(module, h, default):
    y = h * 1
    y[:, :3] += GLOBAL[: len(h)].sum(0)
    return y


READS = {
    "an attribute": (lambda module, h, default: h @ module.tensor, lambda module: module.tensor),
    "in a list": (lambda module, h, default: h @ module.tensors[0], lambda module: module.tensors[0]),
    "in a dictionary": (lambda module, h, default: h @ module.named["w"], lambda module: module.named["w"]),
    "of an object": (lambda module, h, default: h @ module.box.tensor, lambda module: module.box.tensor),
    "of the class": (lambda module, h, default: h @ module.kind, lambda module: Reading.kind),
    "a global": (lambda module, h, default: h @ GLOBAL, lambda module: GLOBAL),
    "of a global object": (lambda module, h, default: h @ BOX.tensor, lambda module: BOX.tensor),
    "a default": (lambda module, h, default: h @ default, lambda module: GLOBAL),
    "a buffer": (lambda module, h, default: h @ module.buffer, lambda module: module.buffer),
    "a parameter of a module in a list": (lambda m, h, default: h @ m.others[0].weight.T.T, lambda m: OTHER.weight),
    "a module in a list": (lambda m, h, default: m.others[0](h[:, :3]), lambda m: OTHER.weight),
    "a parameter that is not registered": (lambda m, h, default: h @ m.unregistered, lambda m: m.unregistered),
    "within no_grad and outside": (within_no_grad, lambda module: GLOBAL),
    "added in place": (written, lambda module: GLOBAL),
    "in a checkpoint": (
        lambda module, h, default: checkpoint(lambda h: h @ GLOBAL, h, use_reentrant=False), lambda module: GLOBAL,
    ),
    "in a branch": (
        lambda module, h, default: torch.cond(h.sum() > 1e9, lambda h: h @ GLOBAL, lambda h: h @ (GLOBAL * 2), (h,)),
        lambda module: GLOBAL,
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("read", READS)
def test_its_gradient_and_its_new_values_are_eagers(read):
    eager = Reading(read).double()
    wrapped, tensor = ORTModule(eager), READS[read][1](eager)
    start = tensor.detach().clone()
    rows = []
    for module in (eager, wrapped):
        with torch.no_grad():
            tensor.copy_(start)
        for step in range(3):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            tensor.grad = None
            eager.zero_grad()
            result = module(x)
            result.square().sum().backward()
            rows.append((result.detach(), tensor.grad, eager.layer.weight.grad.clone()))
            with torch.no_grad():  # as an optimizer does
                tensor.sub_(0.01 * tensor.grad)
    for theirs, ours in zip(rows[:3], rows[3:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert wrapped._engine.captures == 1


@pytest.mark.parametrize("owned", [True, False])
def test_a_tensor_that_is_trained_from_some_step_on(owned):
    eager = Reading("a parameter that is not registered" if owned else "an attribute").double()
    tensor, wrapped = eager.unregistered if owned else eager.tensor, ORTModule(eager)
    x = torch.randn(4, 6, dtype=torch.float64)
    for wanted in (False, True, False):
        tensor.requires_grad_(wanted)
        gradients = []
        for module in (eager, wrapped):
            tensor.grad = None
            module(x).square().sum().backward()
            gradients.append(tensor.grad)
        assert (gradients[0] is not None) == wanted
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4, bias=False)
        self.scale = None

    def forward(self, x):
        return self.layer(x) * (1 if self.scale is None else self.scale)


def test_attributes_that_others_compute_anew_in_each_step_are_captured_once():
    """As a hypernetwork sets the weights and scales of another network."""
    eager = Scaled().double()
    source, x = torch.ones(3, dtype=torch.float64, requires_grad=True), torch.randn(5, 6, dtype=torch.float64)
    weight = eager.layer.weight.detach().clone().requires_grad_()
    del eager.layer.weight
    wrapped = ORTModule(copy.deepcopy(eager))
    for step in range(5):
        results = []
        for module in (eager, wrapped.module):
            module.scale, module.layer.weight = source.sum() * (step + 1), weight * (step + 2)
        for module in (eager, wrapped):
            source.grad = weight.grad = None
            module(x).square().sum().backward()
            results.append((source.grad, weight.grad))
        torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)
    assert wrapped._engine.captures == 1 and wrapped._engine._given._engine.captures == 1
    for scale in (torch.tensor(3.0), None):
        eager.scale = wrapped.module.scale = scale
        torch.testing.assert_close(wrapped(x), eager(x))


class Fixed(nn.Module):
    """Reads tensors that want no gradient."""

    def __init__(self, read):
        super().__init__()
        self.layer, self.read = nn.Linear(6, 4), read
        self.scale, self.columns, self.number = torch.tensor(2.0), torch.tensor([0, 1]), torch.tensor(2)
        self.teachers = [nn.Linear(6, 4).requires_grad_(False)]  # so that it is no submodule
        self.teachers[0].register_buffer("mean", torch.ones(4))

    def forward(self, x):
        return FIXED[self.read][0](self, self.layer(x), x)


SCALE = torch.tensor(2.0)
FIXED = {
    "a global": (lambda m, h, x: h * SCALE, lambda m: SCALE, 2),
    "a parameter of a module in a list": (lambda m, h, x: h - m.teachers[0](x), lambda m: m.teachers[0].weight, 1),
    "a buffer of a module in a list": (lambda m, h, x: h - m.teachers[0].mean, lambda m: m.teachers[0].mean, 2),
    "indices": (lambda m, h, x: h[:, m.columns], lambda m: m.columns, 2),
    "as a number": (lambda m, h, x: h * m.scale.item(), lambda m: m.scale, 4),
    "as a float": (lambda m, h, x: h * float(m.scale), lambda m: m.scale, 4),
    "a global as a number": (lambda m, h, x: h * SCALE.item(), lambda m: SCALE, 4),
    "as a list": (lambda m, h, x: h[:, m.columns.tolist()], lambda m: m.columns, 4),
    "as a size": (lambda m, h, x: h[:, : int(m.number)], lambda m: m.number, 4),
    "a parameter as a number": (lambda m, h, x: h * m.teachers[0].bias[0].item(), lambda m: m.teachers[0].bias, 1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("read", FIXED)
def test_what_was_written_to_is_read_and_captured_anew_as_seldom_as_can_be(read):
    _, tensor, captures = FIXED[read]
    torch.manual_seed(0)
    eager = Fixed(read).double()
    wrapped, x = ORTModule(eager), torch.randn(3, 6, dtype=torch.float64)
    eager.teachers[0].double()
    for _ in range(4):
        torch.testing.assert_close(wrapped(x), eager(x))
        with torch.no_grad():
            tensor(eager).add_(1) if not tensor(eager).is_floating_point() else tensor(eager).mul_(1.5)
            if read == "indices" or read == "as a list":
                tensor(eager).remainder_(4)
    assert wrapped._engine.captures == captures


def test_shards_within_are_refused_with_the_way_round():
    tensor = pytest.importorskip("torch.distributed.tensor")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        module = nn.Sequential(nn.Linear(3, 4))
        module[0].weight = nn.Parameter(tensor.distribute_tensor(module[0].weight, mesh, [tensor.Shard(0)]))
        with pytest.raises(OptionError, match=r"'0' is sharded(.|\n)*FullyShardedDataParallel\(ORTModule\(model\)\)"):
            ORTModule(module)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.thorough
def test_two_processes_of_fully_sharded_data_parallel():
    """Weights and losses of FSDP(ORTModule(m)) are those of FSDP(m)."""
    together.run(2, train_sharded)


def train_sharded():
    dist.init_process_group("gloo")
    for own in (True, False):
        losses = []
        for wrap in (lambda module: module, ORTModule):
            torch.manual_seed(0)
            model = FullyShardedDataParallel(
                wrap(LanguageModel().double()), device_id=torch.device("cpu"), use_orig_params=own
            )
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for step in range(4):
                generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
                ids = torch.randint(0, 20, (3, 6 + step % 2), generator=generator)
                optimizer.zero_grad()
                loss = model(ids, ids)[0]
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        torch.testing.assert_close(losses[4:], losses[:4], rtol=1e-9, atol=1e-11)
    dist.destroy_process_group()
