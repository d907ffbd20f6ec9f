"""Complex tensors whose parts lie side by side are multiplied, cut and joined as such; results are eager PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import fft, nn

from ontrain.training.ortmodule import ORTModule

_LONG = 198
"""More points than are transformed by products with matrices."""
_BINS = _LONG // 2 + 1


def _written(y: torch.Tensor, *places: slice) -> torch.Tensor:
    whole = torch.zeros(3, 4, _BINS, dtype=torch.complex128)
    whole[places] = y
    return fft.irfft(whole)


_CASES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "filter": (lambda x, w: fft.irfft(fft.rfft(x) * w), (4, _BINS)),
    "broadcast": (lambda x, w: fft.irfft(w * fft.rfft(x[:1])), (5, 4, 1)),
    "fewer axes": (lambda x, w: fft.rfft(x) * w, (_BINS,)),
    "mixes channels": (lambda x, w: fft.irfft(torch.einsum("bik,iok->bok", fft.rfft(x), w)), (4, 5, _BINS)),
    "ellipsis": (lambda x, w: torch.einsum("...k,k->...k", fft.rfft(x), w), (_BINS,)),
    "implicit": (lambda x, w: torch.einsum("bik,ik", fft.rfft(x), w), (4, _BINS)),
    "a letter of one operand": (lambda x, w: torch.einsum("bik,iq->bk", fft.rfft(x), w), (4, 5)),
    "diagonal": (lambda x, w: torch.einsum("bik,ii->bik", fft.rfft(x), w), (4, 4)),
    "conjugate": (lambda x, w: torch.einsum("bik,bjk->bij", fft.rfft(x), fft.rfft(x).conj() * w), (_BINS,)),
    "modes": (lambda x, w: _written(fft.rfft(x)[..., :5] * w, slice(None), slice(None), slice(5)), (4, 5)),
    "last modes": (
        lambda x, w: _written(fft.rfft(x)[:, -2:, 1:6] * w, slice(None), slice(-2, None), slice(-5, None)), (2, 5)
    ),
    "every other": (lambda x, w: fft.rfft(x)[..., ::2] * w, (4, 50)),
    "joined": (lambda x, w: torch.cat([fft.rfft(x)[..., :9] * w, fft.rfft(x)[..., 9:]], -1), (4, 9)),
    "sums and numbers": (lambda x, w: (fft.rfft(x) * (1 + 2j) - w * 3.5 + 2 * fft.rfft(x)) * 0.5, (_BINS,)),
    "by a real": (lambda x, w: fft.irfft(fft.rfft(x) * w.real), (4, _BINS)),
    "square": (lambda x, w: (fft.rfft(x).square() * w).abs(), (_BINS,)),
    "two axes": (lambda x, w: fft.ifft2(fft.fft2(x, norm="ortho") * w, norm="ortho").real, (4, _LONG)),
    "part apart": (lambda x, w: fft.rfft(x) * torch.exp(1j * w.real), (_BINS,)),
    "added product": (lambda x, w: torch.addcmul(fft.rfft(x), w, fft.rfft(x), value=0.5), (_BINS,)),
    "products of all and of some": (lambda x, w: (w * x[..., :_BINS])[..., :7].prod(1) + w[..., :3].prod(), (4, _BINS)),
    "logarithms": (lambda x, w: (w * fft.rfft(x)).log2() + (w + 3).log10(), (_BINS,)),
    "part of the way": (lambda x, w: torch.lerp(fft.rfft(x), w, 0.3) + torch.addcdiv(w, fft.rfft(x), w), (_BINS,)),
    "absolute error": (lambda x, w: nn.functional.l1_loss(fft.rfft(x), w.expand(3, 4, -1)), (_BINS,)),
    "mesh": (lambda x, w: torch.meshgrid(w, fft.rfft(x)[0, 0], indexing="ij")[0] * x[0, 0, 0], (_BINS,)),
    "axes changed, and divided": (lambda x, w: (fft.rfft(x) * w).swapdims(0, 1).tensor_split(3, -1)[1], (_BINS,)),
    "chosen": (lambda x, w: torch.where(x[..., :_BINS] > 0, fft.rfft(x) * w, 0)[:, 1], (_BINS,)),
}  # fmt: skip


class Filter(nn.Module):
    """A function of an input and of a complex weight, which is trained as pairs of real numbers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function, shape = _CASES[name]
        self.weight = nn.Parameter(torch.randn(*shape, 2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(x, torch.view_as_complex(self.weight))
        return torch.view_as_real(y) if y.is_complex() else y


@pytest.mark.parametrize("name", _CASES)
@pytest.mark.sampled(2)
def test_results_and_gradients_are_eagers(name):
    torch.manual_seed(0)
    eager = Filter(name)
    ours = ORTModule(copy.deepcopy(eager))
    inputs = [torch.randn(3, 4, _LONG, dtype=torch.float64).requires_grad_()]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    results = [module(x) for module, x in zip((eager, ours), inputs, strict=True)]
    weights = torch.randn_like(results[0])
    for y in results:
        (y * weights).sum().backward()
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(*results, **close)
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad, **close)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, **close)
