"""Random numbers."""

from __future__ import annotations

from ontrain.operators.record import WHEREVER, Chance, define

__all__: list[str] = []

define("Bernoulli", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("Multinomial", chance=Chance.ALWAYS, zero_gradient=WHEREVER, asks_device=True)
define("RandomNormal", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("RandomNormalLike", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("RandomUniform", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
define("RandomUniformLike", chance=Chance.ALWAYS, zero_gradient=WHEREVER)
