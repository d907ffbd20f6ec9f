"""Results that are no new tensors: the caller gets the input, the parameter or the same tensor again, as eager's."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Owned(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function
        self.register_buffer("codes", torch.ones(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.function(self, x)


def twice(module, x):
    h = module.linear(x)
    return {"a": h, "b": [h, h.contiguous()]}


def beside_a_loss(module, x):
    h = module.linear(x)
    return h.square().mean(), h, h, x


def counted(module, x):
    module.count += 1
    return module.linear(x), module.count


RESULTS = {
    "the same tensor twice": twice,
    "beside a loss": beside_a_loss,
    "an input": lambda module, x: (module.linear(x), x),
    "nothing else": lambda module, x: x,
    "a parameter": lambda module, x: (module.linear.weight, module.linear(x)),
    "a buffer": lambda module, x: (module.linear(x), module.codes),
    "a buffer that is updated": counted,
    "a view twice": lambda module, x: 2 * (module.linear(x).view(-1),),
    "an input that is written to": lambda module, x: (module.linear(x), x.clone().mul_(2)),
}


def tensors_of(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [leaf for item in (result.values() if isinstance(result, dict) else result) for leaf in tensors_of(item)]


def identities(module, x, leaves):
    """For each tensor of a result the first of these that it is: an input, the module's, or an earlier one."""
    known = [("input", x), *module.named_parameters(), *module.named_buffers()]
    names = []
    for index, leaf in enumerate(leaves):
        names.append(next((name for name, tensor in known if tensor is leaf), index))
        known.append((index, leaf))
    return names


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", ["training", "no_grad"])
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_whose_it_is_in_eager(name, way):
    eager = Owned(RESULTS[name])
    wrapped = copy.deepcopy(eager)
    ours = ORTModule(wrapped)
    for requires_grad in (False, True):
        x = torch.randn(3, 4, requires_grad=requires_grad)
        with torch.set_grad_enabled(way != "no_grad"):
            want, result = tensors_of(eager(x)), tensors_of(ours(x))
        assert identities(wrapped, x, result) == identities(eager, x, want)
        torch.testing.assert_close(result, want)
        assert [leaf.requires_grad for leaf in result] == [leaf.requires_grad for leaf in want]


def test_gradients_through_each_place_of_a_tensor():
    eager = Owned(lambda module, x: (lambda h: (h, h, x, module.linear.weight))(module.linear(x)))
    ours = ORTModule(copy.deepcopy(eager))
    gradients = []
    for model in (eager, ours):
        x = torch.ones(3, 4, requires_grad=True)
        h, again, same, weight = model(x)
        (h.square().sum() + again.exp().sum() + 3 * same.sum() + weight.square().sum()).backward()
        gradients.append([x.grad, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_one_backward_for_a_tensor_twice(monkeypatch):
    """A second place of a tensor asks for no second run of forward."""
    ours, runs = ORTModule(Owned(twice)), []
    ours(torch.randn(3, 4))
    (entry,) = ours._engine.entries
    forward = entry.session.forward
    monkeypatch.setattr(entry.session, "forward", lambda *args: runs.append(args) or forward(*args))
    result = ours(torch.randn(3, 4))
    (result["a"] + result["b"][0]).sum().backward()
    assert len(runs) == 1


def test_a_write_to_a_returned_buffer_reaches_the_module():
    ours = ORTModule(Owned(lambda module, x: (module.linear(x) * module.codes, module.codes)))
    x = torch.randn(3, 4)
    with torch.no_grad():
        ours(x)[1].mul_(2)
        torch.testing.assert_close(ours(x)[0], 2 * ours.module.linear(x))


def test_a_write_to_one_place_is_seen_at_the_other():
    ours = ORTModule(Owned(twice))
    result = ours(torch.randn(3, 4))
    result["a"].zero_()
    assert not result["b"][0].any()


def test_what_is_saved_is_saved_once():
    def size(model):
        file = io.BytesIO()
        torch.save(model(torch.zeros(64, 4)), file)
        return len(file.getvalue())

    eager = Owned(twice).eval().requires_grad_(False)
    assert size(ORTModule(copy.deepcopy(eager))) == size(eager)


def test_a_contiguous_copy_of_an_input_is_contiguous():
    eager = Owned(lambda module, x: (module.linear(x), x.contiguous()))
    ours = ORTModule(copy.deepcopy(eager))
    ours(torch.randn(4, 4))
    x = torch.randn(4, 4).t()
    torch.testing.assert_close(ours(x)[1].view(-1), eager(x)[1].view(-1))


def test_given_parameters_are_what_a_call_returns():
    eager = Owned(lambda module, x: (module.linear(x), module.linear.weight))
    weight = torch.zeros(4, 4, requires_grad=True)
    ours = ORTModule(copy.deepcopy(eager))
    ours(torch.randn(3, 4))
    assert torch.func.functional_call(ours, {"linear.weight": weight}, (torch.randn(3, 4),))[1] is weight


def test_a_cached_graph_knows_whose_tensors_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path))
    x = torch.randn(3, 4)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ORTModule(Echo())
            h, again, same, codes = model(x)
        assert h is again
        assert same is x
        assert codes is model.codes
    assert [*tmp_path.rglob("*")]


class Echo(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("codes", torch.ones(4))

    def forward(self, x):
        h = self.linear(x)
        return h, h, x, self.codes
