"""Caches of keys and values, which Hugging Face's models return unless they are told not to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ontrain.capture.structure import Spec

__all__ = ["with_unread_cache", "without_cache"]

_FIELD = "past_key_values"


class _Asked(int):
    """False, and whether somebody asked: a model that only encodes does not, whatever its configuration says."""

    asked = False

    def __bool__(self) -> bool:
        self.asked = True
        return False


@contextmanager
def without_cache(module: nn.Module) -> Iterator[None]:
    """Have models whose configuration asks for a cache make none, for a graph would compute it in every step."""
    configs = [config for config in _configs(module) if getattr(config, "use_cache", None) is True]
    for config in configs:
        # Past a configuration that checks the types of what it is given.
        config.__dict__["use_cache"] = _Asked()
    try:
        yield
    finally:
        for config in configs:
            config.__dict__["use_cache"] = True


def with_unread_cache(spec: Spec, module: nn.Module) -> Spec:
    """Return the structure of a result with what refuses to be read where the module would have put a cache."""
    answers = [getattr(config, "use_cache", None) for config in _configs(module)]
    return _filled(spec) if any(isinstance(one, _Asked) and one.asked for one in answers) else spec


def _filled(spec: Spec) -> Spec:
    spec = dataclasses.replace(spec, children=tuple(map(_filled, spec.children)))
    fields = getattr(spec.type, "__dataclass_fields__", {}) if spec.kind == "mapping" else {}
    if _FIELD not in fields or _FIELD in spec.keys:
        return spec
    children = {**dict(zip(spec.keys, spec.children, strict=True)), _FIELD: Spec("unread", value=_FIELD)}
    keys = tuple(name for name in fields if name in children)
    return dataclasses.replace(spec, keys=keys, children=tuple(children[name] for name in keys))


def _configs(module: nn.Module) -> list[Any]:
    found = [config for one in module.modules() if hasattr(config := getattr(one, "config", None), "__dict__")]
    return list({id(config): config for config in found}.values())
