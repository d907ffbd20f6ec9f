"""`torch.func.functional_call(model, state, arguments)`: tensors in the place of parameters are inputs of the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ontrain.internals import of

__all__ = ["GivenState", "given_parameters"]


def given_parameters(module: nn.Module, attributes: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors that stand in the place of parameters, by name, for as long as a functional call takes.

    Args:
        module: whose forward is called.
        attributes: names of `computed_attributes` that earlier calls had.
    """
    substitutes = {
        name: tensor
        for name, table, key in _places(module)
        if (tensor := table[key]) is not None and not isinstance(tensor, nn.Parameter)
    }
    attached = {name: table[key] for name, table, key in _attributes(module, attributes)}
    return substitutes | {name: value for name, value in attached.items() if isinstance(value, torch.Tensor)}


def computed_attributes(module: nn.Module, tensors: Iterable[torch.Tensor]) -> set[str]:
    """Return the names of plain attributes that hold one of some tensors, as far as others have computed it.

    layer.weight = hypernetwork(context)  # another tensor in each step
    """
    computed = {id(tensor) for tensor in tensors if tensor.grad_fn is not None}
    return {
        f"{prefix}.{key}" if prefix else key
        for prefix, part in module.named_modules()
        for key, value in part.__dict__.items()
        if id(value) in computed
    }


class GivenState:
    """Runs a module with tensors in the place of its parameters.

    Args:
        module: whose forward it is.
        engine: makes what captures and runs a module.
    """

    def __init__(self, module: nn.Module, engine: Callable[[nn.Module], Callable[..., Any]]) -> None:
        self._module, self._engine = module, engine(_Functional(module))
        self._unread: dict[str, nn.Parameter] = {}

    def __call__(
        self, tensors: Mapping[str, torch.Tensor], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Any:
        """Return what forward returns with these tensors; gradients flow to them."""
        with self._parameters(tensors):
            result, written = self._engine((dict(tensors), args, dict(kwargs)), {})
        for name, table, key in _attributes(self._module, written):
            table[key] = written[name]
        return result

    @contextmanager
    def _parameters(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Have parameters in the places of the given tensors, always the same ones: torch.export asks for some."""
        places = [place for place in _places(self._module) if place[0] in tensors]
        attributes = _attributes(self._module, tensors)
        # FullyShardedDataParallel has a tensor in both tables: without the attribute, forward reads the parameter.
        hidden = [place for place in attributes if place[0] in {name for name, _, _ in places}]
        attached = [place for place in attributes if place not in hidden]
        for name, table, key in (*places, *attached):
            table[key] = self._unread_like(name, tensors[name])
        for _, table, key in hidden:
            del table[key]
        try:
            yield
        finally:
            for name, table, key in (*places, *attributes):
                table[key] = tensors[name]

    def _unread_like(self, name: str, tensor: torch.Tensor) -> nn.Parameter:
        unread = self._unread.get(name)
        if unread is None or (unread.shape, unread.dtype, unread.device) != (tensor.shape, tensor.dtype, tensor.device):
            unread = self._unread[name] = nn.Parameter(torch.empty_like(tensor.detach()), requires_grad=False)
        return unread


class _Functional(nn.Module):
    """A module as a function of its parameters and its arguments."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training

    def forward(
        self, state: dict[str, torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return the module's result, and the tensors that it has put in the places of some of the state."""
        after = dict(state)  # in which torch leaves what the module has put there
        result = torch.func.functional_call(self.module, after, args, kwargs)
        return result, {name: tensor for name, tensor in after.items() if tensor is not state[name]}


def _attributes(module: nn.Module, names: Collection[str]) -> list[tuple[str, dict[str, Any], str]]:
    """Return where the plain attributes of these names are, as far as they are there."""
    if not names:
        return []
    parts = dict(module.named_modules())
    split = [(name, *name.rpartition(".")[::2]) for name in names]
    tables = [(name, parts[prefix].__dict__, key) for name, prefix, key in split if prefix in parts]
    return [(name, table, key) for name, table, key in tables if key in table]


def _places(module: nn.Module) -> list[tuple[str, dict[str, Any], str]]:
    """Return each parameter's name, and where it is: a table of a submodule, and the key there."""
    tables = [(prefix, of("torch.nn.Module._parameters", part)) for prefix, part in module.named_modules()]
    return [(f"{prefix}.{key}" if prefix else key, table, key) for prefix, table in tables for key in table]
