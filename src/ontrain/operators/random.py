"""Random numbers."""

from __future__ import annotations

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, ELEMENTWISE, WHEREVER, Chance, define

__all__: list[str] = []

define("Bernoulli", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("Multinomial", chance=Chance.ALWAYS, zero_gradient=WHEREVER, asks_device=True)
define("RandomNormal", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("RandomNormalLike", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("RandomUniform", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("RandomUniformLike", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("Binomial", ELEMENTWISE, domain=DOMAIN, chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("Dirichlet", domain=DOMAIN, chance=Chance.ALWAYS)
define("DirichletGrad", ELEMENTWISE, domain=DOMAIN)
define(
    "Poisson", ELEMENTWISE, domain=DOMAIN, chance=Chance.ALWAYS, zero_gradient=WHEREVER, linked=lambda node: node.inputs
)
define("StandardGamma", ELEMENTWISE, domain=DOMAIN, chance=Chance.ALWAYS)
define("StandardGammaGrad", ELEMENTWISE, domain=DOMAIN)


@gradient("StandardGamma", domain=DOMAIN)
def standard_gamma(op: Op, dy: Value, alpha: Value) -> Adjoints:
    """By the derivative of the draw at a fixed value of its distribution function.

    Source: Figurnov, Mohamed and Mnih, Implicit reparameterization gradients, 2018.
    """
    return dy * op.composite("StandardGammaGrad", alpha, op.saved(0))


@gradient("Dirichlet", domain=DOMAIN)
def dirichlet(op: Op, dy: Value, alpha: Value) -> Adjoints:
    """Each component's derivative as a draw of a beta distribution, with the others scaled to a sum of one.

    Source: Jankowiak and Obermeyer, Pathwise derivatives beyond the reparameterization trick, 2018.
    """
    x, total = op.saved(0), op.ReduceSum(alpha, [-1], keepdims=1)
    slope = op.composite("DirichletGrad", x, alpha, total)
    return slope * (dy - op.ReduceSum(x * dy, [-1], keepdims=1))
