"""The first API's optimizers: a name, and a function from a parameter's name to its attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ontrain.errors import OptionError, nearest
from ontrain.training import optim
from ontrain.training.optim.config import _OptimizerConfig

__all__ = ["Attributes", "optimizer_config"]

Attributes = Callable[[str], Mapping[str, Any]]
"""map_optimizer_attributes: of a parameter's name, `{"alpha": 0.9, "beta": 0.999, "lambda": 0.01, "epsilon": 1e-6}`."""

_CONFIGS: dict[str, Callable[..., _OptimizerConfig]] = {
    "SGDOptimizer": optim.SGDConfig,
    "AdamOptimizer": optim.AdamConfig,
    # The operator of that API corrects where it is not told otherwise; the later configuration does not.
    "LambOptimizer": partial(optim.LambConfig, do_bias_correction=True),
}
_NAMES = {"lambda": "lambda_coef"}
_FLAGS = ("do_bias_correction",)


def optimizer_config(name: str, attributes: Attributes | None, parameters: Sequence[str]) -> _OptimizerConfig:
    """Return the configuration that the attributes of all parameters amount to, one group for each set of them.

    Args:
        name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        attributes: None for the optimizer's defaults.
        parameters: names of the model's parameters.

    Raises:
        OptionError: no such optimizer or attribute, or a value out of range.
    """
    if name not in _CONFIGS:
        raise OptionError(f"there is no optimizer {name!r}", way_out=f"use one of {', '.join(_CONFIGS)}")
    if attributes is None:
        return _CONFIGS[name]()
    if not callable(attributes):
        raise OptionError(
            f"map_optimizer_attributes is a {type(attributes).__name__}",
            way_out="give a function of a parameter's name that returns a dictionary, or None",
        )
    groups: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for parameter in parameters:
        own = _checked(name, parameter, attributes(parameter))
        groups.setdefault(tuple(sorted(own.items())), []).append(parameter)
    chosen = [{"params": names, **dict(own)} for own, names in groups.items() if own]
    return _CONFIGS[name](params=chosen)


def _checked(optimizer: str, parameter: str, attributes: Any) -> dict[str, Any]:
    """The attributes under the configuration's names, whole numbers as what they stand for."""
    if attributes is None:
        return {}
    if not isinstance(attributes, Mapping):
        raise OptionError(
            f"map_optimizer_attributes({parameter!r}) returned a {type(attributes).__name__}",
            way_out="return a dictionary",
        )
    known = [key for key in _CONFIGS[optimizer]().defaults if key != "lr"]
    checked: dict[str, Any] = {}
    for key, value in attributes.items():
        name = _NAMES.get(key, key)
        if name not in known:
            raise OptionError(
                f"{optimizer} has no attribute {key!r}", way_out=f"nearest: {nearest(str(key), ['lambda', *known])}"
            )
        if name in _FLAGS and value in (0, 1):
            value = bool(value)
        elif name == "weight_decay_mode" and value in (0, 1):
            value = optim.AdamConfig.DecayMode(value)
        checked[name] = value
    return checked
