"""Arguments in every form that forward takes them, and what a call may not be."""

import functools
import io

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError, InputError, OptionError
from ontrain.training import ORTTrainer
from ontrain.training.optim import SGDConfig
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import Perceptron, assert_same_gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, a, b=None, /, c=None, *rest, scale=1.0, mode="sum", **named):
        y = self.linear(a)
        for tensor in (b, c, *rest, *(named[key] for key in sorted(named))):
            if tensor is not None:
                y = y + tensor
        return (y.sum() if mode == "sum" else y.mean()) * scale


def t():
    return torch.randn(4, 3, dtype=torch.float64)


A, B, C, D, E = (torch.randn(4, 3, dtype=torch.float64) for _ in range(5))
CALLS = {
    "one": lambda m: m(A),
    "positional": lambda m: m(A, B, C),
    "keyword": lambda m: m(A, c=C),
    "none-first": lambda m: m(A, None, C),
    "rest": lambda m: m(A, B, C, D, E),
    "named": lambda m: m(A, x=D, y=E),
    "named-reversed": lambda m: m(A, y=E, x=D),
    "mixture": lambda m: m(A, B, C, D, scale=2.0, z=E),
    "mode": lambda m: m(A, mode="mean"),
    "default-given": lambda m: m(A, scale=1.0, mode="sum"),
    "tensor-scale": lambda m: m(A, scale=torch.tensor(3.0, dtype=torch.float64)),
    "same-tensor-twice": lambda m: m(A, A),
    "two-tensors-there": lambda m: m(A, B),
}


def test_positional_and_keyword_arguments_in_any_mixture():
    ours, eager = pair(Many().double())
    for name, call in CALLS.items():
        for module in (ours, eager):
            module.zero_grad()
            call(module).backward()
        assert_same_gradients(ours, eager, **DOUBLE)
        torch.testing.assert_close(call(ours), call(eager), msg=name, **DOUBLE)


def test_how_an_argument_is_passed_makes_no_new_capture():
    ours, _ = pair(Perceptron())
    x, scale = torch.randn(4, 6), torch.randn(4, 8)
    ours(x, scale), ours(x, scale=scale), ours(scale=scale, x=x), ours(x=x, scale=scale)
    assert ours._engine.captures == 1
    ours(x), ours(x, None), ours(x=x, scale=None)
    assert ours._engine.captures == 2


def test_nested_arguments():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, batch, options):
            x, (y, z) = batch["x"], batch["more"]
            return self.linear(x + y * options["weight"]) + z[0]

    ours, eager = pair(Nested().double())
    for weight in (1.0, 2.0):
        batch = {"x": t(), "more": (t(), [t()])}
        for module in (ours, eager):
            module.zero_grad()
            module(batch, {"weight": weight}).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)


def test_inputs_of_every_layout():
    ours, eager = pair(Perceptron().double().eval())
    base = torch.randn(12, 10, dtype=torch.float64)
    for x in (base[:5, :6], base[::2, 4:], base.t()[:5, :6], base[:1, :6].expand(5, 6), base[:0, :6]):
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)


def test_gradients_to_some_inputs():
    ours, eager = pair(Perceptron().double())
    for wants in ((True, False), (False, True), (True, True)):
        grads = []
        x, scale = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
        for module in (ours, eager):
            leaves = [a.clone().requires_grad_(w) for a, w in zip((x, scale), wants, strict=True)]
            module(*leaves).square().sum().backward()
            grads.append([g.grad for g in leaves])
        for have, want in zip(*grads, strict=True):
            assert (have is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(have, want, **DOUBLE)


def test_a_number_that_changes_warns():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x, factor):
            return self.linear(x) * factor

    ours = ORTModule(Scaled())
    with pytest.warns(UserWarning, match="Pass numbers that change as tensors"):
        for i in range(9):
            ours(torch.randn(3, 2), i / 2)


def test_equal_numbers_of_other_types_are_other_numbers():
    class Scaled(nn.Module):
        def forward(self, x, factor):
            return x * factor

    ours, eager = pair(Scaled())
    x = torch.tensor([True, False])
    for factor in (1, 1.0, True, 1):
        expected = eager(x, factor)
        assert ours(x, factor).dtype == expected.dtype
        torch.testing.assert_close(ours(x, factor), expected)


@pytest.mark.parametrize("call", [lambda m: m(), lambda m: m(A, A, A), lambda m: m(A, nonsense=A)])
def test_arguments_that_do_not_fit(call):
    with pytest.raises(InputError, match="do not fit forward"):
        call(ORTModule(Perceptron()))


def test_an_index_out_of_range_names_input_and_bound():
    ours = ORTModule(nn.Embedding(5, 3))
    ours(torch.tensor([0, 4]))
    with pytest.raises(InputError, match="holds index 7, allowed is 0 to 4"):
        ours(torch.tensor([0, 7]))
    ours(torch.tensor([0, 4])).sum().backward()


def test_a_module_on_another_device_than_its_input():
    ours = ORTModule(Perceptron())
    with pytest.raises(InputError, match="different devices") as error:
        ours(torch.empty(4, 6, device="meta"))
    assert ".to(" in error.value.way_out
    ours(torch.randn(4, 6))
    with pytest.raises(InputError, match="different devices|is on meta"):
        ours(torch.empty(4, 6, device="meta"))


def test_a_wrapped_module_wrapped_again():
    ours = ORTModule(Perceptron())
    with pytest.raises(OptionError, match="ORTModule already"):
        ORTModule(ours)
    with pytest.raises(OptionError, match="submodule '0' is an ORTModule"):
        ORTModule(nn.Sequential(ours))
    with pytest.raises(OptionError, match="DataParallel"):
        ORTModule(nn.DataParallel(Perceptron()))
    with pytest.raises(OptionError, match="not a function"):
        ORTModule(lambda x: x)


def test_a_module_that_branches_on_what_it_computes_of_random_numbers_names_its_line():
    class Branching(nn.Module):
        def forward(self, x):
            if torch.rand(4).sum() > 2:
                return x
            return -x

    with pytest.raises(CaptureError) as error:
        ORTModule(Branching())(torch.randn(3))
    assert "if torch.rand(4).sum() > 2" in str(error.value) and "torch.where" in str(error.value)


def test_a_failed_call_leaves_the_module_usable():
    ours, eager = pair(Perceptron().double())
    x = torch.randn(4, 6, dtype=torch.float64)
    ours(x)
    with pytest.raises((InputError, CaptureError)):
        ours(torch.randn(4, 7, dtype=torch.float64))
    eager(x)
    for module in (ours, eager):
        module(x).square().sum().backward()
    assert_same_gradients(ours, eager, **DOUBLE)


def test_images_are_captured_with_their_size_first_and_for_all_sizes_when_another_comes():
    ours, eager = pair(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double())
    captures = []
    for batch, size in [(2, 16), (4, 16), (2, 20), (3, 33), (2, 16)]:
        x = torch.randn(batch, 3, size, size, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-9, atol=1e-12)
        captures.append(ours._engine.captures)
    assert captures == [1, 1, 2, 2, 2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("form", "layer", "expected"),
    [
        ((1, 16, 16), nn.Conv2d(1, 4, 3), [1, 1, 2, 2]),  # a grey image
        ((8, 16, 16), nn.Conv2d(8, 4, 3), [1, 1, 2, 2]),  # a square of many channels, as diffusion models take them
        ((8, 16, 12), nn.Conv2d(8, 4, 3), [1, 1, 1, 1]),  # rows of heads, as a cache of keys has them
        ((6, 4, 6, 6), nn.Conv3d(6, 4, 3), [1, 1, 2, 2]),  # a volume
    ],
)
def test_what_has_the_form_of_images_keeps_its_sides_until_others_come(form, layer, expected):
    ours, eager = pair(nn.Sequential(layer, nn.ReLU(), nn.Flatten(2)).double())
    captures = []
    for batch, more in [(2, 0), (4, 0), (2, 2), (3, 5)]:
        x = torch.randn(batch, *form[:-1], form[-1] + more, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-9, atol=1e-12)
        captures.append(ours._engine.captures)
    assert captures == expected


def test_images_one_by_one_leave_their_sides_as_they_are_when_a_batch_comes():
    ours, eager = pair(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(2)).double())
    for batch in (1, 2, 3):
        x = torch.randn(batch, 3, 16, 20, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-9, atol=1e-12)
    shapes = [list(entry.captured.model.graph.inputs[0].shape) for entry in ours._engine.entries]
    assert len(shapes) == 2 and all(shape[1:] == [3, 16, 20] for shape in shapes)


class Masked(nn.Module):
    def forward(self, x, mask):
        return (x @ x.mT + mask).softmax(-1) @ x


def test_a_mask_of_one_head_varies_with_the_length_of_what_it_masks():
    ours, eager = pair(Masked().double())
    for length in (16, 24, 33):
        x, mask = torch.randn(2, 1, length, 8).double(), torch.zeros(2, 1, length, length).double()
        torch.testing.assert_close(ours(x[:, 0], mask[:, 0]), eager(x[:, 0], mask[:, 0]), rtol=1e-9, atol=1e-12)
        x = x[:, 0]
        torch.testing.assert_close(ours(x, mask), eager(x, mask), rtol=1e-9, atol=1e-12)
    assert ours._engine.captures == 2  # one of each form


class Scaled(nn.Module):
    """Hooks and decorators of its forward see what a call gives by position, and what by name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, a, scale=None):
        y = self.linear(a)
        return (y if scale is None else y * scale).sum()


def doubled(_, args):
    return (args[0] * 2, *args[1:])


def doubled_by_name(_, args, kwargs):
    return tuple(2 * a for a in args), {name: 3 * value for name, value in kwargs.items()}


def added_to(_, args, output):
    return output + sum(a.sum() for a in args)


HOOKS = {
    "before": lambda module: module.register_forward_pre_hook(doubled),
    "before, with names": lambda module: module.register_forward_pre_hook(doubled_by_name, with_kwargs=True),
    "after": lambda module: module.register_forward_hook(added_to),
    "after, always": lambda module: module.register_forward_hook(added_to, always_call=True),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:the forward hooks of submodule '' run while")
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_of_the_module_gets_by_position_what_the_call_gives_by_position(hook):
    ours, eager = pair(Scaled().double())
    HOOKS[hook](ours.module)
    HOOKS[hook](eager)
    for call in (lambda m: m(A), lambda m: m(A, C), lambda m: m(A, scale=C), lambda m: m(C, C)):
        for module in (ours, eager):
            module.zero_grad()
            call(module).backward()
        assert_same_gradients(ours, eager, **DOUBLE)
        torch.testing.assert_close(call(ours), call(eager), **DOUBLE)


def counted(forward):
    """A decorator as libraries have them: its result depends on how many arguments come by position."""

    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        return forward(self, *args, **kwargs) * len(args)

    return wrapper


class Counted(Scaled):
    forward = counted(Scaled.forward)


def test_a_decorator_of_forward_gets_by_position_what_the_call_gives_by_position():
    ours, eager = pair(Counted().double())
    for call in (lambda m: m(A), lambda m: m(A, C), lambda m: m(A, scale=C)):
        torch.testing.assert_close(call(ours), call(eager), **DOUBLE)


@pytest.mark.filterwarnings("ignore:the forward hooks of submodule '' run while")
def test_a_trainer_hands_inputs_to_hooks_by_position():
    model, seen = Scaled(), io.StringIO()
    model.register_forward_pre_hook(lambda _, args: print(len(args), file=seen))
    description = {"inputs": [("a", ["rows", 3]), ("scale", ["rows", 3])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(model, description, SGDConfig(lr=0.1), options={"device": {"id": "cpu"}})
    trainer.train_step(A.float(), C.float())
    assert set(seen.getvalue().split()) == {"2"}


class AsksForStrides(nn.Module):
    """Its result depends on how the numbers of its input lie in memory."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * (x.stride(-1) + (2 if x.is_contiguous() else 3))


def test_a_forward_that_asks_for_strides_is_captured_for_each_order_of_dimensions():
    ours, eager = pair(AsksForStrides())
    for x in (torch.randn(2, 4), torch.randn(4, 3).T, torch.randn(5, 4), torch.randn(3, 8)[:, :4], torch.randn(4, 2).T):
        torch.testing.assert_close(ours(x), eager(x))


class Rows(nn.Module):
    """Its result depends on how far apart the rows and columns of its input lie."""

    def forward(self, x):
        return x * x.stride(0) + x.stride(1)


def test_a_forward_that_asks_for_strides_is_captured_for_rows_farther_apart():
    ours, wide = ORTModule(Rows()), torch.randn(6, 8)
    for x in (wide[:3, :4], wide[::2, :4], wide.T[:4], wide[:5, :4], wide[:1].expand(3, 8)):
        torch.testing.assert_close(ours(x), Rows()(x))


class Two(nn.Module):
    """Asks whether its arguments are one tensor, and writes to the first."""

    def __init__(self, writes):
        super().__init__()
        self.layer, self.writes = nn.Linear(4, 3), writes

    def forward(self, x, y, last=None):
        if self.writes:
            x.mul_(2)
        return self.layer(x) * (2 if x is y else 3) + self.layer(y).exp() * (2 if last is y else 3)


@pytest.mark.parametrize("writes", [False, True])
def test_arguments_that_are_one_tensor(writes):
    ours, eager = pair(Two(writes).double())
    for places in ((0, 1), (0, 0), (0, 1, 1), (0, 0, 0), (0, 1, 0), (1, 0), (1, 1)):
        drawn = torch.randn(2, 3, 4, dtype=torch.float64)
        outcomes = []
        for model in (ours, eager):
            tensors = [t.clone().requires_grad_(not writes) for t in drawn]
            model.zero_grad()
            result = model(*(tensors[place] for place in places))
            result.square().sum().backward()
            outcomes.append((result, tensors, [t.grad for t in tensors], [p.grad for p in model.parameters()]))
        torch.testing.assert_close(*outcomes)


class OverZero(nn.Module):
    def forward(self, x, zero: float):
        return x / torch.full((1,), zero)


def test_zeros_of_both_signs_have_graphs_of_their_own():
    ours, x = ORTModule(OverZero()), torch.ones(2)
    for zero in (0.0, -0.0, 0.0):
        torch.testing.assert_close(ours(x, zero), OverZero()(x, zero), rtol=0, atol=0)
