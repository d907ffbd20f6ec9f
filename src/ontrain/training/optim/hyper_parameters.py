"""The hyper-parameters of an optimizer configuration as mappings that check what is set in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, overload

from ontrain.arguments import plain_values
from ontrain.errors import OptionError

__all__ = ["HyperParameters", "ParameterGroups"]


class HyperParameters(MutableMapping[str, Any]):
    """Values by name, those for all parameters or those of a group; what is set acts from the next step on.

    Args:
        own: the values that are set here.
        check: raises OptionError for names and values that the optimizer does not take.
        others: where the values that are not set here come from.
        params: the names of a group's parameters, which are read as its "params".
    """

    def __init__(
        self, own: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None],
        others: Mapping[str, Any] | None = None, params: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.own, self._check, self._others = plain_values(own), check, {} if others is None else others
        self._params = {} if params is None else {"params": list(params)}

    def __getitem__(self, name: str) -> Any:
        if name in self._params:
            return list(self._params[name])
        return self.own[name] if name in self.own else self._others[name]

    def __setitem__(self, name: str, value: object) -> None:
        if name in self._params:
            raise _fixed("the parameters of a group are those that it was made with")
        values = {**self.own, **plain_values({name: value})}
        self._check(values)
        self.own.update(values)

    def __delitem__(self, name: str) -> None:
        if name in self._params or (name in self.own and name not in self._others):
            raise _fixed(f"{name!r} cannot be taken from an optimizer's configuration")
        values = {key: value for key, value in self.own.items() if key != name}
        self._check(values)
        del self.own[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._others, **self._params, **self.own})

    def __len__(self) -> int:
        return len({**self._others, **self._params, **self.own})

    def __repr__(self) -> str:
        return repr(self.set_here())

    def set_here(self) -> dict[str, Any]:
        """Return what is set here, without what comes from elsewhere."""
        return {**self._params, **self.own}


class ParameterGroups(Sequence[HyperParameters]):
    """The groups of a configuration, in order. There are as many as it was made with; what they hold can be set."""

    def __init__(self, groups: Sequence[HyperParameters]) -> None:
        self._groups = groups

    @overload
    def __getitem__(self, index: int) -> HyperParameters: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HyperParameters]: ...
    def __getitem__(self, index: int | slice) -> HyperParameters | Sequence[HyperParameters]:
        return self._groups[index]

    def __len__(self) -> int:
        return len(self._groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self._groups))

    def append(self, group: Mapping[str, object]) -> None:
        """Refuse a further group.

        Raises:
            OptionError: always.
        """
        raise _fixed("the groups of a configuration are those that it was made with")


def _fixed(problem: str) -> OptionError:
    return OptionError(problem, way_out="make a new configuration, and give it to the trainer as its optim_config")
