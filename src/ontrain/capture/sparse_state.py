"""Sparse matrices that a forward is given, or finds in its module, as the dense tensors that a graph takes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.internals import of, private

__all__ = ["PARTS", "HeldMatrix", "assembled", "dense_state", "parts_of", "sparse_tensors"]

PARTS = ("indices", "values", "rows", "columns")
"""What a matrix is taken apart into; the last two are empty, and as long as the matrix is high and wide."""
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def parts_of(tensor: torch.Tensor) -> tuple[list[torch.Tensor], bool] | None:
    """Return what a sparse matrix of numbers consists of, and whether each place occurs once; None of other tensors.

    Args:
        tensor: of any layout, and no leaf of autograd's graph, whose gradient may be dense. Compressed rows and
            columns, and blocks, are taken apart into places. Values at one place are added up if the tensor wants a
            gradient.

    Returns:
        Tensors as `PARTS` names them: int64 [2, N], [N], [0, height], [0, width]. autograd follows the values.
    """
    if tensor.layout is torch.strided or tensor.is_nested or tensor.dim() != 2:
        return None
    if tensor.requires_grad and tensor.is_leaf:
        return None
    if tensor.layout in _COMPRESSED:
        if tensor.dense_dim():
            return None
        tensor = tensor.to_sparse_coo()
    if tensor.layout is not torch.sparse_coo or tensor.sparse_dim() != 2:
        return None
    if tensor.requires_grad:
        tensor = tensor.coalesce()
    once = tensor.is_coalesced()
    values = tensor.values() if once else of("torch.Tensor._values", tensor)()
    places = of("torch.Tensor._indices", tensor)()
    return [places, values, *(values.new_empty((0, size)) for size in tensor.shape)], once


def assembled(parts: Sequence[torch.Tensor], once: bool) -> torch.Tensor:
    """Return the matrix of what `parts_of` returns."""
    _tell_shapes_of_products()
    places, values, height, width = parts
    # Unlike torch.sparse_coo_tensor it takes sizes that vary.
    matrix: torch.Tensor = private("torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors")(
        2, 0, (height.shape[1], width.shape[1]), places, values, dtype=values.dtype, layout=torch.sparse_coo,
        device=values.device, is_coalesced=once,
    )  # fmt: skip
    return matrix


@functools.cache
def _tell_shapes_of_products() -> torch.library.Library:
    """Tell torch the shapes of products with sparse matrices without values, which it knows for fixed sizes only."""
    library = torch.library.Library("aten", "IMPL")
    for name, shape in (("mm", _mm), ("addmm", _addmm)):
        library.impl(name, shape, "SparseMeta")
    return library


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    layout = torch.sparse_coo if a.is_sparse and b.is_sparse else torch.strided
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device, layout=layout)


def _addmm(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device, layout=c.layout)


def sparse_tensors(module: nn.Module) -> list[tuple[str, nn.Module, str, torch.Tensor]]:
    """Return a module's sparse parameters, buffers and attributes: what each is, its owner, its name and itself."""
    held = []
    for path, submodule in module.named_modules():
        tables = {
            "parameter": dict(submodule.named_parameters(recurse=False)),
            "buffer": _buffers(submodule), "attribute": vars(submodule),
        }  # fmt: skip
        held += [
            (f"{kind} {f'{path}.{name}'.removeprefix('.')!r}", submodule, name, value)
            for kind, table in tables.items()
            for name, value in table.items()
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided
        ]
    return held


@dataclass(frozen=True)
class HeldMatrix:
    """A matrix that a module holds, whose parts are attributes of the module for as long as it is traced.

    Attributes:
        owner: the module.
        name: of the matrix.
        once: whether each place occurs once.
    """

    owner: nn.Module
    name: str
    once: bool

    @property
    def attributes(self) -> list[str]:
        """The names of the parts."""
        return [f"{self.name}.{part}" for part in PARTS]

    def assemble(self) -> None:
        """Put the matrix in its place."""
        named = vars(self.owner)
        named[self.name] = assembled([named[attribute] for attribute in self.attributes], self.once)


@contextmanager
def dense_state(module: nn.Module) -> Iterator[list[HeldMatrix]]:
    """Have a module hold the parts of its sparse matrices in their place, whose values a graph then has as constants.

    Raises:
        CaptureError: it holds a sparse tensor that is no matrix of numbers, or that is trained.
    """
    tensors = sparse_tensors(module)
    taken = {id(tensor): _taken_apart(what, tensor) for what, _, _, tensor in tensors}
    buffers = [(table, dict(table)) for table in {id(t): t for t in map(_buffers, module.modules())}.values()]
    held = [HeldMatrix(owner, name, taken[id(tensor)][1]) for _, owner, name, tensor in tensors]
    try:
        for matrix, (_, owner, name, tensor) in zip(held, tensors, strict=True):
            _buffers(owner).pop(name, None)
            vars(owner).pop(name, None)
            vars(owner).update(zip(matrix.attributes, taken[id(tensor)][0], strict=True))
        yield held
    finally:
        for matrix in held:
            for attribute in (*matrix.attributes, matrix.name):
                vars(matrix.owner).pop(attribute, None)
        for table, before in buffers if held else ():
            table.clear()
            table.update(before)
        for what, owner, name, tensor in tensors:
            if what.startswith("attribute"):
                vars(owner)[name] = tensor


def _buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    table: dict[str, torch.Tensor | None] = of("torch.nn.Module._buffers", module)
    return table


def _taken_apart(what: str, tensor: torch.Tensor) -> tuple[list[torch.Tensor], bool]:
    parts = parts_of(tensor.detach()) if not tensor.requires_grad else None
    if parts is not None:
        return [part.clone() for part in parts[0]], parts[1]  # views of the matrix cannot be traced
    raise CaptureError(
        f"{what} is sparse ({tensor.layout})",
        reason="it is trained, and an optimizer here updates dense tensors" if tensor.requires_grad
        else "a graph has sparse matrices of numbers",
        way_out="register its indices() and values() as buffers, or parameters, and call "
        "torch.sparse_coo_tensor(indices, values, size) in forward",
    )  # fmt: skip
