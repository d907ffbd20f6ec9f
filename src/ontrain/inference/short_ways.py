"""Ways of a run from arrays to arrays, past tensors over planned memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ontrain.inference.small_models import SmallModel
from ontrain.providers import AtOnce, Executable

__all__ = ["ShortWays"]


class ShortWays:
    """The last plan's way, if it has one, and a small model's as a whole.

    The plan's comes first, but not for a node or two: onnxruntime may have a kernel where the plan has a body.

    Args:
        of_plan: gives a plan's way; None for a provider whose plans have none.
        small: the model, if it is a small one.
    """

    def __init__(self, of_plan: Callable[[Executable], AtOnce | None] | None, small: SmallModel | None) -> None:
        self._of_plan, self._small = of_plan, small
        self._plan: tuple[AtOnce, Sequence[str], Mapping[str, int]] | None = None
        """The last plan's way, the names of the file's outputs, and the place of each among the results."""

    def settle(self, executable: Executable, names: Sequence[str], inner: Mapping[str, str]) -> None:
        """Take the way of a plan.

        Args:
            executable: the plan.
            names: of the file's outputs, in order.
            inner: the plan's names of those that have another one there.
        """
        call = None if self._of_plan is None else self._of_plan(executable)
        self._plan = None
        if call is not None:
            self._plan = call, names, {name: call.names.index(inner.get(name, name)) for name in names}

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Return the results; None where there is no way for such feeds."""
        small = self._small
        if small is None:
            return self._by_plan(output_names, feeds)
        results = small.run(output_names, feeds) if small.is_few else None
        if results is not None:
            return results
        results = self._by_plan(output_names, feeds)
        if results is None:
            return None if small.is_few else small.run(output_names, feeds)
        if small.is_few:
            self.compare(output_names, feeds, results)
        return results

    def compare(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], results: Sequence[Any]) -> None:
        """Compare results with those that a small model gives as a whole, as long as it is not known to be right."""
        if self._small is not None and not self._small.compare(output_names, feeds, results):
            self._small = None

    def _by_plan(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any] | None:
        if self._plan is None:
            return None
        call, names, places = self._plan
        kinds = call.kinds
        if len(kinds) != len(feeds):
            return None
        for name, array in feeds.items():
            if type(array) is not np.ndarray or kinds.get(name) != (array.dtype, array.shape):
                return None
        try:
            results = call(feeds)
            return [results[places[name]] for name in output_names or names]
        except Exception:  # noqa: BLE001 (the usual way tells what is wrong)
            return None
