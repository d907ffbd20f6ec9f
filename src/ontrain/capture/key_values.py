"""Caches of keys and values, which Hugging Face's models return unless they are told not to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ontrain.capture.structure import Spec

__all__ = ["asks_for_cache", "with_unread", "without_cache"]


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


def asks_for_cache(module: nn.Module) -> bool:
    """Whether a forward within `without_cache` would have made a cache because its configuration says so."""
    answers = [getattr(config, "use_cache", None) for config in _configs(module)]
    return any(isinstance(answer, _Asked) and answer.asked for answer in answers)


def with_unread(spec: Spec, whole: Spec, name: str = "the result") -> Spec | None:
    """Return the structure of a result with what refuses to be read at each place that only the whole result fills.

    Args:
        spec: of the result that the graph computes.
        whole: of the result that the module returns with its cache.
        name: of the result.

    Returns:
        None if the one is not the other with parts left out, or could be so in several ways.
    """
    if spec.kind == "plain" and spec.value is None and whole != spec:
        return Spec("unread", value=name)
    if spec.kind != whole.kind:
        return None
    if spec.kind in ("tensor", "plain"):
        return spec
    if spec.type is not whole.type:
        return None
    places = _places(spec, whole)
    if places is None:
        return None
    children = []
    for index, (key, part) in enumerate(zip(whole.keys, whole.children, strict=True)):
        path = f"element {key}" if spec.kind == "sequence" else str(key)
        inner = with_unread(spec.children[places[index]], part, path) if index in places else Spec("unread", value=path)
        if inner is None:
            return None
        children.append(inner)
    return dataclasses.replace(spec, keys=whole.keys, children=tuple(children))


def _places(spec: Spec, whole: Spec) -> dict[int, int] | None:
    """For each part of the whole which part of the smaller structure it is, where it is there and in one way only."""
    if spec.kind != "sequence":
        at = {key: index for index, key in enumerate(spec.keys)}
        places = {index: at[key] for index, key in enumerate(whole.keys) if key in at}
        return places if len(places) == len(at) else None
    first = _first_places(spec.children, whole.children)
    last = _first_places(spec.children[::-1], whole.children[::-1])
    ends = len(whole.children) - 1, len(spec.children) - 1
    if first is None or last is None or first != {ends[0] - i: ends[1] - j for i, j in last.items()}:
        return None
    return first


def _first_places(parts: Sequence[Spec], whole: Sequence[Spec]) -> dict[int, int] | None:
    places: dict[int, int] = {}
    for index, part in enumerate(whole):
        if len(places) < len(parts) and with_unread(parts[len(places)], part) is not None:
            places[index] = len(places)
    return places if len(places) == len(parts) else None


def _configs(module: nn.Module) -> list[Any]:
    configs = [config for part in module.modules() if hasattr(config := getattr(part, "config", None), "__dict__")]
    return list({id(config): config for config in configs}.values())
