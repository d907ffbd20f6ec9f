"""`torch.compile(model, backend="ontrain")` against the same model in eager PyTorch: values, gradients, statistics."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.errors import CaptureError, OptionError
from ontrain.training.compiled import ontrain
from ontrain.training.ortmodule import ORTModule

KEPT = {"options": {"fallback": "FALLBACK_DISABLE"}}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Breaking(nn.Module):
    """Branches on a value, reads a size, scales by a number, and keeps statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x, scale=2.0):
        h = torch.tanh(self.norm(self.first(x))) * scale
        if h.sum() > 0:
            h = h * x.shape[0]
        return F.softmax(self.last(h), -1) + h.mean()


def twins(model):
    torch.manual_seed(0)
    ours = model().double()
    return ours, copy.deepcopy(ours)


def assert_a_step_is_eagers(compiled, ours, eager, *args, **kwargs):
    for module in (ours, eager):
        module.zero_grad()
    results = [compiled(*args, **kwargs), eager(*args, **kwargs)]
    for result in results:
        result.square().sum().backward()
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-11)
    for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_model_that_breaks_is_eager_at_all_sizes_and_numbers(dynamic):
    ours, eager = twins(Breaking)
    compiled = torch.compile(ours, backend=ontrain, dynamic=dynamic, **KEPT)
    for rows in (3, 5, 6):
        for scale in (2.0, -3.0):
            x = torch.randn(rows, 4, dtype=torch.float64)
            assert_a_step_is_eagers(compiled, ours, eager, x, scale)


class Layer(nn.Module):
    """A layer that breaks, so that TorchDynamo takes the code of all layers of a network for one."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        h = torch.tanh(self.norm(self.first(x)))
        if h.isnan().any():
            return x
        return x + self.last(torch.sigmoid(h) * h) * 0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [None, True])
def test_layers_that_share_a_piece_keep_their_own_parameters_and_statistics(dynamic):
    ours, eager = twins(lambda: nn.Sequential(Layer(), Layer(), Layer()))
    compiled = torch.compile(ours, backend=ontrain, dynamic=dynamic, **KEPT)
    for rows in (5, 6):
        for _ in range(2):
            assert_a_step_is_eagers(compiled, ours, eager, torch.randn(rows, 4, dtype=torch.float64))


def test_one_function_for_two_modules_trains_each():
    first, second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    eager = [copy.deepcopy(module) for module in (first, second)]
    compiled = torch.compile(lambda module, x: torch.tanh(module(x)).square().sum(), backend=ontrain, **KEPT)
    x = torch.randn(3, 4, dtype=torch.float64)
    for ours, theirs in zip((first, second), eager, strict=True):
        compiled(ours, x).backward()
        torch.tanh(theirs(x)).square().sum().backward()
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(first.weight.grad, eager[0].weight.grad, rtol=1e-9, atol=1e-12)


class Recurrent(nn.Module):
    """Keeps its state as an attribute, which each call replaces, and statistics that are written in place."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x):
        y = torch.tanh(self.norm(self.layer(x)) + self.state)
        self.state = y.detach().mean(0)
        return y


def test_a_state_that_each_call_replaces_is_handed_over_and_not_captured_anew():
    ours, eager = twins(Recurrent)
    engines = []

    def counted(*args, **kwargs):
        run = ontrain(*args, **kwargs)
        engines.append(run)
        return run

    compiled = torch.compile(ours, backend=counted, **KEPT)
    for step in range(6):
        x = torch.randn(5, 4, dtype=torch.float64)
        assert_a_step_is_eagers(compiled, ours, eager, x)
        models = [model for run in engines for model in run._models.values()]
        if step == 3:
            settled = {id(model._engine) for model in models}
    assert {id(model._engine) for model in models} == settled


def test_statistics_that_are_replaced_again_and_again_stay_right():
    ours, eager = twins(Recurrent)
    compiled = torch.compile(ours, backend=ontrain)
    for _ in range(5):
        assert_a_step_is_eagers(compiled, ours, eager, torch.randn(5, 4, dtype=torch.float64))
        for module in (ours, eager):
            module.norm.running_mean = module.norm.running_mean.clone()


def test_parameters_that_functional_call_replaces_are_followed():
    ours = Layer().double()
    compiled = torch.compile(
        lambda weights, x: torch.func.functional_call(ours, weights, (x,)), backend=ontrain, **KEPT
    )
    for _ in range(3):
        weights = {name: torch.randn_like(p).requires_grad_() for name, p in ours.named_parameters()}
        x = torch.randn(5, 4, dtype=torch.float64)
        computed, expected = (
            torch.autograd.grad(call(weights, x).square().sum(), [*weights.values()])
            for call in (compiled, lambda weights, x: torch.func.functional_call(ours, weights, (x,)))
        )
        torch.testing.assert_close(computed, expected, rtol=1e-8, atol=1e-11)


class Writing(nn.Module):
    """A piece writes through a view to a tensor that the next one reads."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = torch.sin(self.first(x))
        if h.isnan().any():
            return x
        h[:, 0] *= 3.0
        y = torch.sigmoid(self.last(h) + 1.0)
        if y.isnan().any():
            return x
        return self.last(torch.sigmoid(h) * y) + h


def test_a_tensor_that_one_piece_writes_to_is_read_so_by_the_next():
    ours, eager = twins(Writing)
    x = torch.randn(5, 4, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"writes to one of its inputs(.|\n)*h\[:, 0\] \*= 3.0"):
        assert_a_step_is_eagers(torch.compile(ours, backend=ontrain), ours, eager, x)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="writes to one of its inputs"):
        torch.compile(ours, backend=ontrain, **KEPT)(x)


def test_it_is_found_by_its_name():
    assert "ontrain" in torch._dynamo.list_backends()
    ours, eager = twins(lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)))
    compiled = torch.compile(ours, backend="ontrain", **KEPT)
    assert_a_step_is_eagers(compiled, ours, eager, torch.randn(3, 4, dtype=torch.float64))


def test_gradients_pass_through_pieces_to_the_input():
    ours, eager = twins(Breaking)
    compiled = torch.compile(ours, backend=ontrain, **KEPT)
    inputs = [torch.randn(5, 4, dtype=torch.float64, requires_grad=True)]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    for module, x in zip((compiled, eager), inputs, strict=True):
        module(x).square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-8, atol=1e-11)


def test_training_with_an_optimizer_is_eagers():
    ours, eager = twins(Breaking)
    compiled = torch.compile(ours, backend=ontrain, **KEPT)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.05) for module in (ours, eager)]
    x, losses = torch.randn(8, 4, dtype=torch.float64), []
    for _ in range(10):
        losses.append([])
        for module, optimizer in zip((compiled, eager), optimizers, strict=True):
            loss = (module(x) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(torch.tensor(losses)[:, 0], torch.tensor(losses)[:, 1], rtol=1e-9, atol=0)
    assert losses[-1][0] < losses[0][0]


def test_evaluation_without_gradients_is_eagers():
    ours, eager = twins(Breaking)
    ours.eval(), eager.eval()
    compiled = torch.compile(ours, backend=ontrain, **KEPT)
    x = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-9, atol=1e-12)


def test_a_language_model_with_its_loss_is_eagers():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    ours, eager = twins(lambda: GPT2LMHeadModel(config))
    compiled = torch.compile(ours, backend=ontrain, dynamic=True, **KEPT)
    for rows, length in ((2, 7), (3, 9)):
        ids = torch.randint(0, 50, (rows, length))
        for module in (ours, eager):
            module.zero_grad()
        results = [module(input_ids=ids, labels=ids) for module in (compiled, eager)]
        for result in results:
            result.loss.backward()
        torch.testing.assert_close(results[0].logits, results[1].logits)
        for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-7, atol=1e-10)


class Unknown(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y.detach().view(torch.int32).amin() + y.tanh()  # halves of the numbers' bits


def test_a_piece_that_is_refused_is_run_by_pytorch_and_said_so():
    ours, eager = twins(lambda: Unknown(4, 4))
    compiled = torch.compile(ours, backend=ontrain)
    x = torch.randn(4, 4, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"PyTorch answers .*view"):
        assert_a_step_is_eagers(compiled, ours, eager, x)
    torch._dynamo.reset()
    with pytest.raises(CaptureError, match="view"):
        torch.compile(ours, backend=ontrain, **KEPT)(x)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"mode": "reduce-overhead"}, "no mode 'reduce-overhead'"), ({"options": {"trace.enabled": True}}, "no option")],
)
def test_what_the_backend_does_not_have_is_refused(arguments, said):
    compiled = torch.compile(nn.Linear(4, 4), backend=ontrain, **arguments)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=said) as raised:
        compiled(torch.ones(2, 4))
    assert isinstance(raised.value.inner_exception, OptionError)


def test_an_ortmodule_that_allows_breaks_says_where_it_breaks():
    ours, eager = twins(Breaking)
    model = ORTModule(ours, breaks="allow")
    x = torch.randn(5, 4, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"Breaking runs in \d+ graphs(.|\n)*if h.sum\(\) > 0"):
        assert_a_step_is_eagers(model, ours, eager, x)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* runs in")
        assert_a_step_is_eagers(model, ours, eager, x * 2, -1.0)


def test_an_ortmodule_that_allows_breaks_is_one_graph_where_it_can_be():
    ours, eager = twins(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    model = ORTModule(ours, breaks="allow")
    assert_a_step_is_eagers(model, ours, eager, torch.randn(3, 4, dtype=torch.float64))
    assert model._pieces is None and model._engine.captures == 1


class Cutting(nn.Linear):
    """Cuts as many columns as a value says: a capture holds that, a plan does not know the size."""

    def forward(self, x):
        count = int(x[0, 0].abs().item()) + 1
        torch._check(count >= 1)
        torch._check(count <= 4)
        return (super().forward(x)[:, :count].cumsum(1) * torch.arange(4)[:count]).sum()


def test_what_a_plan_refuses_runs_in_pieces_where_breaks_are_allowed():
    ours, eager = twins(lambda: Cutting(4, 4))
    model = ORTModule(ours, breaks="allow")
    x = torch.tensor([[2.0, 0.5, -1.0, 0.3], [0.1, 0.2, 0.3, -0.4]], dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"Cutting runs in \d+ graph"):
        assert_a_step_is_eagers(model, ours, eager, x)
    assert_a_step_is_eagers(model, ours, eager, x / 2)


class Drawing(nn.Linear):
    def forward(self, x):
        return super().forward(x) if torch.rand(4).sum() < 2 else super().forward(-x)


def test_breaks_are_allowed_or_refused():
    with pytest.raises(OptionError, match="breaks is 'yes'"):
        ORTModule(nn.Linear(2, 2), breaks="yes")
    drawing = Drawing(4, 4)
    with pytest.raises(CaptureError, match='breaks="allow"'):
        ORTModule(drawing)(torch.randn(3, 4))
    with pytest.warns(UserWarning, match="breaks|pieces"):
        assert ORTModule(drawing, breaks="allow")(torch.randn(3, 4)).shape == (3, 4)


def test_a_derivative_inside_a_function_without_gradients_is_that_of_eager():
    class Slope(torch.autograd.Function):
        """As solvers of differential equations have it: forward differentiates, and records nothing."""

        @staticmethod
        def forward(ctx, x, weight):
            with torch.enable_grad():
                x = x.detach().clone().requires_grad_()
                y = ((x @ weight).tanh() * x.exp()).sin().sum(1)
                (slope,) = torch.autograd.grad(y.sum(), x)
            ctx.save_for_backward(slope)
            return slope * 2

        @staticmethod
        def backward(ctx, dy):
            (slope,) = ctx.saved_tensors
            return dy * slope, None

    def run(x, weight):
        return Slope.apply(x, weight).square().sum()

    x, weight = torch.randn(4, 3, dtype=torch.double, requires_grad=True), torch.randn(3, 3, dtype=torch.double)
    wanted = torch.autograd.grad(run(x, weight), x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(run, backend="ontrain")(x, weight)
    torch.testing.assert_close(torch.autograd.grad(compiled, x), wanted)
