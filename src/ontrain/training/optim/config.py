"""Optimizer configurations with onnxruntime.training.optim's names: what a user writes, checked at once."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ontrain.arguments import checked_kind, plain_values
from ontrain.errors import OptionError, nearest
from ontrain.optim import OptimizerSpec
from ontrain.training.optim.hyper_parameters import HyperParameters, ParameterGroups

__all__ = ["AdamConfig", "LambConfig", "SGDConfig"]


class _DecayMode(enum.IntEnum):
    """When weight decay is applied: to the old weight (torch.optim.AdamW) or to the updated one."""

    BEFORE_WEIGHT_UPDATE = 0
    AFTER_WEIGHT_UPDATE = 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_from_zero(value: Any) -> bool:
    return _is_number(value) and 0 <= value < math.inf


_Range = tuple[str, Callable[[Any], bool]]
_FROM_ZERO: _Range = ("a number from 0", _is_from_zero)
_BELOW_ONE: _Range = ("a number in [0, 1)", lambda value: _is_number(value) and 0 <= value < 1)
_ANY_NUMBER: _Range = ("a number, infinity included", _is_number)
_BOOL: _Range = ("True or False", lambda value: isinstance(value, bool))
_MODE: _Range = ("an AdamConfig.DecayMode", lambda value: isinstance(value, _DecayMode))

# What each hyper-parameter may be, and the attribute of the update function that it becomes.
_RANGES: dict[str, _Range] = {
    "lr": _FROM_ZERO,
    "momentum": _FROM_ZERO,
    "nesterov": _BOOL,
    "weight_decay": _FROM_ZERO,
    "alpha": _BELOW_ONE,
    "beta": _BELOW_ONE,
    "lambda_coef": _FROM_ZERO,
    "epsilon": _FROM_ZERO,
    "do_bias_correction": _BOOL,
    "weight_decay_mode": _MODE,
    "ratio_min": _ANY_NUMBER,
    "ratio_max": _ANY_NUMBER,
    "max_norm_clip": ("a positive number", lambda value: _is_number(value) and value > 0),
}
_ATTRIBUTES = {"lambda_coef": "weight_decay", "do_bias_correction": "bias_correction", "weight_decay_mode": "mode"}
_MOMENTS = ("lr", "alpha", "beta", "lambda_coef", "epsilon", "max_norm_clip", "do_bias_correction")
_SHARED = {"lr": "learning rate", "max_norm_clip": "norm"}
"""What is one for all parameters, and no attribute of their updates."""
_OPTIMIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "SGDOptimizer": ("SGD", ("lr", "momentum", "nesterov", "weight_decay")),
    "AdamOptimizer": ("AdamW", (*_MOMENTS, "weight_decay_mode")),
    "LambOptimizer": ("Lamb", (*_MOMENTS, "ratio_min", "ratio_max")),
}


class _OptimizerConfig:
    """Hyper-parameters of an optimizer, read and set as attributes: `config.lr = 1e-4`.

    Those of a group are its items: `config.params[0]["beta"] = 0.99`. What is set acts from the next step on.

    Args:
        name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        params: parameter groups `{"params": [names], hyper-parameter: value, …}` that override the defaults for the
            parameters named. The learning rate is one for all: it may not be in a group.
        defaults: hyper-parameters for all other parameters; "lr" must be among them.

    Raises:
        OptionError: a name is unknown or a value out of range, here and whenever a hyper-parameter is set.
    """

    name: str
    defaults: HyperParameters
    lr: float
    max_norm_clip: float

    def __init__(self, name: str, params: Sequence[Mapping[str, object]], defaults: Mapping[str, object]) -> None:
        if not isinstance(name, str) or name not in _OPTIMIZERS:
            raise OptionError(f"there is no optimizer {name!r}", way_out=f"use one of {', '.join(_OPTIMIZERS)}")
        checked_kind("defaults", defaults, Mapping, "give a dictionary of hyper-parameters")
        vars(self).update(name=name, defaults=HyperParameters(defaults, self._check_defaults), _groups=[])
        if "lr" not in self.defaults:
            raise OptionError(f"the defaults of {name} have no 'lr'", way_out="add {'lr': a number from 0}")
        self._check_defaults(self.defaults)
        if not isinstance(params, list | tuple | ParameterGroups):
            raise OptionError(f"params is a {type(params).__name__}", way_out="use a list of dicts, [] for no groups")
        for group in params:
            self._add_param_group(group.set_here() if isinstance(group, HyperParameters) else group)

    @property
    def params(self) -> ParameterGroups:
        """The parameter groups, each with all hyper-parameters: its own, and the defaults for the others."""
        return ParameterGroups(self._groups)

    def spec(self) -> OptimizerSpec:
        """Return the algorithm and its attributes as the graph needs them, without the learning rate."""
        groups = [(frozenset(group["params"]), self._attributes(group.own)) for group in self._groups]
        return OptimizerSpec(_OPTIMIZERS[self.name][0], self._attributes(self.defaults.own), groups)

    def _add_param_group(self, group: Mapping[str, object]) -> None:
        names = group.get("params") if isinstance(group, Mapping) else None
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names) or len(group) < 2:
            raise OptionError(
                f"{group!r} is no parameter group",
                way_out="use {'params': [names of parameters], 'a hyper-parameter': value, …}",
            )
        overrides = {key: value for key, value in group.items() if key != "params"}
        self._check_group(plain_values(overrides))
        self._groups.append(HyperParameters(overrides, self._check_group, self.defaults, names))
        self.spec()  # notices a parameter in two groups

    def _check_group(self, options: Mapping[str, object]) -> None:
        for name, all_share in _SHARED.items():
            if name in options:
                raise OptionError(f"a parameter group sets {name!r}", way_out=f"set one {all_share} for all parameters")
        self._check_each(options)
        self._check_together({**self.defaults, **options})

    def _check_defaults(self, options: Mapping[str, object]) -> None:
        self._check_each(options)
        for group in ({}, *(group.own for group in self._groups)):
            self._check_together({**options, **group})

    def _check_each(self, options: Mapping[str, object]) -> None:
        """Raise OptionError unless every name is known and every value in range."""
        known = _OPTIMIZERS[self.name][1]
        for key, value in options.items():
            if key not in known:
                raise OptionError(
                    f"{self.name} has no hyper-parameter {key!r}", way_out=f"nearest: {nearest(key, known)}"
                )
            allowed, fits = _RANGES[key]
            if not fits(value):
                raise OptionError(f"{key} of {self.name} is {value!r}", way_out=f"use {allowed}")

    @staticmethod
    def _check_together(together: Mapping[str, Any]) -> None:
        """Raise OptionError unless the values of a group, those that it takes from the defaults too, fit together."""
        if together.get("ratio_min", -math.inf) > together.get("ratio_max", math.inf):
            raise OptionError("ratio_min is above ratio_max", way_out="use ratio_min ≤ ratio_max")
        if together.get("nesterov") and not together.get("momentum"):
            raise OptionError("nesterov is set without momentum", way_out="use a momentum above 0")

    @staticmethod
    def _attributes(options: Mapping[str, object]) -> dict[str, Any]:
        return {_ATTRIBUTES.get(key, key): value for key, value in options.items() if key not in (*_SHARED, "params")}

    def __getattr__(self, name: str) -> Any:
        defaults = vars(self).get("defaults", {})
        if name in defaults:
            return defaults[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        self.defaults[name] = value

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.defaults.items())
        return f"{type(self).__name__}({shown}, params={self._groups!r})"


class SGDConfig(_OptimizerConfig):
    """Stochastic gradient descent as torch.optim.SGD; takes no parameter groups, `params` must be empty."""

    momentum: float
    nesterov: bool
    weight_decay: float

    def __init__(
        self,
        params: Sequence[Mapping[str, object]] = (),
        lr: float = 0.001,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if not isinstance(params, list | tuple) or params:
            raise OptionError("SGDConfig takes no parameter groups", way_out="pass params=[]")
        hyper = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__("SGDOptimizer", params, hyper)


class AdamConfig(_OptimizerConfig):
    """Adam with decoupled weight decay `lambda_coef`; as configured by default, torch.optim.AdamW without decay.

    The gradient is clipped to the global norm `max_norm_clip`, unless `utils.grad_norm_clip` is off or
    `utils.max_grad_norm` says another norm.
    """

    DecayMode: ClassVar[type[_DecayMode]] = _DecayMode
    alpha: float
    beta: float
    lambda_coef: float
    epsilon: float
    max_norm_clip: float
    do_bias_correction: bool
    weight_decay_mode: _DecayMode

    def __init__(
        self,
        params: Sequence[Mapping[str, object]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        epsilon: float = 1e-8,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = True,
        weight_decay_mode: _DecayMode = _DecayMode.BEFORE_WEIGHT_UPDATE,
    ) -> None:
        hyper = {"lr": lr, "alpha": alpha, "beta": beta, "lambda_coef": lambda_coef, "epsilon": epsilon}
        hyper |= {"max_norm_clip": max_norm_clip, "do_bias_correction": do_bias_correction}
        hyper |= {"weight_decay_mode": weight_decay_mode}
        super().__init__("AdamOptimizer", params, hyper)


class LambConfig(_OptimizerConfig):
    """LAMB (You et al. 2020), whose trust ratio is kept in [ratio_min, ratio_max]; `max_norm_clip` as AdamConfig's.

    The moments are divided by 1 − alphaᵗ and 1 − betaᵗ with `do_bias_correction` only. It is off here, and on in
    AdamConfig, as in onnxruntime-training 1.19.2. Versions of onnxruntime-training whose LambConfig has no
    `max_norm_clip` had it on. The recipe for BERT turns it on itself.
    """

    alpha: float
    beta: float
    lambda_coef: float
    ratio_min: float
    ratio_max: float
    epsilon: float
    max_norm_clip: float
    do_bias_correction: bool

    def __init__(
        self,
        params: Sequence[Mapping[str, object]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        ratio_min: float = -math.inf,
        ratio_max: float = math.inf,
        epsilon: float = 1e-6,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = False,
    ) -> None:
        hyper = {"lr": lr, "alpha": alpha, "beta": beta, "lambda_coef": lambda_coef, "epsilon": epsilon}
        hyper |= {"ratio_min": ratio_min, "ratio_max": ratio_max, "max_norm_clip": max_norm_clip}
        hyper |= {"do_bias_correction": do_bias_correction}
        super().__init__("LambOptimizer", params, hyper)
