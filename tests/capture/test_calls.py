"""Calls that torch's own samples leave out, in double precision: results and gradients equal eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.capture.op_db import differences

pytestmark = pytest.mark.sampled(4)

_g = torch.Generator().manual_seed(5)


def f(*shape):
    return torch.randn(*shape, generator=_g, dtype=torch.float64, requires_grad=True)


def positive(*shape):
    return (torch.rand(*shape, generator=_g, dtype=torch.float64) + 0.1).requires_grad_()


def ints(high, *shape):
    return torch.randint(high, shape, generator=_g)


WINDOW = torch.hann_window(16, dtype=torch.float64)


def rope(x):
    """Rotary embedding as Llama's own code has it, by a product of complex numbers."""
    turns = torch.polar(
        torch.ones(5, 4, dtype=torch.float64), torch.outer(torch.arange(5.0), torch.arange(4.0)).double()
    )
    return torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 4, 2)) * turns).flatten(2)


def spectrogram(x):
    return torch.stft(x, 16, 4, window=WINDOW, return_complex=True).abs()


def round_trip(x):
    spectrum = torch.stft(x, 16, 4, window=WINDOW, return_complex=True)
    return torch.istft(spectrum * 2, 16, 4, window=WINDOW)


def convolved(x, y):
    return torch.fft.irfft(torch.fft.rfft(x) * torch.conj(torch.fft.rfft(y)), n=10)


def ctc(reduction, lengths=None, sizes=None, **options):
    def loss(x, targets, *rest):
        counts = rest or (lengths, sizes)
        return F.ctc_loss(F.log_softmax(x, -1), targets, *counts, reduction=reduction, **options)

    return loss


def bag(mode, **options):
    return lambda ids, w, offsets: F.embedding_bag(ids, w, offsets, mode=mode, **options)


def resized(**options):
    return lambda x: F.interpolate(x, **options)


def recurrent(layer, x):
    """The layer's outputs and states as a function of the input and all weights."""
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x, *values):
        y, state = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return y, *((state,) if isinstance(state, torch.Tensor) else state)

    return run, x, *(weight.detach().clone().requires_grad_() for weight in weights)


IMG, LONG = f(2, 3, 7, 5), f(2, 64)
TARGETS = torch.tensor([[2, 2, 2, 1], [3, 1, 5, 4], [1, 4, 4, 2]])
LENGTHS, SIZES = torch.tensor([7, 6, 3]), torch.tensor([4, 2, 0])
IDS, OFFSETS = torch.tensor([1, 4, 0, 4, 2, 2, 5]), torch.tensor([0, 3, 3, 5])

CALLS = {
    "rotary_by_complex_product": (rope, f(2, 5, 8)),
    **{f"{name}_in_place": (lambda x, name=name: x * getattr(x.detach().clone(), name)(0.1), f(3, 5))
       for name in ("gt_", "ge_", "lt_", "le_", "eq_", "ne_")},
    "mask_in_place_of_what_has_a_gradient": (lambda x: (x * 2).gt_(0.1) + x, f(3, 5)),
    "logic_in_place": (lambda x: x.detach().logical_not().float().logical_or_(x > 0) * x, f(3, 5)),
    "negation_in_place": (lambda x: x.detach().relu().logical_not_() * x, f(3, 5)),
    "no_difference": (lambda x: torch.diff(x, 0, 1, prepend=x[:, :1], append=x[:, 1:]) * x, f(3, 5)),
    "grid_of_one_axis": (lambda x: torch.meshgrid(x[0], indexing="xy")[0] * x, f(3, 5)),
    "angle_along_a_broadcast_axis": (lambda x: F.cosine_similarity(x[None], x[:1, None], dim=2), f(3, 4, 5)),
    "angle_along_an_axis_of_one": (lambda x: F.cosine_similarity(x, x[0, 1], dim=0), f(3, 4, 5)),
    "angle_of_two_numbers": (lambda x: F.cosine_similarity(x[0, 0], x[1, 1], dim=0) * x, f(3, 5)),
    "narrowed_to_nothing": (lambda x: x.narrow(1, 0, 0) * 2, f(3, 5)),
    "narrowed_from_the_end": (lambda x: torch.cat([x.narrow(1, -2, 2), x.narrow(1, -1, 0)], 1) * 2, f(3, 5)),
    "gathered_from_a_number": (lambda x: x.sum().gather(0, torch.zeros(2, dtype=torch.long)) * x[:2, 0], f(3, 5)),
    "gathered_by_a_number": (lambda x: x[0].gather(-1, torch.tensor(1)) * 2, f(3, 5)),
    "place_of_the_greatest_number": (lambda x: x.sum().argmax(-1, keepdim=True) + x, f(3, 5)),
    "nothing_joined": (lambda x: torch.cat([x.new_zeros(0)]).sum() + x, f(3, 5)),
    **{
        f"smoothed_{mode}_{size[0]}": (resized(size=size, mode=mode, align_corners=True, antialias=True), f(2, 3, 7, 5))
        for mode in ("bilinear", "bicubic")
        for size in ((4, 9), (1, 5))
    },
    "spectrum": (lambda x: torch.view_as_real(torch.fft.rfft(x)), f(3, 10)),
    "orthonormal_spectrum": (lambda x: torch.fft.rfft(x, n=8, norm="ortho").abs(), f(3, 10)),
    "odd_inverse": (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=9), f(3, 9)),
    "two_dimensional": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * (1 + 2j)), f(3, 4, 6)),
    "mixing_by_fourier": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, f(2, 4, 5)),
    "spectrogram": (spectrogram, LONG),
    "spectrogram_and_back": (round_trip, LONG),
    "convolution_by_spectra": (convolved, f(3, 10), f(3, 10)),
    "complex_quotient": (lambda x, y: torch.view_as_real(torch.complex(x, y) / torch.complex(y, x)), f(4), f(4)),
    **{f"ctc_{kind}": (ctc(kind), f(7, 3, 6), TARGETS, LENGTHS, SIZES) for kind in ("none", "mean", "sum")},
    "ctc_of_numbers": (ctc("mean", (7, 6, 3), (4, 2, 1)), f(7, 3, 6), TARGETS),
    "ctc_without_an_alignment": (ctc("mean", (2, 6, 7), (4, 2, 1), zero_infinity=True), f(7, 3, 6), TARGETS),
    "ctc_of_what_no_softmax_made": (lambda x, t: F.ctc_loss(x, t, LENGTHS, SIZES), f(7, 3, 6), TARGETS),
    "ctc_of_one": (ctc("sum", torch.tensor(6), torch.tensor(4)), f(6, 6), TARGETS[1]),
    **{f"bag_{mode}": (bag(mode), IDS, f(6, 3), OFFSETS) for mode in ("sum", "mean", "max")},
    **{f"bag_{mode}_begun_in_any_order": (bag(mode, padding_idx=4), IDS, f(6, 3), torch.tensor([0, 5, 2]))
       for mode in ("sum", "mean")},
    "bag_begun_behind_the_last": (bag("sum"), IDS, f(6, 3), torch.tensor([0, 7, 3, 7])),
    "bag_with_padding": (bag("mean", padding_idx=4), IDS, f(6, 3), OFFSETS),
    "bag_with_last_offset": (bag("sum", include_last_offset=True), IDS, f(6, 3), torch.tensor([0, 3, 5, 7])),
    "bag_of_rows": (lambda ids, w: F.embedding_bag(ids, w, mode="mean"), ints(6, 4, 3), f(6, 3)),
    "bag_with_weights": (
        lambda ids, w, o, s: F.embedding_bag(ids, w, o, mode="sum", per_sample_weights=s), IDS, f(6, 3), OFFSETS, f(7),
    ),
    **{
        f"resized_{mode}_by_a_factor": (resized(scale_factor=1.7, mode=mode), IMG)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    },
    "resized_by_the_size_made": (resized(scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), IMG),
    "resized_with_corners": (resized(size=(9, 4), mode="bicubic", align_corners=True), IMG),
    "resized_smoothly": (resized(size=(3, 4), mode="bilinear", antialias=True), IMG),
    "uneven_average": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMG),
    "uneven_maximum_and_its_place": (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), IMG),
    "maximum_and_its_place": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), IMG),
    "lstm_with_projection": recurrent(nn.LSTM(3, 5, 2, bidirectional=True, proj_size=2).double(), f(3, 2, 3)),
    "folded_and_unfolded": (lambda x: F.fold(F.unfold(x, 3, padding=1), (7, 5), 3, padding=1), IMG),
    "affine_grid": (lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False), f(2, 2, 3)),
    "affine_grid_by_corners": (lambda t: F.affine_grid(t, (2, 3, 4, 1), align_corners=True), f(2, 2, 3)),
    "affine_grid_of_volumes": (lambda t: F.affine_grid(t, (2, 3, 4, 5, 2), align_corners=False), f(2, 3, 4)),
    "sampled_grid": (lambda x, g: F.grid_sample(x, torch.tanh(g), align_corners=False), IMG, f(2, 4, 3, 2)),
    "distances": (torch.cdist, f(2, 4, 3), f(2, 5, 3)),
    "distance_to_itself": (lambda x: torch.cdist(x, x), f(4, 3)),
    "norm_of_nothing": (lambda x: (x * 0).norm(dim=-1), f(2, 3)),
    "norm_of_order_three": (lambda x: x.relu().norm(p=3, dim=0), f(4, 3)),
    "angle_on_the_axes": (torch.atan2, torch.tensor([0.0, 1.0, -1.0, 2.0]).double().requires_grad_(),
                          torch.tensor([1.0, 0.0, 0.0, -2.0]).double().requires_grad_()),
    "logarithm_of_almost_one": (torch.log1p, torch.tensor([1e-12, -1e-9, 0.3, 7.0]).double().requires_grad_()),
    "exponential_of_almost_zero": (torch.expm1, torch.tensor([1e-12, -1e-9, 0.3, 30.0]).double().requires_grad_()),
    "elu_of_great_numbers": (lambda x: F.elu(x, 1.5), torch.tensor([900.0, -900.0, 0.5]).double().requires_grad_()),
    "gamma_functions": (lambda x: torch.lgamma(x) + torch.digamma(x), positive(5)),
    "beta_likelihood": (lambda a, b: torch.distributions.Beta(a, b, validate_args=False).log_prob(torch.tensor(0.3)),
                        positive(4), positive(4)),
    "masked_places_filled_in_order": (lambda x, m, s: x.masked_scatter(m, s), f(4, 3), ints(2, 4, 3) > 0, f(12)),
    "value_at_a_mask": (lambda x, m: _assigned(x, m), f(4, 3), ints(2, 4, 3) > 0),
    "scattered_mean": (lambda x, i, s: x.scatter_reduce(0, i, s, "mean", include_self=False), f(4, 3), ints(4, 5, 3),
                       f(5, 3)),
    "boundaries": (torch.bucketize, f(6).detach(), torch.tensor([-1.0, 0.0, 1.0]).double()),
    "quantile": (lambda x: torch.quantile(x, 0.3, dim=1), f(3, 7)),
    "ellipsis": (lambda a, b: torch.einsum("...ij,...jk->...ik", a, b), f(2, 3, 4), f(2, 4, 5)),
    "fake_quantisation": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 15), f(20)),
    "checkpoint": (lambda x, w: checkpoint(lambda v: torch.tanh(v @ w), x, use_reentrant=False), f(3, 4), f(4, 2)),
    "straight_through": (lambda x: x + (x.round() - x).detach(), f(5)),
    "disabled_autocast": (lambda x, w: _under_autocast(x, w, False), f(3, 4), f(4, 2)),
}  # fmt: skip


def _assigned(x, mask):
    y = x * 2
    y[mask] = 7.0
    return y


def _under_autocast(x, w, enabled):
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        return x @ w


class _Call:
    """What `differences` wants to know of an operator."""

    name, supports_autograd = "call", True
    dtypes = frozenset({torch.float64})

    def __init__(self, op):
        self.op = op


class _Arguments:
    def __init__(self, tensors):
        self.input, self.args, self.kwargs = tensors[0], tuple(tensors[1:]), {}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_eagers_result_and_gradients(name):
    if name == "quantile" and torch.__version__ < (2, 12):
        pytest.skip("torch 2.11 decides by values in it, which capture refuses")
    operator, *tensors = CALLS[name]
    assert not differences(_Call(operator), _Arguments(tensors))


class _Called(nn.Module):
    def __init__(self, function, *shape):
        super().__init__()
        self.function, self.x = function, nn.Parameter(torch.randn(shape, dtype=torch.float64))

    def forward(self):
        return self.function(self.x)


@pytest.mark.parametrize("distances", [lambda x: torch.cdist(x, x, p=0), lambda x: F.pdist(x, p=0)], ids=["two", "one"])
def test_distances_of_order_zero_have_zeros_for_a_gradient_as_eagers(distances):
    for module in (eager := _Called(distances, 4, 3), ORTModule(copy.deepcopy(eager))):
        module().sum().backward()
        assert torch.equal(next(module.parameters()).grad, torch.zeros(4, 3, dtype=torch.float64))


@pytest.mark.parametrize("options", [{}, {"antialias": True}], ids=["plain", "smooth"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("factor", [1.7, (0.6, 1.3)])
def test_images_by_a_factor_are_eagers_to_double_precision(factor, mode, options):
    eager = _Called(lambda x: F.interpolate(x, scale_factor=factor, mode=mode, **options), 2, 3, 7, 5)
    ours = ORTModule(copy.deepcopy(eager))
    for module in (eager, ours):
        module().sin().sum().backward()
    torch.testing.assert_close(ours(), eager(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(ours.module.x.grad, eager.x.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("mode", "shape"), [("linear", (2, 3, 7)), ("trilinear", (1, 2, 5, 4, 3))])
def test_lines_and_volumes_by_a_factor_are_eagers_to_double_precision(mode, shape):
    eager = _Called(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), *shape)
    torch.testing.assert_close(ORTModule(copy.deepcopy(eager))(), eager(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [(2, 8, 0, 3), (0, 8, 2, 3)])
def test_shuffled_pixels_of_an_empty_image_have_a_gradient(shape):
    ours = ORTModule(_Called(lambda x: F.pixel_shuffle(x, 2), *shape))
    y = ours()
    assert y.shape == (shape[0], 2, 2 * shape[2], 2 * shape[3])
    y.sum().backward()
    assert ours.module.x.grad.shape == shape


class _Nested(nn.Module):
    def __init__(self, nested):
        super().__init__()
        self.layer, self.made = nn.Linear(4, 4), nested

    def forward(self, x, offsets):
        return self.made(self.layer(x), offsets).values()


def _two_rows(x, offsets):
    return torch.nested.as_nested_tensor([x[:2], x[2:]], layout=torch.jagged)


@pytest.mark.parametrize("nested", [torch.nested.nested_tensor_from_jagged, _two_rows], ids=["offsets", "rows"])
def test_a_forward_that_makes_a_nested_tensor_is_refused_with_its_line_and_a_way_out(nested):
    with pytest.raises(CaptureError, match=r"(?s)nested tensor.*source: .*test_calls\.py.*pad_sequence.*mask"):
        ORTModule(_Nested(nested))(torch.randn(5, 4), torch.tensor([0, 2, 5]))
