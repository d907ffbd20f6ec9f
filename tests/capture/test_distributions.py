"""torch.distributions with their checks on, as they are by default: densities, entropies and samples of a module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributions, nn

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(3)

positive = nn.functional.softplus
FUNCTIONS = {
    "normal": lambda p, x: distributions.Normal(p, positive(p)).log_prob(x),
    "normal_cdf": lambda p, x: distributions.Normal(p, positive(p)).cdf(x),
    "normal_icdf": lambda p, x: distributions.Normal(p, positive(p)).icdf(torch.sigmoid(x)),
    "normal_ent": lambda p, x: distributions.Normal(p, positive(p)).entropy() + x,
    "kl_normal": lambda p, x: (
        distributions.kl_divergence(distributions.Normal(p, positive(p)), distributions.Normal(0 * p, 1 + 0 * p)) + x
    ),
    "lognormal": lambda p, x: distributions.LogNormal(p, positive(p)).log_prob(x.abs() + 0.1),
    "cat": lambda p, x: distributions.Categorical(logits=p).log_prob(torch.tensor([0, 3, 2])) + x.sum(),
    "cat_probs": lambda p, x: distributions.Categorical(probs=positive(p)).log_prob(torch.tensor([0, 3, 2])) + x.sum(),
    "cat_ent": lambda p, x: distributions.Categorical(logits=p).entropy() + x,
    "bern": lambda p, x: distributions.Bernoulli(logits=p).log_prob((x > 0).double()),
    "bern_ent": lambda p, x: distributions.Bernoulli(logits=p).entropy() + x,
    "gamma": lambda p, x: distributions.Gamma(positive(p), positive(p)).log_prob(x.abs() + 0.1),
    "gamma_ent": lambda p, x: distributions.Gamma(positive(p), positive(p)).entropy() + x,
    "kl_gamma": lambda p, x: (
        distributions.kl_divergence(
            distributions.Gamma(positive(p), positive(p)), distributions.Gamma(positive(p) + 1, positive(p))
        )
        + x
    ),
    "beta": lambda p, x: distributions.Beta(positive(p), positive(p) + 1).log_prob(torch.sigmoid(x)),
    "dirichlet": lambda p, x: distributions.Dirichlet(positive(p)).log_prob(torch.softmax(x, -1)),
    "exp": lambda p, x: distributions.Exponential(positive(p)).log_prob(x.abs()),
    "laplace": lambda p, x: distributions.Laplace(p, positive(p)).log_prob(x),
    "cauchy": lambda p, x: distributions.Cauchy(p, positive(p)).log_prob(x),
    "halfcauchy": lambda p, x: distributions.HalfCauchy(positive(p)).log_prob(x.abs()),
    "halfnormal": lambda p, x: distributions.HalfNormal(positive(p)).log_prob(x.abs()),
    "gumbel": lambda p, x: distributions.Gumbel(p, positive(p)).log_prob(x),
    "studentt": lambda p, x: distributions.StudentT(positive(p) + 2, p, positive(p)).log_prob(x),
    "poisson": lambda p, x: distributions.Poisson(positive(p)).log_prob(x.abs().round()),
    "binomial": lambda p, x: distributions.Binomial(10, logits=p).log_prob(x.abs().round()),
    "negbin": lambda p, x: distributions.NegativeBinomial(4.0, logits=p).log_prob(x.abs().round()),
    "geometric": lambda p, x: distributions.Geometric(logits=p).log_prob(x.abs().round()),
    "uniform": lambda p, x: distributions.Uniform(-3 - positive(p), 3 + positive(p)).log_prob(x.clamp(-2, 2)),
    "weibull": lambda p, x: distributions.Weibull(positive(p), positive(p)).log_prob(x.abs() + 0.1),
    "pareto": lambda p, x: distributions.Pareto(positive(p) * 0.01, positive(p)).log_prob(x.abs() + 1.1),
    "kumar": lambda p, x: distributions.Kumaraswamy(positive(p), positive(p)).log_prob(torch.sigmoid(x)),
    "vonmises": lambda p, x: distributions.VonMises(p, positive(p)).log_prob(x),
    "chi2": lambda p, x: distributions.Chi2(positive(p)).log_prob(x.abs() + 0.1),
    "fisher": lambda p, x: distributions.FisherSnedecor(positive(p), positive(p) + 1).log_prob(x.abs() + 0.1),
    "invgamma": lambda p, x: distributions.InverseGamma(positive(p), positive(p)).log_prob(x.abs() + 0.1),
    "contbern": lambda p, x: distributions.ContinuousBernoulli(logits=p).log_prob(torch.sigmoid(x)),
    "mvn_scale": lambda p, x: distributions.MultivariateNormal(p, scale_tril=torch.diag(positive(p))).log_prob(x),
    "mvn_cov": lambda p, x: distributions.MultivariateNormal(p, covariance_matrix=torch.diag(positive(p))).log_prob(x),
    "lowrank": lambda p, x: distributions.LowRankMultivariateNormal(p, p[:, None], positive(p)).log_prob(x),
    "onehot": lambda p, x: (
        distributions.OneHotCategorical(logits=p).log_prob(torch.eye(5, dtype=torch.float64)[:3]) + x.sum()
    ),
    "multinomial": lambda p, x: (
        distributions.Multinomial(3, logits=p).log_prob(torch.tensor([[1.0, 1, 0, 0, 1]]).double()) + x.sum()
    ),
    "relaxed": lambda p, x: distributions.RelaxedOneHotCategorical(torch.tensor(0.5).double(), logits=p).log_prob(
        torch.softmax(x, -1)
    ),
    "indep": lambda p, x: distributions.Independent(distributions.Normal(p, positive(p)), 1).log_prob(x),
    "mixture": lambda p, x: distributions.MixtureSameFamily(
        distributions.Categorical(logits=p), distributions.Normal(p, positive(p))
    ).log_prob(x),
    "transformed": lambda p, x: distributions.TransformedDistribution(
        distributions.Normal(p, positive(p)),
        [distributions.transforms.SigmoidTransform(), distributions.transforms.AffineTransform(1.0, 2.0)],
    ).log_prob(torch.sigmoid(x) * 2 + 1),
    "wishart": lambda p, x: (
        distributions.Wishart(torch.tensor(6.0).double(), covariance_matrix=torch.diag(positive(p))).log_prob(
            torch.eye(5).double() * 2
        )
        + x.sum()
    ),
    "lkj": lambda p, x: (
        distributions.LKJCholesky(3, positive(p)[0]).log_prob(torch.linalg.cholesky(torch.eye(3).double())) + x.sum()
    ),
    "rs_normal": lambda p, x: distributions.Normal(p, positive(p)).rsample() * 0 + p * x,
    "rs_exp": lambda p, x: distributions.Exponential(positive(p)).rsample() * 0 + p * x,
    "rs_gumbel": lambda p, x: distributions.Gumbel(p, positive(p)).rsample() * 0 + p * x,
    "rs_laplace": lambda p, x: distributions.Laplace(p, positive(p)).rsample() * 0 + p * x,
    "rs_mvn": lambda p, x: (
        distributions.MultivariateNormal(p, scale_tril=torch.diag(positive(p))).rsample() * 0 + p * x
    ),
    "sm_cat": lambda p, x: distributions.Categorical(logits=p).sample().double() * 0 + p * x,
    "sm_bern": lambda p, x: distributions.Bernoulli(logits=p).sample() * 0 + p * x,
}


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.rand(5, dtype=torch.float64) + 0.5), function

    def forward(self, x):
        return self.function(self.weight, x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_eagers(name):
    """What is drawn is multiplied by zero: the numbers are not eager's."""
    ours = Applied(FUNCTIONS[name])
    eager = copy.deepcopy(ours)
    x = torch.randn(3, 5, dtype=torch.float64)
    results = [ORTModule(ours)(x), eager(x)]
    for result in results:
        result.sum().backward()
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=1e-8, atol=1e-9)
