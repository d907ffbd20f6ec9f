"""Products, linear algebra and Fourier transforms."""

from __future__ import annotations

import torch

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw

MATRICES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (4, 3, 2)), ((2, 1, 2, 3), (4, 3, 5))]


def _products(alpha: float, beta: float) -> dict:
    """Products by name, each with the shapes of its factors; None is any number of rows."""
    settings = dict(alpha=alpha, beta=beta)
    return {
        "addmm": (lambda x, y: torch.addmm(x[:, :1], x, y, **settings), (None, 3), (3, 5)),
        "baddbmm": (lambda x, y: torch.baddbmm(x[:, :, :1], x, y, **settings), (2, None, 3), (2, 3, 5)),
        "addbmm": (lambda x, y: torch.addbmm(x[0, :, :1], x, y, **settings), (2, None, 3), (2, 3, 5)),
        "addmv": (lambda x, y: torch.addmv(x[:, 0], x, y[:, 0], **settings), (None, 3), (3, 5)),
        "outer": (lambda x, y: torch.outer(x[:, 0], y[0]), (None, 3), (3, 5)),
        "multi_dot": (lambda x, y: torch.linalg.multi_dot([x, y, y.t()]), (None, 3), (3, 5)),
        "trace": (lambda x, y: torch.einsum("ii,jk->jk", x, y), (3, 3), (2, None)),
        "scores": (
            lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y).softmax(-1), (2, 2, None, 3), (2, 2, 4, 3),
        ),
        "transposed": (
            lambda x, y: torch.einsum("...ij,kj->...ik", x, y).transpose(-1, -2).softmax(-2), (2, None, 3), (5, 3),
        ),
    }  # fmt: skip


@call
def product(draw: Draw) -> Call:
    """With factors of 0 among them, and einsum."""
    settings = (draw.choice([0.5, 1.0, 0.0]), draw.choice([1.0, 2.0, 0.0]))
    products = _products(*settings)
    name = draw.choice(list(products))
    function, *shapes = products[name]

    def inputs():
        return [draw.tensor(*(draw.integer(2, 4) if s is None else s for s in shape)) for shape in shapes]

    return Call(f"{name} {settings}", function, inputs)


@call
def matmul(draw: Draw) -> Call:
    """Of vectors, matrices and batches of them: two ranks in two calls."""
    return Call("matmul", torch.matmul, lambda: [draw.tensor(*shape) for shape in draw.choice(MATRICES)])


def _definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + 3 * torch.eye(3)


def _factorisations(upper: bool, order: object, power: int) -> dict:
    """Functions of matrices by name."""
    linalg = torch.linalg
    return {
        "cholesky": lambda x: linalg.cholesky(_definite(x), upper=upper),
        "inv": lambda x: linalg.inv(_definite(x)),
        "det": linalg.det,
        "slogdet": lambda x: linalg.slogdet(_definite(x))[1],
        "solve": lambda x: linalg.solve(_definite(x), x),
        "solve_triangular": lambda x: linalg.solve_triangular(
            x.tril() + 3 * torch.eye(3), x, upper=False, unitriangular=upper
        ),
        "eigvalsh": lambda x: linalg.eigvalsh(_definite(x)),
        "svdvals": linalg.svdvals,
        "pinv": lambda x: linalg.pinv(_definite(x)),
        "matrix_norm": lambda x: linalg.matrix_norm(x, order),
        "matrix_power": lambda x: linalg.matrix_power(x, power),
        "matrix_exp": lambda x: torch.matrix_exp(x * 0.3),
    }


@call
def factorisation(draw: Draw) -> Call:
    """Of a matrix of 3 by 3, or of two."""
    orders = ["fro", "nuc", 1, -1, float("inf"), 2]
    settings = (draw.flag(), draw.choice(orders), draw.choice([0, 2, 3, -1]))
    functions, batch = _factorisations(*settings), draw.choice([(), (2,)])
    name = draw.choice(list(functions))
    return Call(f"{name} {settings}", functions[name], lambda: draw.tensor(*batch, 3, 3))


def _real(z: torch.Tensor) -> torch.Tensor:
    """Real and imaginary part together."""
    return torch.view_as_real(z).sum(-1) if z.is_complex() else z


@call
def fourier(draw: Draw) -> Call:
    """Transforms of reals along an axis, cut off or filled up to a length."""
    name = draw.choice(["fft", "rfft", "ihfft"])
    settings = dict(n=draw.choice([None, 4, 9, 7]), dim=draw.choice([-1, 0, 1]), norm=_norm(draw))
    transform = getattr(torch.fft, name)
    return Call(f"{name} {settings}", lambda x: _real(transform(x, **settings)), _matrix(draw))


@call
def fourier_of_two_axes(draw: Draw) -> Call:
    """rfft2 and fftn."""
    name = draw.choice(["rfft2", "fftn"])
    settings = dict(s=draw.choice([None, (4, 5), (9, 3)]), dim=(-2, -1), norm=_norm(draw))
    transform = getattr(torch.fft, name)
    return Call(
        f"{name} {settings}", lambda x: _real(transform(x, **settings)),
        lambda: draw.tensor(2, draw.integer(3, 6), draw.integer(4, 8)),
    )  # fmt: skip


@call
def fourier_to_reals(draw: Draw) -> Call:
    """irfft and hfft of complex numbers."""
    name = draw.choice(["irfft", "hfft"])
    settings = dict(n=draw.choice([None, 4, 9, 7]), dim=draw.choice([-1, 0]), norm=_norm(draw))
    transform = getattr(torch.fft, name)
    return Call(f"{name} {settings}", lambda x: transform(torch.complex(x, x.cos()), **settings), _matrix(draw))


@call
def spectrogram(draw: Draw) -> Call:
    """stft with windows and paddings."""
    length = draw.choice([8, 12])
    width = draw.choice([None, length - 3])
    settings = dict(
        n_fft=length, hop_length=draw.choice([None, 3]), win_length=width, center=draw.flag(),
        pad_mode=draw.choice(["reflect", "constant", "replicate"]), normalized=draw.flag(), onesided=draw.flag(),
        window=draw.maybe(torch.hann_window(width or length)), return_complex=True,
    )  # fmt: skip
    shown = settings | dict(window=settings["window"] is not None)
    return Call(
        f"stft {shown}", lambda x: _real(torch.stft(x, **settings)).square(),
        lambda: draw.tensor(2, draw.integer(24, 30)),
    )  # fmt: skip


def _matrix(draw: Draw):
    return lambda: draw.tensor(draw.integer(3, 5), draw.integer(4, 8))


def _norm(draw: Draw) -> str | None:
    return draw.choice([None, "ortho", "forward"])
