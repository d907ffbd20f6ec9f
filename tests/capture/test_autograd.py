"""What a forward may do with autograd, autocast and random numbers: kept as eager has it, or refused with its line."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ontrain.capture import capture, validate
from ontrain.errors import CaptureError
from ontrain.graph import specialise
from ontrain.providers import get_provider
from ontrain.session.plans import make_plan
from ontrain.training.ortmodule import ORTModule
from tests.capture.harness import operators, run_captured

pytestmark = pytest.mark.sampled(4)


class Doubled(torch.autograd.Function):
    """Its backward is not that of its forward."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy


class Branching(Doubled):
    """Its backward chooses by a value, so that no graph holds it."""

    @staticmethod
    def backward(ctx, dy):
        if dy.norm() > 1:
            return dy.flip(0)
        return dy


class Writing(Doubled):
    """Changes its input where no trial of it comes to, and has a backward that is not that of its forward."""

    @staticmethod
    def forward(ctx, x):
        getattr(ctx, "mark" + "_dirty")(x)
        return x.mul_(3)


class Short(Doubled):
    """Forgets an argument in its backward."""

    @staticmethod
    def forward(ctx, x, strength):
        return x.sign() * strength


class Says(nn.Module):
    """A linear layer, and then whatever `rest` does to its result."""

    def __init__(self, rest):
        super().__init__()
        self.linear, self.rest = nn.Linear(4, 3), rest

    def forward(self, x):
        return self.rest(self.linear(x))


def hooked(y):
    y.register_hook(lambda dy: dy * 3)
    return y


def run_backward(y):
    y.sum().backward()
    return y


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (Branching.apply, "branches on the values"),
        (lambda y: Writing.apply(y * 1), r"autograd function .*Writing writes to its input"),
        (lambda y: Short.apply(y, 2.0), r"backward of .*Short returned 1 gradients, its forward took 2"),
        (hooked, "hook on a tensor's gradient"),
        (run_backward, "calls backward"),
    ],
)
def test_what_the_trace_would_lose_is_refused_with_its_line(rest, problem):
    with pytest.raises(CaptureError, match=problem) as caught:
        capture(Says(rest), (torch.randn(2, 4),))
    assert caught.value.source.startswith("test_autograd.py:")
    assert caught.value.way_out


class Swish(torch.autograd.Function):
    """Keeps its input instead of two intermediate results: its backward is the derivative of its forward."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return dy * (s + ctx.beta * x * s * (1 - s)), None


class Clipped(Swish):
    """Right near zero, and wrong far out."""

    @staticmethod
    def backward(ctx, dy):
        return Swish.backward(ctx, dy.where(ctx.saved_tensors[0].abs() < 20, 0))


def test_a_refusal_is_not_buried_under_what_torch_logs(capfd):
    with pytest.raises(CaptureError, match="must have same reduction dim"):
        capture(Says(torch.tanh), (torch.randn(2, 5),))
    with pytest.raises(CaptureError, match="branches on the values"):
        capture(Says(Branching.apply), (torch.randn(2, 4),))
    assert "".join(capfd.readouterr()) == ""
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled


def test_a_function_that_only_spells_out_its_derivative_is_captured():
    module = Says(lambda y: Swish.apply(y, 1.5))
    captured = capture(module, (torch.randn(2, 4),), dynamic=[{0: "n"}])
    assert operators(captured)["Sigmoid"] == 1
    x = torch.randn(5, 4)
    torch.testing.assert_close(run_captured(captured, (x,))[0], module(x))


class Reversed(torch.autograd.Function):
    """The identity, whose gradient is turned and scaled by a second argument, in the newer form."""

    @staticmethod
    def forward(x, strength):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.strength = inputs[1]

    @staticmethod
    def backward(ctx, dy):
        return -ctx.strength * dy, None


class Gated(torch.autograd.Function):
    """A product whose gradients are let through where the result is positive, doubled for one factor."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x * y > 0)
        return x * y

    @staticmethod
    def backward(ctx, dy):
        (passes,) = ctx.saved_tensors
        return dy * passes, 2 * dy * passes


class Backward(torch.autograd.Function):
    """Rounds its input; what flows back is `change` of the adjoint and the input."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.save_for_backward(x)
        ctx.change = change
        with torch.no_grad():
            return x.round()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        return ctx.change(dy, *ctx.saved_tensors), None


class Ordered(torch.autograd.Function):
    """Sorted rows by a matrix, where they came from, and their squares; one of two float results may go unused."""

    @staticmethod
    def forward(ctx, x, w, strength):
        ordered, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places, w)
        ctx.strength = strength
        return ordered @ w, places, ordered**2

    @staticmethod
    def backward(ctx, dy, _, dz):
        places, w = ctx.saved_tensors
        g = dy @ w.T + ctx.strength * dz
        return torch.zeros_like(g).scatter_add(-1, places, g), g.sum(0)[:, None].expand_as(w), None


class Spread(torch.autograd.Function):
    """Its gradient of the second argument has the first one's shape: autograd sums it."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias.round()

    @staticmethod
    def backward(ctx, dy):
        return dy.flip(0), dy


def largest(dy, x):
    top = dy.abs().topk(2, -1)
    return torch.zeros_like(dy).scatter(-1, top.indices, top.values) * x


class Scanned(torch.autograd.Function):
    """Both halves write to views of copies: sums from the left, and in backward from the right."""

    @staticmethod
    def forward(ctx, a, x):
        a, sums = a.clone().T, x.clone().T
        for at in range(1, sums.shape[0]):
            sums[at].add_(a[at] * sums[at - 1])
        ctx.save_for_backward(a.T, sums)
        return sums.T[:, :]

    @staticmethod
    def backward(ctx, dy):
        a, sums = ctx.saved_tensors
        a, adjoint = a.T, dy.clone().T
        for at in range(sums.shape[0] - 2, -1, -1):
            adjoint[at].add_(a[at + 1] * adjoint[at + 1])
        da = torch.zeros_like(sums)
        da[1:].add_(sums[:-1] * adjoint[1:])
        return da.T[:, :], 3 * adjoint.T[:, :]


class Boxed(torch.autograd.Function):
    """Takes its adjoints in a list that it may empty, where torch knows of such functions."""

    boxed_grads_call = True

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, *adjoints):
        return (adjoints[0].pop() if isinstance(adjoints[0], list) else adjoints[0]) * 5


class Vjp(torch.autograd.Function):
    """Has its backward under autograd's other name for it."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def vjp(ctx, dy):
        return dy * 5


class Masked(torch.autograd.Function):
    """Lets through what a mask of whole numbers leaves, and doubles its gradient."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, dy):
        (mask,) = ctx.saved_tensors
        return 2 * dy * mask, None


class Angle(torch.autograd.Function):
    """A small number, none beyond one, with a gradient near that of its forward."""

    @staticmethod
    def forward(ctx, x):
        y = 1e-5 * (1 - torch.acos(x) / torch.pi) ** 9
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy * y * 9 / 2


def ordered(y):
    product, places, squares = Ordered.apply(y, torch.eye(3, dtype=y.dtype) + y[:1].T, 3.0)
    return product + squares * places


OWN = {
    "straight through": Doubled.apply,
    "clipped by the input": lambda y: Clipped.apply(y, 1.5),
    "reversed": lambda y: Reversed.apply(y, 0.3),
    "under a mask": lambda y: Masked.apply(y, (y > -1).int()),
    "of a small number": lambda y: Angle.apply(y.tanh()) * 1e5,
    "two inputs": lambda y: Gated.apply(y.tanh(), y * 2),
    "called twice": lambda y: Reversed.apply(Doubled.apply(Reversed.apply(y, 0.3) * y), 4.0),
    "flips": lambda y: Backward.apply(y, lambda dy, x: dy.flip(0)) * y,
    "sorts": lambda y: Backward.apply(y, lambda dy, x: dy.sort(-1)[0]) * y,
    "sums": lambda y: Backward.apply(y, lambda dy, x: dy - dy.mean(-1, keepdim=True)) * y,
    "normalises": lambda y: Backward.apply(y, lambda dy, x: dy / dy.norm()) * y,
    "clips what is large": lambda y: Backward.apply(y, lambda dy, x: 0 * dy.clamp(-900, 900) + dy.sign()) * y,
    "keeps the largest": lambda y: Backward.apply(y, largest) * y,
    "several results": ordered,
    "one of several results": lambda y: Ordered.apply(y, torch.eye(3, dtype=y.dtype), 3.0)[0],
    "summed by autograd": lambda y: Spread.apply(y, y[0] * 2),
    "by its own result": lambda y: Backward.apply(Backward.apply(y, largest), lambda dy, x: dy.cumsum(-1)) * y,
    "under no_grad, too": lambda y: Doubled.apply(y) + y * _without_gradient(Doubled.apply, y),
    "without a gradient": lambda y: y * Backward.apply(torch.ones(3, dtype=y.dtype), None),
    "in a box": Boxed.apply,
    "in place": lambda y: Scanned.apply(y.tanh(), y),
    "a product of a vector and the Jacobian": Vjp.apply,
    "made in forward": lambda y: type("Made", (Doubled,), {}).apply(y),
    "forward of a base": lambda y: type("Heir", (Doubled,), {"forward": staticmethod(_squared)}).apply(y),
    "in a branch": lambda y: torch.cond(y.sum() > -1e9, lambda y: Doubled.apply(y) * 2, lambda y: y * 3, (y,)),
}


def _squared(ctx, x):
    return Doubled.forward(ctx, x) + x**2


def _without_gradient(function, y):
    with torch.no_grad():
        return function(y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rest", OWN.values(), ids=OWN)
def test_a_function_with_a_backward_of_its_own_has_it(rest):
    module = Says(rest).double()
    with torch.no_grad():
        module.linear.weight *= 8  # so that some are clipped
    ours, eager = ORTModule(module), copy.deepcopy(module)
    for rows in (3, 64):
        x = torch.randn(rows, 4, dtype=torch.float64)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [function(x) for function, x in zip((ours, eager), inputs, strict=True)]
        torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-14)
        for y in outputs:
            y.square().sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.linear.weight.grad, eager.linear.weight.grad, rtol=1e-12, atol=1e-12)
    assert ours.linear.weight.grad.any(), "nothing to compare"


@pytest.mark.parametrize("change", [lambda dy: dy.clamp(-50, 50), lambda dy: dy.where(dy.abs() > 1e-3, 0), torch.relu])
def test_a_derivative_that_only_some_adjoints_are_spared_is_no_derivative(change):
    class Almost(Swish):
        @staticmethod
        def backward(ctx, dy):
            return Swish.backward(ctx, change(dy))

    module = Says(lambda y: Almost.apply(y, 1.5))
    ours, eager = ORTModule(module), copy.deepcopy(module)
    x = torch.randn(5, 4)
    for size in (1e-4, -1.0, 1e3):
        for function in (ours, eager):
            (function(x) * size).sum().backward()
    torch.testing.assert_close(ours.linear.weight.grad, eager.linear.weight.grad)


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider"])
def test_a_plan_holds_of_such_a_function_only_what_it_needs(provider):
    module = Says(lambda y: Backward.apply(y, largest) * y)
    ours = ORTModule(module, provider=provider)
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), module(x))
    graph = capture(module, (x,)).model
    forward = make_plan(graph, (("x", (3, 4)),), lambda model: model).model
    assert not {"TopK", "Adjoint", "Through"} & {node.op_type for node in forward.graph}
    ours(x).sum().backward()
    mine = ours.linear.weight.grad.clone()
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(mine, module.linear.weight.grad)


def test_such_a_function_keeps_the_forward_of_infinite_numbers_and_its_own_afterwards():
    own = Doubled.forward
    ours = ORTModule(Says(Doubled.apply))
    x = torch.tensor([[torch.inf, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(ours(x), ours.module(x), equal_nan=True)
    assert Doubled.forward is own


def test_a_function_that_torch_calls_in_an_unknown_way_is_refused_and_nothing_else():
    # A torch that has its functions' class elsewhere, so that capture looks in vain.
    program = """
        import torch
        torch.autograd.function.FunctionMeta = type("FunctionMeta", (type,), {})
        from ontrain.capture import capture
        from ontrain.errors import CaptureError
        from tests.capture.test_autograd import Doubled, Says, Swish

        x = torch.randn(2, 4)
        assert capture(Says(torch.tanh), (x,)).model
        assert capture(Says(lambda y: Doubled.apply(y.detach())), (x,)).model
        for rest in (Doubled.apply, lambda y: Swish.apply(y, 1.5) * 2):
            try:
                capture(Says(rest), (x,))
            except CaptureError as error:
                print(error.problem)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert [line.split("autograd function ")[1].split(" in a way")[0].split(".")[-1] for line in lines] == [
        "Doubled",
        "Swish",
    ]


def test_a_function_of_what_takes_no_gradient_is_its_forward():
    captured = capture(Says(lambda y: Doubled.apply(y.detach())), (torch.randn(2, 4),))
    assert operators(captured)["Sign"] == 1


def test_torchs_own_functions_are_back_after_a_refusal():
    with pytest.raises(CaptureError):
        capture(Says(lambda y: Branching.apply(Doubled.apply(y))), (torch.randn(2, 4),))
    x = torch.ones(2, requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))


def test_a_reentrant_checkpoint_hides_nothing_from_the_gradient():
    module = Says(lambda y: checkpoint(torch.tanh, y, use_reentrant=True))
    captured = capture(module, (torch.randn(2, 4),))
    assert operators(captured)["Detach"] == 0
    x = torch.randn(2, 4)
    torch.testing.assert_close(run_captured(captured, (x,))[0], module(x))


class Mixed(nn.Module):
    """A product in half precision, a norm and a loss in single, as autocast chooses."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 6), nn.LayerNorm(6)

    def forward(self, x, labels):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.norm(self.linear(x))
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ self.linear.weight
            return nn.functional.cross_entropy(y, labels), y, z


def test_autocast_in_forward_casts_as_eager_does():
    module, call = Mixed(), (torch.randn(5, 8), torch.randint(6, (5,)))
    captured = capture(module, call)
    eager = module(*call)
    assert [v.dtype.name for v in captured.model.graph.outputs] == ["FLOAT", "BFLOAT16", "FLOAT"]
    assert [y.dtype for y in eager] == [torch.float32, torch.bfloat16, torch.float32]
    (product,) = (n for n in captured.model.graph if n.op_type == "MatMul" and n.outputs[0].dtype.name == "BFLOAT16")
    assert {v.dtype.name for v in product.inputs} == {"BFLOAT16"}
    validate(captured, module, call)


class Noisy(nn.Module):
    """The reparametrised sample of a variational autoencoder."""

    def forward(self, mean, log_variance):
        return mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)


def _run(module, tensors, *rngs):
    captured = capture(module, tensors)
    shapes = {name: tuple(t.shape) for name, t in zip(captured.input_names, tensors, strict=True)}
    provider = get_provider("TorchExecutionProvider")
    executable = provider.compile(specialise(captured.model, shapes), provider.create_state([]))
    feeds = dict(zip(captured.input_names, tensors, strict=True))
    return [copy.deepcopy(executable.run(feeds, rng=rng)[captured.output_names[0]]) for rng in rngs]


def test_random_numbers_follow_the_runs_stream():
    tensors = (torch.zeros(50, 40), torch.zeros(50, 40))
    first, again, other = _run(Noisy(), tensors, (3, 5), (3, 5), (3, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class Draws(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return self.draw(x)


SHARES = torch.tensor([0.1, 0.2, 0.7])

# What is drawn for zeros [200, 200], and the mean and the deviation of its distribution.
DRAWS = {
    "normal": (torch.randn_like, 0, 1),
    "uniform": (torch.rand_like, 0.5, 12**-0.5),
    "shifted": (lambda x: torch.normal(x + 2, 3.0), 2, 3),
    "integers": (lambda x: torch.randint_like(x, 2, 5), 3, (2 / 3) ** 0.5),
    "coin": (lambda x: torch.bernoulli(x + 0.3), 0.3, 0.21**0.5),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
    "classes": (lambda x: torch.multinomial(SHARES, 40000, replacement=True).float(), 1.6, 0.44**0.5),
    "places": (lambda x: torch.multinomial(SHARES + x.reshape(-1, 1), 1).float(), 1.6, 0.44**0.5),
    "gumbel": (lambda x: nn.functional.gumbel_softmax(x[:, :2], hard=True), 0.5, 0.5),
    "order": (lambda x: torch.randperm(40000).float(), 19999.5, (40000**2 / 12) ** 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn_has_its_distribution(name):
    draw, mean, deviation = DRAWS[name]
    (sample,) = _run(Draws(draw), (torch.zeros(200, 200),), (1, 2))
    # Four standard errors of the mean; the deviation of these distributions is as sure within a tenth.
    assert abs(float(sample.mean()) - mean) < 4 * deviation / sample.numel() ** 0.5 + 1e-6
    assert float(sample.std()) == pytest.approx(deviation, rel=0.1)


def test_instance_norm_keeps_its_statistics():
    module = nn.InstanceNorm2d(3, track_running_stats=True, momentum=0.3)
    x = torch.randn(2, 3, 4, 5)
    y, updates = run_captured(capture(module, (x,)), (x,))
    torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-5)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(updates[name], module.state_dict()[name])
