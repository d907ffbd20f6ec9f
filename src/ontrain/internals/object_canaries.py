"""Trials of what tensors, modules, packages and stores of processes have of their own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ontrain.internals.canary import expect

__all__ = [
    "collects",
    "counts_places",
    "counts_writes",
    "has_functions_of_its_own",
    "is_a_dictionary",
    "is_an_error",
    "is_base_of_batch_norms",
    "keeps_a_store",
    "knows_casts",
    "logs_under_its_name",
    "makes_sparse",
    "marks_parameters",
    "maps_trees",
    "number",
    "returns",
    "shows_places",
    "sums_sparse",
    "tables_of_hooks",
    "tables_of_modules",
    "tables_of_parameter_hooks",
    "tells_who_keeps",
    "wraps",
]


def is_a_dictionary(hooks: Any) -> None:
    """Hooks are in a dictionary, which is empty where there are none."""
    expect(isinstance(hooks, dict), "it is no dictionary")


def is_base_of_batch_norms(base: Any) -> None:
    """Every batch normalisation is one of its kind."""
    expect(all(issubclass(norm, base) for norm in (nn.BatchNorm1d, nn.SyncBatchNorm)), "it is not their base")
    expect(hasattr(nn.BatchNorm1d(2), "track_running_stats"), "it has other attributes")


def number() -> torch.Tensor:
    """A tensor."""
    return torch.ones(())


def maps_trees(pytree: Any) -> None:
    """Trees of lists, tuples and dictionaries."""
    tree = [1, (2, {"a": 3})]
    expect(pytree.tree_map(lambda x: x + 1, tree) == [2, (3, {"a": 4})], "tree_map gives something else")
    expect(pytree.tree_leaves(tree) == [1, 2, 3], "tree_leaves gives something else")
    expect(pytree.tree_map_only(int, str, tree) == ["1", ("2", {"a": "3"})], "tree_map_only gives something else")


def tables_of_modules(_: object) -> None:
    """A module's tensors and children are in its tables."""
    module: Any = nn.Sequential(nn.BatchNorm1d(2))
    module.register_buffer("passing", torch.ones(1), persistent=False)
    (norm,) = module._modules.values()
    expect("running_mean" in norm._buffers and "weight" in norm._parameters, "its tensors are elsewhere")
    expect(module._non_persistent_buffers_set == {"passing"}, "passing buffers are elsewhere")


def tables_of_hooks(_: object) -> None:
    """A module's hooks are in its tables."""
    module: Any = nn.Identity()
    for register, table in (
        (module.register_forward_hook, "_forward_hooks"), (module.register_forward_pre_hook, "_forward_pre_hooks"),
        (module.register_full_backward_hook, "_backward_hooks"),
        (module.register_full_backward_pre_hook, "_backward_pre_hooks"),
    ):  # fmt: skip
        register(print)
        expect(len(getattr(module, table)) == 1, f"{table} lacks a hook")


def tables_of_parameter_hooks(_: object) -> None:
    """A parameter's hooks are in its tables."""
    parameter: Any = nn.Parameter(torch.ones(2))
    for register, table in (
        (parameter.register_hook, "_backward_hooks"),
        (parameter.register_post_accumulate_grad_hook, "_post_accumulate_grad_hooks"),
    ):
        expect(not getattr(parameter, table), f"{table} has a hook that nobody registered")
        register(print)
        expect(len(getattr(parameter, table)) == 1, f"{table} lacks a hook")


def counts_writes(_: object) -> None:
    """It grows with each write in place."""
    x = torch.ones(2)
    before = x._version
    x.add_(1)
    expect(x._version > before, "a write is not counted")


def marks_parameters(_: object) -> None:
    """A tensor that has it is an `nn.Parameter` to `isinstance`."""
    x: Any = torch.ones(2)
    x._is_param = True
    expect(isinstance(x, nn.Parameter), "a tensor that has it is no parameter")


def shows_places(_: object) -> None:
    """A sparse matrix whose places occur twice shows them as they are."""
    matrix = _doubled()
    expect(torch.equal(matrix._indices(), torch.tensor([[0, 0], [1, 1]])), "other places")
    expect(torch.equal(matrix._values(), torch.tensor([1.0, 2.0])), "other values")


def _doubled() -> torch.Tensor:
    """A sparse matrix in which one place occurs twice.

    PyTorch warns where nobody says whether places are checked; 2.11 does so even when the call itself says it.
    """
    places, values = torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0])
    with torch.sparse.check_sparse_tensor_invariants(True):
        return torch.sparse_coo_tensor(places, values, (2, 3))


def counts_places(count: Any) -> None:
    """It counts the places of a sparse matrix."""
    matrix = _doubled()
    expect(count(matrix) == 2 and count(matrix.coalesce()) == 1, "another number of places")


def sums_sparse(add_up: Any) -> None:
    """It sums all values of a sparse matrix, or those along a dimension."""
    matrix = _doubled()
    expect(float(add_up(matrix)) == 3.0, "another sum")
    expect(torch.equal(add_up(matrix, [1]).to_dense(), torch.tensor([3.0, 0.0])), "other sums of rows")


def makes_sparse(make: Any) -> None:
    """It takes numbers of sparse and dense dimensions, the shape, places and values."""
    places, values = torch.tensor([[0, 1], [2, 0]]), torch.tensor([1.0, 2.0])
    matrix = make(2, 0, (2, 3), places, values, dtype=values.dtype, layout=torch.sparse_coo, is_coalesced=True)
    expect(matrix.is_coalesced(), "the matrix does not know that each place occurs once")
    expect(torch.equal(matrix.to_dense(), torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]])), "another matrix")


class _Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


def wraps(make: Any) -> None:
    """It makes a tensor without values that has a shape and a dtype."""
    wrapped = make(_Wrapped, (2, 3), dtype=torch.float64, device=torch.device("cpu"))
    expect(tuple(wrapped.shape) == (2, 3) and wrapped.dtype == torch.float64, "it has another shape or dtype")


def collects(collect: Any) -> None:
    """What torch takes apart wherever it is called: `linear` is among it, `add` is not; torch asks for it anew."""
    composites = collect()
    aten = torch.ops.aten
    expect(aten.linear.default in composites and aten.add.Tensor not in composites, "other operators than composites")


def knows_casts(has_kernel: Any) -> None:
    """Whether an operator has a kernel of a kind: autocast has one for products, and none for einsum on a CPU."""
    expect(has_kernel("aten::linear", "AutocastCPU"), "autocast knows no products")
    expect(not has_kernel("aten::sin", "AutocastCPU"), "autocast knows elementwise operators")
    expect(has_kernel("aten::linear", "CompositeImplicitAutograd"), "products are not made of other operators")


def returns(value: Any, *args: Any) -> Callable[[Any], None]:
    """Called where nothing is going on, it returns this."""

    def check(function: Any) -> None:
        got = function(*args) if callable(function) else function
        expect(type(got) is type(value) and got == value, f"{got!r} instead of {value!r}")

    return check


def is_an_error(error: Any) -> None:
    """It is what a trace raises where a value is needed."""
    expect(isinstance(error, type) and issubclass(error, Exception), "it is no exception")


def logs_under_its_name(module: Any) -> None:
    """The module's logger has the module's name."""
    expect(isinstance(module.log, logging.Logger) and module.log.name == module.__name__, "its logger has another name")


def has_functions_of_its_own(module: Any) -> None:
    """Autograd functions are defined there, or made there by a function of that name."""
    expect(
        hasattr(module, "make_autograd_impl")
        or any(
            isinstance(function, type)
            and issubclass(function, torch.autograd.Function)
            and function.__module__ == module.__name__
            for function in vars(module).values()
        ),
        "no autograd function is there",
    )


def keeps_a_store(store: Any) -> None:
    """Two clients in one process share a store at one port, and find what the other has put there."""
    place: Any = {"wait_for_workers": False, "multi_tenant": True, "timeout": timedelta(seconds=5)}
    keeper = store("127.0.0.1", 0, is_master=True, **place)
    first, other = (
        dist.PrefixStore("canary", client)  # type: ignore[attr-defined]
        for client in (keeper, store("127.0.0.1", keeper.port, is_master=True, **place))
    )
    expect(not other.check(["a"]), "a store has what nobody put there")
    first.set("a", "1")  # does not wait; get does
    expect(other.get("a") == b"1" and other.check(["a"]), "a client does not find what another has put there")
    expect(other.compare_set("b", "", "2") == b"2", "what is not there is not set")
    expect(first.compare_set("b", "", "3") == b"2", "what is there is set anew")


def tells_who_keeps(asks: Any) -> None:
    """It answers as the variable that torchrun sets."""
    wanted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    expect(asks() is wanted, f"it does not answer {wanted}")
