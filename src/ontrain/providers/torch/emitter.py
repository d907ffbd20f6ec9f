"""The emitter that lowerings write instructions with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.internals import of, private
from ontrain.providers.torch.buffers import Buf, Storage, torch_dtype
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.strips import strips

__all__ = ["Emitter", "Instruction", "outside"]

# A Python number in the place of these functions' second operand is made a tensor, and cast, at every call.
_TAKE_TENSORS: frozenset[Callable[..., Any]] = frozenset({
    torch.add, torch.sub, torch.mul, torch.div, torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge,
    torch.bitwise_and, torch.bitwise_left_shift, torch.bitwise_right_shift,
    torch.Tensor.add_, torch.Tensor.sub_, torch.Tensor.mul_, torch.Tensor.div_,
})  # fmt: skip
# In these it is the same number as a tensor of the first operand's dtype; half precision would round it.
_KEEP_NUMBERS = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8})


@dataclass(eq=False)
class Instruction:
    """One call: a function, its arguments with `Buf`s where tensors will be, and what memory it touches."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: list[Buf]
    writes: list[Buf]
    node: ir.Node | None
    reuses: list[Buf] = field(default_factory=list)
    """Inputs whose memory the (single) output may take over if they die here."""
    results: list[Buf | None] | None = None
    """What the function returns, for one that does not write into its arguments; None for what nobody wants."""
    fresh: bool = False
    """Whether what it returns is memory of its own, so that it may be held and need not be copied."""
    factors: tuple[Buf, Buf, Buf] | None = None
    """Both factors and the result, where it is a matrix product that the function does not tell."""


def outside(*_: Any) -> None:
    """Stands in a program where buffers are filled or read from outside of it, so that they have a place till then."""


class Emitter:
    """Turns one node after another into instructions over storages that have no memory yet.

    Lowerings take inputs with `value`, make results with `out` (or `new` for a temporary), call ATen with `call`,
    and pass views on with `view` and `bind`, which cost nothing at run time.

    Args:
        device: where the instructions run.
        frame: for the body of a branch or loop, the storage that holds what it computes.
        settings: what the user chose; by default the defaults.
    """

    def __init__(self, device: torch.device, *, frame: Storage | None = None, settings: Settings | None = None) -> None:
        self.device, self.frame = device, frame
        self.settings = settings or Settings()
        self.program: list[Instruction] = []
        self.generators: list[torch.Generator] = []
        self.node: ir.Node | None = None
        self.update_groups: dict[tuple[Any, ...], list[ir.Node]] = {}
        self.gradient_places: dict[ir.Value, Buf] = {}
        self.chosen: dict[ir.Value, Any] = {}
        """Kernels that lowerings chose going forward, by the value that something was kept in place of."""
        self._bufs: dict[ir.Value, Buf] = {}
        self._kept: dict[ir.Value, tuple[Buf | None, ...]] = {}
        self._pins: dict[ir.Value, Buf] = {}
        self._added_to: dict[ir.Value, ir.Value] = {}
        self._skipped: dict[ir.Node, ir.Value | None] = {}
        self._numbers: dict[tuple[float, torch.dtype], Buf] = {}
        self._owned: dict[tuple[int, torch.device], Storage] = {}
        self._moved: dict[Storage, Storage] = {}

    # Values

    def value(self, value: ir.Value | None) -> Buf:
        """Return the buffer that holds a value, in the value's own dtype."""
        buf = self.raw(value)
        assert value is not None
        wanted = torch_dtype(value.dtype)
        return buf if buf.dtype == wanted else self.cast(buf, wanted)

    def raw(self, value: ir.Value | None) -> Buf:
        """Return the buffer bound to a value as it is: a dropout mask may be kept as scaled floats."""
        assert value is not None
        if value not in self._bufs:
            assert value.const_value is not None, f"{value.name} was never computed"
            array = value.const_value.numpy()
            if value.dtype == ir.DataType.BFLOAT16:
                array = array.astype(np.float32)  # torch does not know numpy's bfloat16
            # 0-d constants stay on the CPU: kernels take them as scalars without a transfer.
            device = self.device if array.ndim else torch.device("cpu")
            self._bufs[value] = self.constant(torch.tensor(array, dtype=torch_dtype(value.dtype), device=device))
        return self._bufs[value]

    def constant(self, tensor: torch.Tensor) -> Buf:
        """Return a buffer over a tensor that exists already; tensors of one memory share their `Storage`."""
        key = _address(tensor)
        if key not in self._owned:
            self._owned[key] = Storage(tensor.untyped_storage().nbytes(), tensor)
        return Buf(self._owned[key], _meta_like(tensor))

    def there(self, buf: Buf) -> Buf:
        """Return the buffer where the instructions run: a constant from the CPU as a copy that is made once."""
        have = buf.storage.tensor
        mine = have is not None and self._owned.get(_address(have)) is buf.storage
        if have is None or not mine or have.device.type == self.device.type:
            return buf
        if buf.storage not in self._moved:
            flat = torch.empty(0, dtype=torch.uint8, device=have.device).set_(have.untyped_storage())
            moved = torch.empty(flat.shape, dtype=flat.dtype, device=self.device).copy_(flat)
            self._moved[buf.storage] = Storage(buf.storage.nbytes, moved)
        return Buf(self._moved[buf.storage], buf.meta)

    def bind(self, value: ir.Value, buf: Buf) -> None:
        """Let `value` be what `buf` holds; where the value has a place of its own, copy it there."""
        pin = self._pins.get(value)
        if pin is not None and not (pin.storage is buf.storage and pin.same_layout(buf)):
            self.run(torch.Tensor.copy_, pin, buf, writes=[pin])
            buf = pin
        self._bufs[value] = buf

    def pin(self, value: ir.Value, buf: Buf) -> None:
        """Make `value` be computed into `buf`."""
        self._pins[value] = buf

    def pinned(self, value: ir.Value) -> Buf | None:
        """Return the place that `value` must be computed into, if it has one."""
        return self._pins.get(value)

    def bind_update(self, value: ir.Value, buf: Buf) -> None:
        """Let an update's output be the state it was computed into."""
        self._bufs[value] = buf

    def add_to(self, value: ir.Value, before: ir.Value) -> None:
        """Make the lowering of `value` add it to `before`; both are terms of a sum whose place `value` is pinned to."""
        self._added_to[value] = before

    def added_to(self, value: ir.Value) -> Buf | None:
        """Return what the value is to be added to, if it is; the place itself where that is what is there."""
        before = self._added_to.get(value)
        if before is None:
            return None
        buf, place = self.value(before), self._pins[value]
        return place if buf.storage is place.storage and buf.same_layout(place) else buf

    def skip(self, node: ir.Node, result: ir.Value | None) -> None:
        """Let a node emit nothing: what it gives is where `result` is, or is read by nobody."""
        self._skipped[node] = result

    def skipped(self, node: ir.Node) -> bool:
        """Whether a node emits nothing; its output is bound then."""
        result = self._skipped.get(node)
        if result is not None:
            self._bufs[node.outputs[0]] = self._bufs[result]
        return node in self._skipped

    def keep(self, value: ir.Value, *bufs: Buf | None) -> None:
        """Keep what a kernel needs going backward in place of `value`, which it never computed."""
        self._kept[value] = bufs

    def kept(self, value: ir.Value | None) -> tuple[Buf | None, ...] | None:
        """Return what was kept in place of a value; None if it was computed."""
        return self._kept.get(value) if value is not None else None

    # Memory

    def new(self, shape: Iterable[int], dtype: torch.dtype = torch.float32) -> Buf:
        """Return a contiguous temporary."""
        meta = torch.empty(tuple(shape), dtype=dtype, device="meta")
        return Buf(Storage(max(1, meta.numel()) * dtype.itemsize, frame=self.frame), meta)

    def out(self, value: ir.Value) -> Buf:
        """Return the buffer to compute `value` into, and bind it."""
        buf = self._pins.get(value)
        if buf is None:
            assert value.shape is not None
            buf = self.new((int(d) for d in value.shape.numpy()), torch_dtype(value.dtype))
        self._bufs[value] = buf
        return buf

    # Instructions

    def run(self, fn: Callable[..., Any], *args: Any, writes: Sequence[Buf] = (), **kwargs: Any) -> None:
        """Emit a call that writes into `writes` itself (in-place and `out=` functions)."""
        if fn in _TAKE_TENSORS:
            args = (args[0], self._operand(args[1], args[0].dtype), *args[2:])
        if self.device.type != "cpu":
            args, kwargs = self._all_there((args, kwargs), numbers=fn in _TAKE_TENSORS)
        bufs = list(_bufs_in((args, kwargs)))
        reads = [b for b in bufs if not any(b is w for w in writes)]
        self.program.append(Instruction(fn, args, kwargs, reads, list(writes), self.node))

    def _operand(self, operand: Any, dtype: torch.dtype) -> Any:
        """A number as a tensor that is made once, on the CPU, where kernels take it as the scalar that it is."""
        whole = isinstance(operand, int) and not isinstance(operand, bool)
        if dtype not in _KEEP_NUMBERS or not (whole or (isinstance(operand, float) and dtype.is_floating_point)):
            return operand
        if not dtype.is_floating_point and not torch.iinfo(dtype).min <= operand <= torch.iinfo(dtype).max:
            return operand
        if (operand, dtype) not in self._numbers:
            self._numbers[operand, dtype] = self.constant(torch.tensor(operand, dtype=dtype))
        return self._numbers[operand, dtype]

    def _all_there(self, tree: Any, *, numbers: bool) -> Any:
        """A tree of arguments with no constant on the CPU but, where a kernel takes them as scalars, single numbers."""
        if isinstance(tree, Buf):
            return tree if numbers and not tree.shape else self.there(tree)
        if isinstance(tree, dict):
            return {key: self._all_there(one, numbers=numbers) for key, one in tree.items()}
        if isinstance(tree, list | tuple):
            return type(tree)(self._all_there(one, numbers=numbers) for one in tree)
        return tree

    def call(self, fn: Callable[..., Any], *args: Any, out: Buf, elementwise: bool = False, **kwargs: Any) -> Buf:
        """Emit `fn(*args, out=out)`; an elementwise one may overwrite an input that dies here."""
        self.run(fn, *args, out=out, writes=[out], **kwargs)
        if elementwise:
            self.program[-1].reuses = [a for a in args if isinstance(a, Buf)]
        return out

    def compute(
        self, fn: Callable[..., Any], *args: Any, outs: Sequence[Buf | None], fresh: bool = False, **kwargs: Any
    ) -> None:
        """Emit a call to a function that returns its results. They are copied, or held where that is cheaper.

        Args:
            fn: the function; it returns a tensor, or as many as there are `outs`.
            args: its arguments.
            outs: a place for each result; None skips one.
            fresh: no result shares memory with an argument or with another result: they may be held.
            kwargs: its named arguments.
        """
        self.run(fn, *args, writes=[o for o in outs if o is not None], **kwargs)
        self.program[-1].results, self.program[-1].fresh = list(outs), fresh

    def view(self, buf: Buf, fn: Callable[[torch.Tensor], torch.Tensor]) -> Buf:
        """Return a view of a buffer; `fn` must be a view operation of torch."""
        return Buf(buf.storage, fn(buf.meta))

    def narrow(self, buf: Buf, axis: int, start: int, length: int) -> Buf:
        """Return `length` places of an axis from `start` on, as a view."""
        return self.view(buf, lambda t: t.narrow(axis, start, length))

    def permute(self, buf: Buf, axes: Sequence[int]) -> Buf:
        """Return the axes in another order, as a view."""
        return self.view(buf, lambda t: t.permute(tuple(axes)))

    def reshape(self, buf: Buf, shape: Sequence[int]) -> Buf:
        """Return the buffer in another shape, copying only if strides forbid a view."""
        try:
            return self.view(buf, lambda t: t.view(tuple(shape)))
        except RuntimeError:
            return self.view(self.contiguous(buf), lambda t: t.view(tuple(shape)))

    def contiguous(self, buf: Buf) -> Buf:
        """Return the buffer laid out in row-major order."""
        if buf.meta.is_contiguous():
            return buf
        copy = self.new(buf.shape, buf.dtype)
        if self.device.type == "cpu" and len(buf.shape) == 2 and buf.meta.stride(0) == 1:
            columns, rows = buf.shape  # of the matrix that lies there
            cuts = strips(rows, columns, buf.dtype.itemsize)
            places, pieces = ([self.narrow(one, 1, *cut) for cut in cuts] for one in (copy, buf))
            self.run(private("torch._foreach_copy_"), places, pieces, writes=places)
        else:
            self.run(torch.Tensor.copy_, copy, buf, writes=[copy])
        return copy

    def cast(self, buf: Buf, dtype: torch.dtype) -> Buf:
        """Return the buffer converted to another dtype."""
        copy = self.new(buf.shape, dtype)
        self.run(torch.Tensor.copy_, copy, buf, writes=[copy])
        return copy

    def generator(self) -> torch.Generator:
        """Return the random generator that the executable seeds at the start of each run."""
        if not self.generators:
            self.generators.append(torch.Generator(self.device))
        return self.generators[0]


def _address(tensor: torch.Tensor) -> tuple[int, torch.device]:
    """What tells memory apart; what is empty has no address of its own."""
    memory = tensor.untyped_storage()
    return memory.data_ptr() or of("torch.UntypedStorage._cdata", memory), tensor.device


def _meta_like(tensor: torch.Tensor) -> torch.Tensor:
    base = torch.empty(0, dtype=tensor.dtype, device="meta")
    storage = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    return base.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _bufs_in(tree: Any) -> Iterable[Buf]:
    if isinstance(tree, Buf):
        yield tree
    elif isinstance(tree, list | tuple):
        for one in tree:
            yield from _bufs_in(one)
    elif isinstance(tree, dict):
        for one in tree.values():
            yield from _bufs_in(one)
