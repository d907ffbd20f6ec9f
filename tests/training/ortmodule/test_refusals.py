"""Where an ORTModule cannot follow torch: every case says so."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, functional

from ontrain.errors import CaptureError, GradientError, InputError, OptionError
from ontrain.training.ortmodule import ORTModule


@pytest.fixture
def ours():
    return ORTModule(nn.Sequential(nn.Linear(4, 3), nn.Tanh()))


def forward_mode(module):
    with forward_ad.dual_level():
        return module(forward_ad.make_dual(torch.ones(2, 4), torch.ones(2, 4)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda m: torch.func.vmap(m)(torch.ones(5, 2, 4)), "torch.func"),
        (lambda m: torch.func.grad(lambda x: m(x).sum())(torch.ones(2, 4)), "torch.func"),
        (forward_mode, "forward-mode"),
        (lambda m: torch.compile(m, backend="eager")(torch.ones(2, 4)), "torch.compile"),
    ],
    ids=["vmap", "func.grad", "forward_ad", "compile"],
)
def test_transforms_around_it(ours, use, what):
    with pytest.raises(InputError, match=what):
        use(ours)
    assert ours(torch.ones(2, 4)).shape == (2, 3)


@pytest.mark.parametrize("called_before", [False, True])
def test_traces_around_it_are_those_of_the_module(ours, called_before):
    x, more = torch.randn(2, 4), torch.randn(3, 4)
    if called_before:
        ours(x).sum().backward()
    traced = torch.jit.trace(ours, x)
    exported = torch.export.export(ours, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    for trace, state in ((traced, traced.state_dict()), (exported.module(check_guards=False), exported.state_dict)):
        torch.testing.assert_close(trace(more), ours.module(more))
        assert list(state) == list(ours.state_dict())
    torch.testing.assert_close(ours(more), ours.module(more))


def test_many_gradients_at_once(ours):
    x = torch.randn(4)
    with pytest.raises(GradientError, match="many gradients were asked for at once"):
        functional.jacobian(ours, x, vectorize=True)
    torch.testing.assert_close(functional.jacobian(ours, x), functional.jacobian(ours.module, x))


def test_tensors_without_values_or_sparse(ours):
    with pytest.raises(InputError, match="meta device"):
        ours.to("meta")(torch.ones(2, 4, device="meta"))
    with pytest.raises(InputError, match="sparse"):
        ORTModule(nn.Linear(4, 3))(torch.ones(2, 4, 4).to_sparse())


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
def test_a_script_module_within():
    with pytest.raises(OptionError, match="submodule '0' is a ScriptModule"):
        ORTModule(nn.Sequential(torch.jit.script(nn.Linear(4, 4))))


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
def test_a_script_module_that_comes_later(ours):
    x = torch.ones(2, 4)
    before, plain = ours(x), ours[0]
    ours[0] = torch.jit.script(plain)
    with pytest.raises(CaptureError, match="submodule '0' is a ScriptModule"):
        ours(x)
    ours[0] = plain
    torch.testing.assert_close(ours(x), before)


def test_containers_are_indexed_through_it(ours):
    assert len(ours) == 2 and ours[0] is ours.module[0] and list(ours) == list(ours.module)
    ours(torch.ones(2, 4))
    ours[1] = nn.ReLU()
    assert torch.equal(ours(torch.ones(2, 4)), ours.module(torch.ones(2, 4)))
    assert ORTModule(nn.Linear(4, 3))
    with pytest.raises(TypeError, match="no len"):
        len(ORTModule(nn.Linear(4, 3)))


@pytest.mark.parametrize("use", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal])
def test_what_changes_the_class_of_the_wrapper_is_refused(use):
    ours = ORTModule(nn.Linear(4, 3))
    with pytest.raises(OptionError, match="an ORTModule cannot become a ParametrizedLinear") as refused:
        use(ours)
    assert "model.module" in refused.value.way_out
    assert type(ours) is ORTModule


class Explained(nn.Module):
    """Returns features, scores that follow from them, and what does not."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        features = torch.tanh(self.body(x))
        return features, self.head(features), self.body(x).square()


def test_an_output_that_is_to_retain_the_gradient_of_what_follows_from_it():
    """As class activation maps ask it of features. Eager's gradient passes through them; a graph's does not."""
    ours, x = ORTModule(Explained()), torch.randn(2, 4)
    features, scores, _ = ours(x)
    features.retain_grad()
    with pytest.raises(GradientError, match="'output_0' is to retain its gradient, and 'output_1' follows") as error:
        scores[0, 1].backward()
    assert "model.module" in str(error.value)
    features, scores, _ = ours.module(x)
    features.retain_grad()
    scores[0, 1].backward()
    assert features.grad.any()


def test_an_output_retains_its_gradient_where_nothing_follows_from_it():
    ours, x = ORTModule(Explained()), torch.randn(2, 4)
    gradients = []
    for model in (ours, ours.module):
        features, scores, squares = model(x)
        scores.retain_grad()
        features.retain_grad()
        (features.exp().sum() + squares.sum()).backward()
        gradients.append(features.grad)
        features, scores, _ = model(x)
        scores.retain_grad()
        (features.sum() + scores.exp().sum()).backward()
        gradients.append(scores.grad)
    torch.testing.assert_close(gradients[:2], gradients[2:])


class Losing(Explained):
    def forward(self, x):
        features = torch.tanh(self.body(x))
        return self.head(features).square().mean(), features


def test_an_output_beside_the_loss_that_is_to_retain_its_gradient():
    loss, features = ORTModule(Losing())(torch.randn(2, 4))
    features.retain_grad()
    with pytest.raises(GradientError, match="'output_1' is to retain its gradient, and 'output_0' follows"):
        loss.backward()
