"""Updates of parameters, and the norm that clips them."""

from __future__ import annotations

from ontrain.operators.record import DOMAIN, Operator, define

__all__: list[str] = []

PREVIEW = "ai.onnx.preview.training"

UPDATE = Operator("", domain=DOMAIN, updates=True)
"""Inputs (param, grad, [moments …,] lr, step, scale); outputs the new states."""

define("SGD", UPDATE, moments=("momentum_buffer",))
define("Adam", UPDATE, moments=("exp_avg", "exp_avg_sq"))
define("AdamW", UPDATE, moments=("exp_avg", "exp_avg_sq"))
define("Lamb", UPDATE, moments=("exp_avg", "exp_avg_sq"))
define("GlobalNorm", domain=DOMAIN)
define("Adagrad", domain=PREVIEW)
define("Adam", domain=PREVIEW)
define("Momentum", domain=PREVIEW)
