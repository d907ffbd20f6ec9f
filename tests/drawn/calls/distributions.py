"""torch.distributions: likelihoods, moments, quantiles, entropies, divergences and transforms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributions as D

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw

Make = Callable[[torch.Tensor, torch.Tensor], D.Distribution]

REAL: dict[str, Make] = {
    "Normal": lambda a, b: D.Normal(a, b.exp()),
    "Laplace": lambda a, b: D.Laplace(a, b.exp()),
    "Cauchy": lambda a, b: D.Cauchy(a, b.exp()),
    "Gumbel": lambda a, b: D.Gumbel(a, b.exp()),
    "StudentT": lambda a, b: D.StudentT(a.exp() + 1, b, 1.5),
    "Independent": lambda a, b: D.Independent(D.Normal(a, b.exp()), 1),
    "Mixture": lambda a, b: D.MixtureSameFamily(D.Categorical(logits=a), D.Normal(b, a.exp())),
    "Affine": lambda a, b: D.TransformedDistribution(
        D.Normal(a, b.exp()), [D.TanhTransform(), D.AffineTransform(0.3, 2.0), D.TanhTransform().inv]
    ),
    "Multivariate": lambda a, b: D.MultivariateNormal(a, scale_tril=torch.diag_embed(b.exp())),
    "LowRank": lambda a, b: D.LowRankMultivariateNormal(a, b[..., None], b.exp()),
}  # fmt: skip
POSITIVE: dict[str, Make] = {
    "Gamma": lambda a, b: D.Gamma(a.exp(), b.exp()),
    "Exponential": lambda a, b: D.Exponential((a + b).exp()),
    "LogNormal": lambda a, b: D.LogNormal(a, b.exp()),
    "HalfNormal": lambda a, b: D.HalfNormal((a + b).exp()),
    "HalfCauchy": lambda a, b: D.HalfCauchy((a + b).exp()),
    "Weibull": lambda a, b: D.Weibull(a.exp(), b.exp() + 0.5),
    "Chi2": lambda a, b: D.Chi2((a + b).exp()),
    "InverseGamma": lambda a, b: D.InverseGamma(a.exp(), b.exp()),
    "FisherSnedecor": lambda a, b: D.FisherSnedecor(a.exp(), b.exp()),
}  # fmt: skip
SHARES: dict[str, Make] = {
    "Beta": lambda a, b: D.Beta(a.exp(), b.exp()),
    "Kumaraswamy": lambda a, b: D.Kumaraswamy(a.exp(), b.exp()),
    "Uniform": lambda a, b: D.Uniform(a - a - 0.5, 1 + b.exp()),
    "ContinuousBernoulli": lambda a, b: D.ContinuousBernoulli(logits=a + b),
    "LogitRelaxed": lambda a, b: D.RelaxedBernoulli(b.detach().mean().exp(), logits=a),
}  # fmt: skip
COUNTS: dict[str, Make] = {
    "Poisson": lambda a, b: D.Poisson((a + b).exp()),
    "Geometric": lambda a, b: D.Geometric(logits=a + b),
    "NegativeBinomial": lambda a, b: D.NegativeBinomial(a.exp() + 1, logits=b),
    "Binomial": lambda a, b: D.Binomial(9, logits=a + b),
    "Categorical": lambda a, b: D.Categorical(logits=torch.stack([a, b, a * b, -a], -1)),
}  # fmt: skip
TRUTH: dict[str, Make] = {"Bernoulli": lambda a, b: D.Bernoulli(logits=a + b)}
VALUES: list[tuple[dict[str, Make], Callable[[torch.Tensor], torch.Tensor]]] = [
    (REAL, lambda y: y), (POSITIVE, lambda y: y.exp()), (SHARES, lambda y: y.sigmoid()),
    (COUNTS, lambda y: (y.sigmoid() * 4).floor()), (TRUTH, lambda y: (y > 0).to(y.dtype)),
]  # fmt: skip


def _parameters(draw: Draw, count: int = 2):
    rank = draw.integer(1, 3)

    def inputs() -> list[torch.Tensor]:
        shape = draw.sizes(rank, 1, 4)
        return [draw.tensor(*shape) * 0.5 for _ in range(count)]

    return inputs


@call.share(3)
def likelihood(draw: Draw) -> Call:
    """log_prob of values in the support."""
    makes, supported = draw.choice(VALUES)
    name = draw.choice(list(makes))
    return Call(
        f"{name}.log_prob", lambda a, b, y: makes[name](a, b).log_prob(supported(y)), _parameters(draw, 3)
    )  # fmt: skip


@call.share(2)
def moment(draw: Draw) -> Call:
    """Entropies, means, variances, cumulated probabilities and quantiles, as draws are made of."""
    makes, supported = draw.choice(VALUES)
    name, what = draw.choice(list(makes)), draw.choice(["entropy", "mean", "variance", "cdf", "icdf", "mode", "stddev"])

    def function(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        distribution = makes[name](a, b)
        if what == "cdf":
            return distribution.cdf(supported(y))
        if what == "icdf":
            return distribution.icdf(y.sigmoid())
        return distribution.entropy() if what == "entropy" else getattr(distribution, what)

    return Call(f"{name}.{what}", function, _parameters(draw, 3))


@call.share(2)
def divergence_of_two(draw: Draw) -> Call:
    """kl_divergence of two distributions of a kind."""
    makes = REAL | POSITIVE | SHARES | COUNTS | TRUTH
    name = draw.choice(list(makes))
    return Call(
        f"kl of {name}", lambda a, b, c, d: D.kl_divergence(makes[name](a, b), makes[name](c, d)), _parameters(draw, 4)
    )  # fmt: skip


@call
def transform(draw: Draw) -> Call:
    """Transforms, their inverses and the logarithms of their determinants."""
    transforms = {
        "exp": D.ExpTransform(), "sigmoid": D.SigmoidTransform(), "tanh": D.TanhTransform(),
        "softplus": D.SoftplusTransform(), "power": D.ComposeTransform([D.ExpTransform(), D.PowerTransform(2.0)]),
        "affine": D.AffineTransform(1.0, -2.0), "sticks": D.StickBreakingTransform(), "softmax": D.SoftmaxTransform(),
        "lower": D.LowerCholeskyTransform(), "correlations": D.CorrCholeskyTransform(),
    }  # fmt: skip
    name = draw.choice(list(transforms))
    shape = {"lower": (3, 3), "correlations": (3,)}.get(name, (4,))

    def function(x: torch.Tensor) -> torch.Tensor:
        kind = transforms[name]
        y = kind(x)
        if name in ("softmax", "lower"):
            return y
        return y.sum() + kind.log_abs_det_jacobian(x, y) + kind.inv(y).sum()

    return Call(f"transform {name}", function, lambda: draw.tensor(draw.integer(1, 4), *shape) * 0.5)
