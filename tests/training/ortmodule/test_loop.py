"""What users do to a module in a training loop, and what must stay right."""

import copy
import gc
import io
import pickle
import threading

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import LanguageModel, Perceptron, assert_same_gradients, pair

pytestmark = pytest.mark.usefixtures("captured_once")

DOUBLE = dict(rtol=1e-9, atol=1e-11)


@pytest.fixture
def twins():
    return pair(Perceptron().double())


@pytest.fixture
def x():
    return torch.randn(5, 6, dtype=torch.float64)


def batches(count=3):
    return [torch.randn(4 + i % 2, 6, dtype=torch.float64) for i in range(count)]


def test_several_forwards_before_one_backward(twins):
    for module in twins:
        torch.manual_seed(0)
        sum(module(x).square().sum() for x in batches()).backward()
    assert_same_gradients(*twins, **DOUBLE)


def test_backwards_in_any_order(twins):
    for module in twins:
        torch.manual_seed(0)
        losses = [module(x).square().sum() for x in batches(4)]
        for i in (2, 0, 3, 1):
            losses[i].backward()
    assert_same_gradients(*twins, **DOUBLE)


def test_backward_twice_with_retain_graph(twins, x):
    for module in twins:
        loss = module(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_gradients(*twins, **DOUBLE)
    assert torch.equal(twins[0].norm.num_batches_tracked, torch.tensor(1))
    torch.testing.assert_close(twins[0].norm.running_mean, twins[1].norm.running_mean)


def test_backward_twice_with_dropout_uses_the_same_mask(x):
    ours = ORTModule(Perceptron(dropout=0.5).double())
    loss = ours(x).square().sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in ours.parameters()]
    ours.zero_grad()
    loss.backward()
    for p, before in zip(ours.parameters(), first, strict=True):
        assert torch.equal(p.grad, before)


def test_backward_twice_without_retain_graph_is_refused(twins, x):
    loss = twins[0](x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_forward_without_backward_and_evaluation_between_steps(twins):
    for module in twins:
        torch.manual_seed(0)
        xs = batches(4)
        loss = module(xs[0]).square().sum()
        module(xs[1])
        module.eval()
        with torch.no_grad():
            module(xs[2])
        module(xs[3])
        module.train()
        loss.backward()
    assert_same_gradients(*twins, **DOUBLE)
    for mine, theirs in zip(twins[0].buffers(), twins[1].buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, **DOUBLE)


def test_evaluation_uses_running_statistics_and_keeps_them(twins, x):
    for module in twins:
        module(x)
        module.eval()
    before = twins[0].norm.running_mean.clone()
    torch.testing.assert_close(twins[0](x), twins[1](x), **DOUBLE)
    assert torch.equal(before, twins[0].norm.running_mean)


def test_one_submodule_in_evaluation_mode(twins, x):
    for module in twins:
        module(x)
        module.norm.eval()
        module(x).square().sum().backward()
    assert_same_gradients(*twins, **DOUBLE)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(twins, x, guard):
    with guard():
        mine, theirs = (module(x) for module in twins)
    torch.testing.assert_close(mine, theirs, **DOUBLE)
    assert not mine.requires_grad
    for module in twins:
        module(x).square().sum().backward()
    assert_same_gradients(*twins, **DOUBLE)


def test_accumulation_into_existing_gradients(twins):
    for module in twins:
        torch.manual_seed(0)
        for i, x in enumerate(batches(6)):
            (module(x).square().sum() / 3).backward()
            if i == 2:
                module.zero_grad(set_to_none=False)
            if i == 4:
                module.first.weight.grad = None
    assert_same_gradients(*twins, **DOUBLE)


def test_freezing_and_unfreezing(twins, x):
    for frozen in (("first.weight", "norm.bias"), (), ("second.weight",), ("second.bias", "second.weight")):
        for module in twins:
            module.zero_grad()
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name not in frozen)
            module(x).square().sum().backward()
        assert_same_gradients(*twins, **DOUBLE)
    assert twins[0]._engine.captures == 1


def test_all_frozen(twins, x):
    twins[0].requires_grad_(False)
    assert not twins[0](x).requires_grad
    y = x.clone().requires_grad_()
    twins[0](y).sum().backward()
    assert y.grad is not None and all(p.grad is None for p in twins[0].parameters())


def test_replacing_data_loading_and_moving(twins, x):
    weight = torch.randn_like(twins[0].first.weight)
    other = Perceptron().double().state_dict()
    for step in range(5):
        for module in twins:
            module.zero_grad()
            if step == 1:
                module.first.weight.data = weight.clone()
            if step == 2:
                module.load_state_dict(other)
            if step == 3:
                module.load_state_dict({name: t.clone() for name, t in other.items()}, assign=True)
            if step == 4:
                module.first.weight.data = weight.t().contiguous().t()
            module(x).square().sum().backward()
        assert_same_gradients(*twins, **DOUBLE)


def test_replacing_data_before_a_call_in_another_form(twins, x):
    """A call by name finds what a call by place has captured, and has to look whether it still fits."""
    weight = torch.randn_like(twins[0].first.weight)
    for module in twins:
        module(x).square().sum().backward()
        module.zero_grad()
        module.first.weight.data = weight.t().contiguous().t()
        module(x=x).square().sum().backward()
    assert_same_gradients(*twins, **DOUBLE)


def test_another_dtype(twins, x):
    for module in twins:
        module(x).sum().backward()
        module.zero_grad()
        module.float()
        module(x.float()).square().sum().backward()
    assert twins[0].first.weight.dtype == torch.float32
    assert_same_gradients(*twins, rtol=1e-4, atol=1e-6)


def test_tying_after_wrapping():
    ours, eager = pair(Perceptron(inputs=8, outputs=8).double())
    x = torch.randn(3, 8, dtype=torch.float64)
    for step in range(2):
        for module in (ours, eager):
            module.zero_grad()
            if step:
                module.second.weight = module.first.weight
            module(x).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
    assert len(list(ours.parameters())) == len(list(eager.parameters())) == 5


def test_replacing_a_submodule_and_changing_an_attribute(twins, x):
    replacement = nn.Linear(8, 5).double()
    for module in twins:
        module(x)
        module.second = copy.deepcopy(replacement)
        module.norm.eps = 0.5
        module(x).square().sum().backward()
    assert twins[0](x).shape == (5, 5)
    assert_same_gradients(*twins, **DOUBLE)


def test_gradient_hooks(twins, x):
    seen = {}
    for module, key in zip(twins, ("ours", "eager"), strict=True):
        log = seen[key] = []
        module.first.weight.register_hook(lambda g: g * 2)
        module.second.weight.register_hook(lambda g, log=log: log.append(g.clone()))
        module.second.bias.register_post_accumulate_grad_hook(lambda p, log=log: log.append(p.grad.clone()))
        module(x).square().sum().backward()
    assert_same_gradients(*twins, **DOUBLE)
    assert len(seen["ours"]) == len(seen["eager"]) == 2
    assert {tuple(t.shape) for t in seen["ours"]} == {tuple(t.shape) for t in seen["eager"]}


def test_hooks_on_the_wrapper(twins, x):
    calls = []
    twins[0].register_forward_hook(lambda module, args, output: calls.append(output.shape))
    twins[0].register_full_backward_hook(lambda module, gi, go: calls.append("backward"))
    twins[0](x).sum().backward()
    assert calls == [(5, 3), "backward"]


def test_hooks_inside_are_refused_or_told_of(twins, x):
    ours, eager = twins
    handle = ours.first.register_full_backward_hook(lambda module, gi, go: None)
    with pytest.raises(CaptureError, match="submodule 'first' has a backward hook"):
        ours(x)
    handle.remove()
    ours.second.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.warns(UserWarning, match="forward hooks of submodule 'second'"):
        y = ours(x)
    torch.testing.assert_close(y, eager(x) * 2)


def test_a_hook_that_removes_itself_is_called_once_and_not_warned_of(twins, x, recwarn):
    for module in twins:

        def double(_, args, output):
            handle.remove()  # noqa: B023
            return output * 2

        handle = module.second.register_forward_hook(double)
        first, second = module(x), module(x)
        torch.testing.assert_close(first, 2 * second)
        assert not module.second._forward_hooks
    torch.testing.assert_close(*(module(x) for module in twins))
    assert not recwarn.list


def test_in_place_tricks_on_outputs(twins, x):
    for module in twins:
        y = module(x)
        y *= 2
        y[:, 0] = 0
        y.add_(1).relu_()
        y.square().sum().backward()
    assert_same_gradients(*twins, **DOUBLE)


def test_changing_a_parameter_between_forward_and_backward_is_refused(twins, x):
    for module in twins:
        loss = module(x).square().sum()
        with torch.no_grad():
            module.second.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_changing_an_input_after_forward(twins, x):
    for module in twins:
        z = x.clone()
        loss = module(z * 1).square().sum()
        z.zero_()
        loss.backward()
    assert_same_gradients(*twins, **DOUBLE)


def pickled(module):
    return pickle.loads(pickle.dumps(module))  # noqa: S301 (our own)


@pytest.mark.parametrize("how", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
def test_copies_are_independent(twins, x, how):
    ours, eager = twins
    ours(x)
    copied = how(ours)
    assert isinstance(copied, ORTModule) and copied.first.weight is not ours.first.weight
    with torch.no_grad():
        ours.first.weight.zero_()
    for module in (copied, eager):
        module(x).square().sum().backward() if module is copied else (module(x), module(x).square().sum().backward())
    assert_same_gradients(copied, eager, **DOUBLE)


@pytest.mark.parametrize("how", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
def test_a_copy_keeps_how_it_was_wrapped(how):
    ours = ORTModule(nn.Linear(6, 3), breaks="allow", memory_budget=0.5, lazy_outputs=False)
    assert how(ours).__reduce__()[1][2] == ours.__reduce__()[1][2] and ours.__reduce__()[1][2]["breaks"] == "allow"


def doubled(module, args, output):
    return output * 2


class Counting(nn.Linear):
    calls = 0

    def count(self, *_: object) -> None:
        self.calls += 1


def negated(module, before, after):
    return tuple(-gradient for gradient in before)


@pytest.mark.parametrize("how", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
def test_a_copy_keeps_the_hooks_of_the_wrapper(how, x):
    ours, eager = pair(Counting(6, 3).double())
    results = []
    for module in (ours, eager):
        module.register_forward_hook(doubled)
        module.register_forward_pre_hook(module.count)
        module.register_full_backward_hook(negated)
        module(x)
        wrapped = how(module)
        leaf = x.clone().requires_grad_()
        y = wrapped(leaf)
        y.square().sum().backward()
        results.append((y.detach(), leaf.grad, wrapped.calls, module.calls))
    assert results[0][2:] == results[1][2:] == (2, 1)
    for mine, theirs in zip(results[0][:2], results[1][:2], strict=True):
        torch.testing.assert_close(mine, theirs)


def test_saved_and_loaded_as_a_whole(x):
    ours = ORTModule(nn.Sequential(nn.Linear(6, 3)).double())
    want = ours(x)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), want)


def test_threads(x):
    ours, eager = pair(Perceptron().double().eval())
    want = eager(x).detach()
    ours(x)
    wrong = []

    def work():
        for _ in range(20):
            y = ours(x)
            y.sum().backward()
            if not torch.allclose(y.detach(), want):
                wrong.append(y)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_is_flat_over_a_thousand_steps_of_changing_shapes():
    import resource

    ours = ORTModule(LanguageModel(width=8, layers=1))
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    shapes = [(1 + i % 5, 2 + i % 7) for i in range(35)]

    def run(steps):
        for i in range(steps):
            ids = torch.randint(0, 20, shapes[i % len(shapes)])
            optimizer.zero_grad()
            ours(ids, ids)[0].backward()
            optimizer.step()

    def objects():
        gc.collect()
        return sum(isinstance(tensor, torch.Tensor) for tensor in gc.get_objects())

    run(200)
    tensors, peak = objects(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(1000)
    assert objects() <= tensors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 20 * 1024  # KiB


def test_plans_are_bounded_in_number():
    from ontrain.session.plans import PLANS

    ours = ORTModule(nn.Linear(3, 2))
    for rows in range(2, PLANS + 20):
        ours(torch.randn(rows, 3)).sum().backward()
    (entry,) = ours._engine.entries
    assert len(entry.session.plans) == PLANS


class Versioned(nn.Module):
    """Saves a number beside its weights."""

    def __init__(self):
        super().__init__()
        self.layer, self.version = nn.Linear(3, 2), 1

    def forward(self, x):
        return self.layer(x)

    def get_extra_state(self):
        return self.version

    def set_extra_state(self, state):
        self.version = state


def test_hooks_of_state_dict_that_are_registered_on_the_wrapper_are_called():
    told = []
    model = ORTModule(Versioned())
    model.register_state_dict_pre_hook(lambda module, prefix, keep: told.append("pre"))
    model.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update({f"{prefix}more": 1}))
    model.register_load_state_dict_pre_hook(lambda module, state, *rest: state.pop(f"{rest[0]}more"))
    model.register_load_state_dict_post_hook(lambda module, keys: told.append("post"))
    for outer in (model, nn.Sequential(model), copy.deepcopy(model)):
        told.clear()
        state = outer.state_dict()
        assert any(name.endswith("more") for name in state)
        outer.load_state_dict(dict(state))
        assert told == ["pre", "post"]


def test_a_module_around_the_wrapper_loads_what_it_has_saved():
    model = nn.Sequential(ORTModule(Versioned()))
    state = model.state_dict()
    model[0].version = 2
    model.load_state_dict(state)
    assert model[0].module.version == 1
