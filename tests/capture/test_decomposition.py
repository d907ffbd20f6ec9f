"""What has no translation is written in other operators; torch's composites are looked up once for many programs."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn
from torch.export import exported_program
from torch.nn import functional

from ontrain.capture import apart, capture, decomposition, program
from ontrain.capture.aten import aten
from ontrain.capture.aten.registry import table
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.capture.harness import operators, run_captured
from tests.training.ortmodule.networks import assert_same_gradients, pair


class Calls(nn.Module):
    """A function of one tensor as a module, with a linear layer behind it, which torch would take apart."""

    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(self.function(x))


def assert_gradients_are_eagers(module, *shapes):
    """Of parameters and of the input, for batches of these shapes."""
    ours, eager = pair(module)
    for shape in shapes:
        x = torch.randn(shape, dtype=torch.float64)
        leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
        for module, leaf in zip((ours, eager), leaves, strict=True):
            module.zero_grad()
            module(leaf).square().sum().backward()
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=1e-9, atol=1e-9)


def _hardshrink(x):
    return functional.hardshrink(x, 0.3)


def _signs(x):
    return x + x.clone().sgn_()


def _written_through_a_copy(x):
    y = x.clone()
    y.reshape(-1)[1:3] = 0
    return y


@pytest.mark.parametrize("function", [_signs, _written_through_a_copy])
def test_torch_lists_its_composites_once_for_many_programs(function, monkeypatch):
    listed = []
    collect = exported_program._collect_all_valid_cia_ops
    x = torch.randn(2, 3)
    capture(Calls(function), (x,))
    monkeypatch.setattr(exported_program, "_collect_all_valid_cia_ops", lambda: listed.append(1) or collect())
    module = Calls(function)
    captured = capture(module, (x,))
    assert not listed
    assert operators(captured)["Transpose"] + operators(captured)["Gemm"] == 1  # of the layer, which stays whole
    torch.testing.assert_close(run_captured(captured, (x,))[0], module(x))


def _weights_of_experts(x):
    weights, experts = x.softmax(-1).topk(2)
    weights /= weights.sum(-1, keepdim=True)
    return x + weights.gather(1, experts.clamp(max=1))[:, :1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.special.logit(x.sigmoid(), 0.3) + torch.logit(x.sigmoid()),
        lambda x: x * torch.isin((x * 2).long(), torch.tensor([[0, 1], [5, 7]])),
        lambda x: x * torch.isin((x * 2).long(), torch.tensor(1), invert=True),
        lambda x: x * torch.isin((x * 2).long(), torch.tensor([], dtype=torch.int64)),
        lambda x: torch.subtract(torch.multiply(x, x), torch.negative(x)).multiply(3).subtract_(x, alpha=2),
        lambda x: torch.where(torch.greater(x, 0) & torch.less_equal(x, 1), torch.absolute(x), torch.arctan(x)),
        lambda x: x * x.greater_equal(0.1) + x * x.not_equal(x[0]) + x * torch.less(x, x.flip(0)),
        lambda x: torch.arctan2(x, x.flip(0)) + torch.arcsinh(x) + torch.arctanh(x.tanh() / 2),
        lambda x: torch.arcsin(x.tanh() / 2) + torch.arccos(x.tanh() / 2) + torch.arccosh(x.abs() + 2),
    ],
    ids=["logit", "among few", "not the number", "among none", "second names of products and differences",
         "second names of comparisons", "of comparisons with numbers", "of functions", "of inverses"],
)  # fmt: skip
def test_what_detectors_ask_and_second_names_have_no_program_taken_apart(function, monkeypatch):
    apart = []
    own = program.decomposed
    monkeypatch.setattr(program, "decomposed", lambda exported: apart.append(1) or own(exported))
    assert_gradients_are_eagers(Calls(function).double(), (2, 3), (4, 3))
    assert not apart


def test_a_write_to_one_result_of_several_has_no_program_traced_again(monkeypatch):
    traced = []
    own = program.functional
    monkeypatch.setattr(program, "functional", lambda exported: traced.append(1) or own(exported))
    module, x = Calls(_weights_of_experts), torch.randn(2, 3)
    captured = capture(module, (x,))
    assert not traced
    torch.testing.assert_close(run_captured(captured, (x,))[0], module(x))


def test_another_thread_sees_all_composites_meanwhile(monkeypatch):
    seen = []

    def function(x):
        thread = threading.Thread(target=lambda: seen.append(len(exported_program._collect_all_valid_cia_ops())))
        thread.start()
        thread.join()
        return _signs(x)

    capture(Calls(_signs), (torch.randn(2, 3),))  # the first one loads libraries that bring operators
    everything = len(exported_program._collect_all_valid_cia_ops())
    rewrite = torch.export.ExportedProgram.run_decompositions

    def rewritten(program, *args):
        function(torch.ones(1))
        seen.append(len(exported_program._collect_all_valid_cia_ops()))
        return rewrite(program, *args)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", rewritten)
    capture(Calls(_signs), (torch.randn(2, 3),))
    other, own = seen
    assert other == everything and 0 < own < everything


def test_a_composite_of_a_library_is_taken_apart_until_it_has_a_translation():
    library = torch.library.Library("ontrain_tests_decomposition", "DEF")
    library.define("twice_less_one(Tensor x) -> Tensor")
    library.impl("twice_less_one", lambda x: _hardshrink(x) * 2 - 1, "CompositeImplicitAutograd")
    module, x = Calls(torch.ops.ontrain_tests_decomposition.twice_less_one), torch.randn(2, 3)
    apart = capture(module, (x,))
    torch.testing.assert_close(run_captured(apart, (x,))[0], module(x))
    name = "ontrain_tests_decomposition::twice_less_one"
    try:
        aten(name)(lambda op, x: op.Sub(op.Mul(x, 2.0), 1.0))
        whole = capture(module, (x,))
        assert operators(whole)["Sub"] == 1 and len(whole.model.graph) < len(apart.model.graph)
    finally:
        table.pop(name)


class Experts(nn.Module):
    """Rows go to experts whose numbers are read off the rows of what `nonzero` gives."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.weight = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x):
        chosen = functional.one_hot(self.router(x).argmax(-1), 3)
        y = torch.zeros_like(x)
        for row in (chosen.sum(0) > 0).nonzero():
            index = int(row.item())
            (places,) = torch.where(chosen[:, index])
            if index < 2:
                y = y.index_add(0, places, x[places] @ self.weight[index])
        return y.sum()


def test_a_number_is_read_off_a_row_whose_stride_follows_from_values():
    ours, eager = pair(Experts().double())
    for seed in range(3):
        x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for module in (ours, eager):
            module.zero_grad()
        torch.testing.assert_close(ours(x), eager(x))
        ours(x).backward()
        eager(x).backward()
        assert_same_gradients(ours, eager, rtol=1e-10, atol=1e-12)


class Twice(nn.Module):
    """A module in two places, whose statistics therefore have two names, and an operator that has no translation."""

    def __init__(self, persistent):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.float64)
        if not persistent:
            for name in ("running_mean", "running_var"):
                self.norm.register_buffer(name, getattr(self.norm, name), persistent=False)
        self.inner = nn.Sequential(self.norm, self.layer)

    def forward(self, x):
        return _hardshrink(self.inner(self.norm(x)))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_normalisation_in_two_places_is_rewritten(persistent):
    ours, eager = pair(Twice(persistent))
    for size in (3, 5):
        x = torch.randn(size, 4, dtype=torch.float64)
        for module in (ours, eager):
            module(x).square().mean().backward()
    assert_same_gradients(ours, eager)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))


class Repeated(nn.Module):
    """Asks, within an operator that has to be rewritten, for the size that a value says."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, dtype=torch.float64))

    def forward(self, x, count):
        number = count.item()
        return torch.deg2rad(self.weight * x).expand(number, *x.shape).reshape(number, -1) * 5


def test_a_size_that_a_value_says_is_known_where_its_reader_is_rewritten():
    eager = Repeated()
    ours = ORTModule(copy.deepcopy(eager))
    for number in (2, 3, 2):
        x, count = torch.randn(2, 6, dtype=torch.float64), torch.tensor(number)
        for module in (ours, eager):
            module(x, count).square().mean().backward()
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad)


def test_what_cannot_be_rewritten_names_a_way_that_trains_and_leaves_its_vmap():
    def fails(x):
        raise ValueError("no such thing")

    traced = torch.export.export(Calls(torch.vmap(lambda row: row.sin())), (torch.randn(2, 3),), strict=False)
    said = "no such thing|dynamicLayerStack"  # torch 2.11 fails once more on its way out of the vmap
    with pytest.raises(
        CaptureError, match=rf"torch cannot write the traced program[\s\S]*({said})[\s\S]*breaks=\"allow\""
    ):
        decomposition._rewritten(traced, {torch.ops.aten.sin.default: fails}, frozenset())
    torch.randn(2, 3).requires_grad_()  # torch refuses this within a vmap


class Spectra(nn.Module):
    """Operators without a translation one behind another, of several results, in a block and with a constant."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))

    def forward(self, x):
        y = torch.fft.irfft(torch.fft.rfft(x * self.scale) * 2, n=4).sgn() * self.scale
        with torch.no_grad():
            z = functional.hardshrink(torch.fft.ifft(torch.fft.fft(x)).real, 0.3)
        parts = torch.hsplit(functional.hardshrink(x * self.scale, 0.1), 2)
        return (y + z) * torch.isclose(x, x.round(), atol=0.2) + torch.cat(parts[::-1], 1) + torch.vdot(x[0], y[0])


def test_operators_are_taken_apart_where_they_stand_and_no_program_anew(monkeypatch):
    anew = []
    rewrite = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram, "run_decompositions", lambda *args: anew.append(1) or rewrite(*args)
    )
    assert_gradients_are_eagers(Spectra(), (2, 4), (3, 4), (5, 4))
    assert not anew


def test_what_cannot_be_taken_apart_by_itself_is_written_anew_with_all_else(monkeypatch):
    monkeypatch.setattr(apart, "_traced", lambda *_: None)
    module, x = Calls(_hardshrink), torch.randn(2, 3)
    torch.testing.assert_close(run_captured(capture(module, (x,)), (x,))[0], module(x))
