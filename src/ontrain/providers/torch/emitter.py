"""The emitter that lowerings write instructions with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.capture import to_tensor
from ontrain.internals import private
from ontrain.operators import operand_of
from ontrain.providers.torch.buffers import Buf, Storage, new_buf, order_of, torch_dtype
from ontrain.providers.torch.constants import Constants
from ontrain.providers.torch.instructions import Function, Instruction
from ontrain.providers.torch.placement import Placement
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.strips import strips
from ontrain.providers.torch.weights import Weights

__all__ = ["Emitter"]

# A Python number in the place of these functions' second operand is made a tensor, and cast, at every call.
_TAKE_TENSORS: frozenset[Function] = frozenset({
    torch.add, torch.sub, torch.mul, torch.div, torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge,
    torch.bitwise_and, torch.bitwise_left_shift, torch.bitwise_right_shift,
    torch.Tensor.add_, torch.Tensor.sub_, torch.Tensor.mul_, torch.Tensor.div_,
})  # fmt: skip
# In these it is the same number as a tensor of the first operand's dtype; half precision would round it.
_KEEP_NUMBERS = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8})


@dataclass(frozen=True)
class _Kept:
    """What a kernel that never computed a value needs in its place going backward, and the kernel."""

    bufs: tuple[Buf | None, ...]
    kernel: object


class Emitter:
    """Turns one node after another into instructions over storages that have no memory yet.

    Lowerings take inputs with `value`, make results with `out` (or `new` for a temporary), call ATen with `call`,
    and pass views on with `view` and `bind`, which cost nothing at run time.

    Attributes:
        doubt: whether anything that was asked is not finite; None before the first question.
        finite: values that were asked, and those that follow from them.

    Args:
        device: where the instructions run.
        placement: where values lie that have their places already.
        constants: buffers of what exists already, the placement's among them.
        frame: for the body of a branch or loop, the storage that holds what it computes.
        settings: what the user chose; by default the defaults.
        weights: constants of the session as oneDNN reads them.
        joins: whether small nodes in a row may run as one call of onnxruntime.
    """

    def __init__(
        self, device: torch.device, placement: Placement | None = None, constants: Constants | None = None, *,
        frame: Storage | None = None, settings: Settings | None = None, weights: Weights | None = None,
        joins: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.frame, self.joins, self.joined = device, frame, joins, False
        self.settings = settings or Settings()
        self.placement = placement or Placement()
        self.program: list[Instruction] = []
        self.generators: list[torch.Generator] = []
        self.node: ir.Node | None = None
        self._constants = constants or Constants(device)
        self._bufs = dict(self.placement.bound)
        self._weights, self._own = weights or Weights(), Weights()
        self._fixed = set(self.placement.constants)
        self._derived = set[Storage]()
        self._kept: dict[ir.Value, _Kept] = {}
        self._channels_last: dict[ir.Value, Buf] = {}
        self._answers: dict[tuple[Callable[[ir.Graph], bool], ir.Graph], bool] = {}
        self.doubt: Buf | None = None
        self.finite = set[ir.Value]()

    # Values

    def value(self, value: ir.Value | None) -> Buf:
        """Return the buffer that holds a value, in the value's own dtype."""
        buf = self.raw(value)
        assert value is not None
        wanted = torch_dtype(value.dtype)
        return buf if buf.dtype == wanted else self.cast(buf, wanted)

    def optional(self, node: ir.Node, index: int) -> Buf | None:
        """Return the buffer of an operand, None where it is left out."""
        value = operand_of(node, index)
        return None if value is None else self.value(value)

    def raw(self, value: ir.Value | None) -> Buf:
        """Return the buffer bound to a value as it is: a dropout mask may be kept as scaled floats."""
        assert value is not None
        if value not in self._bufs:
            assert value.const_value is not None, f"{value.name} was never computed"
            tensor = to_tensor(value.const_value.numpy().copy()).to(torch_dtype(value.dtype))
            # 0-d constants stay on the CPU: kernels take them as scalars without a transfer.
            if tensor.ndim and self.device.type != "cpu":
                tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device).copy_(tensor)
            self._bufs[value] = self.constant(tensor)
            self._fixed.add(self._bufs[value].storage)
        return self._bufs[value]

    def computed(self, value: ir.Value) -> bool:
        """Return whether a value is there, and not left to whoever reads it."""
        return value in self._bufs or value.const_value is not None

    def constant(self, tensor: torch.Tensor) -> Buf:
        """Return a buffer over a tensor that exists already; tensors of one memory share their `Storage`."""
        return self._constants.buffer(tensor)

    def there(self, buf: Buf) -> Buf:
        """Return the buffer where the instructions run: a constant from the CPU as a copy that is made once."""
        return self._constants.on_device(buf)

    def bind(self, value: ir.Value, buf: Buf) -> None:
        """Let `value` be what `buf` holds; where the value has a place of its own, copy it there."""
        pin = self.pinned(value)
        if pin is not None and not pin.same_elements(buf):
            self.copy(buf, pin)
            buf = pin
        self._bufs[value] = buf

    def pinned(self, value: ir.Value) -> Buf | None:
        """Return the place that `value` must be computed into, if it has one."""
        return self.placement.pins.get(value)

    def unchanging(self, buf: Buf) -> torch.Tensor | None:
        """Return the tensor that a buffer shows, if nobody ever writes to its memory."""
        tensor = buf.storage.tensor
        if tensor is None or buf.storage not in self._fixed:
            return None
        meta, memory = buf.meta, tensor.untyped_storage()
        whole = torch.empty(0, dtype=meta.dtype, device=tensor.device)
        return whole.set_(memory, meta.storage_offset(), meta.shape, meta.stride())

    def bind_unchanging(self, value: ir.Value, tensor: torch.Tensor) -> None:
        """Let `value` be a tensor that follows from the session's constants, lives with them, and never changes."""
        buf = self._bufs[value] = self.constant(tensor)
        self._fixed.add(buf.storage)
        self._derived.add(buf.storage)

    def is_weight(self, buf: Buf) -> bool:
        """Return whether a buffer shows a constant of the session, and not one of the graph."""
        return buf.storage in self.placement.constants or buf.storage in self._derived

    def reformulates(self, *operands: Buf) -> bool:
        """Return whether what is computed of these may be computed otherwise than in eager PyTorch, if that is faster.

        On a CPU, of operands in single precision, unless the user asked for eager's products.
        """
        asked = self.device.type == "cpu" and self.settings.tuning is not None
        return asked and all(operand.dtype == torch.float32 for operand in operands)

    def weights(self, buf: Buf) -> Weights:
        """Return where orders of an unchanging buffer are held: with the session, or with this program alone."""
        return self._weights if self.is_weight(buf) else self._own

    @property
    def session_weights(self) -> Weights:
        """The weights of the session, which its plans share."""
        return self._weights

    def inside(self, frame: Storage) -> Emitter:
        """Return an emitter for the body of a branch or loop, whose memory is in a frame."""
        placement = Placement(constants=self.placement.constants)
        inner = Emitter(self.device, placement, frame=frame, settings=self.settings, weights=self._weights)
        inner.generators = self.generators
        return inner

    def reads(self, value: ir.Value) -> bool:
        """Return whether anybody reads a value, so that it has to be computed."""
        return bool(value.uses()) or value.is_graph_output()

    def added_to(self, value: ir.Value) -> Buf | None:
        """Return what the value is to be added to, if it is; the place itself where that is what is there."""
        before = self.placement.addends.get(value)
        if before is None:
            return None
        buf, place = self.value(before), self.placement.pins[value]
        return place if buf.same_elements(place) else buf

    def skipped(self, node: ir.Node) -> bool:
        """Whether a node emits nothing; its output is bound then."""
        result = self.placement.skipped.get(node)
        if result is not None:
            self._bufs[node.outputs[0]] = self._bufs[result]
        return node in self.placement.skipped

    def holds(self, condition: Callable[[ir.Graph], bool], graph: ir.Graph) -> bool:
        """Return whether a condition holds of a graph as a whole, which is asked once."""
        if (condition, graph) not in self._answers:
            self._answers[condition, graph] = condition(graph)
        return self._answers[condition, graph]

    def keep(self, value: ir.Value, *bufs: Buf | None, kernel: object = None) -> None:
        """Keep what a kernel needs going backward in place of `value`, which it never computed."""
        self._kept[value] = _Kept(bufs, kernel)

    def kept(self, value: ir.Value | None) -> tuple[Buf | None, ...] | None:
        """Return what was kept in place of a value; None if it was computed."""
        stand_in = self._kept.get(value) if value is not None else None
        return stand_in.bufs if stand_in is not None else None

    def kernel_of(self, value: ir.Value | None) -> object:
        """Return the kernel that kept something in place of a value."""
        assert value is not None
        return self._kept[value].kernel

    # Memory

    def new(
        self, shape: Iterable[int], dtype: torch.dtype = torch.float32,
        order: torch.memory_format = torch.contiguous_format,
    ) -> Buf:  # fmt: skip
        """Return a temporary, by default laid out row after row."""
        return new_buf(shape, dtype, self.frame, order)

    def out(self, value: ir.Value, *like: Buf) -> Buf:
        """Return the buffer to compute `value` into, and bind it.

        Images have their channels last where an operand of `like` has them so.
        """
        buf = self.pinned(value)
        if buf is None:
            assert value.shape is not None
            shape = tuple(int(d) for d in value.shape.numpy())
            last = len(shape) == 4 and any(order_of(buf.meta) is torch.channels_last for buf in like)
            order = torch.channels_last if last else torch.contiguous_format
            buf = self.new(shape, torch_dtype(value.dtype), order)
        self._bufs[value] = buf
        return buf

    def channels_last(self, value: ir.Value | None) -> Buf:
        """Return the buffer of images with their channels last: a copy, made once, where they have them elsewhere."""
        assert value is not None
        if value not in self._channels_last:
            self._channels_last[value] = self.ordered(self.value(value), torch.channels_last)
        return self._channels_last[value]

    def ordered(self, buf: Buf, order: torch.memory_format) -> Buf:
        """Return the buffer with its elements in an order, as a copy where they lie in another."""
        if buf.meta.is_contiguous(memory_format=order):
            buf.storage.exact = True
            return buf
        if order is torch.contiguous_format:
            return self.contiguous(buf)
        copy = self.new(buf.shape, buf.dtype, order)
        self.copy(buf, copy)
        return copy

    # Instructions

    def run(self, fn: Function, *args: object, writes: Sequence[Buf] = (), **kwargs: object) -> None:
        """Emit a call that writes into `writes` itself (in-place and `out=` functions)."""
        if fn in _TAKE_TENSORS:
            first, second, *rest = args
            assert isinstance(first, Buf)
            args = (first, self._operand(second, first.dtype), *rest)
        if self.device.type != "cpu":
            numbers = fn in _TAKE_TENSORS
            args = tuple(self._all_there(argument, numbers=numbers) for argument in args)
            kwargs = {name: self._all_there(argument, numbers=numbers) for name, argument in kwargs.items()}
        bufs = list(_bufs_in((*args, *kwargs.values())))
        reads = [b for b in bufs if not any(b is w for w in writes)]
        self.program.append(Instruction(fn, args, kwargs, reads, list(writes), self.node))

    def _operand(self, operand: object, dtype: torch.dtype) -> object:
        """A number as a tensor that is made once, on the CPU, where kernels take it as the scalar that it is."""
        if dtype not in _KEEP_NUMBERS or not isinstance(operand, int | float) or isinstance(operand, bool):
            return operand
        if isinstance(operand, float) and not dtype.is_floating_point:
            return operand
        if not dtype.is_floating_point and not torch.iinfo(dtype).min <= operand <= torch.iinfo(dtype).max:
            return operand
        return self._constants.number(operand, dtype)

    def _all_there(self, tree: object, *, numbers: bool) -> object:
        """A tree of arguments with no constant on the CPU but, where a kernel takes them as scalars, single numbers."""
        if isinstance(tree, Buf):
            return tree if numbers and not tree.shape else self.there(tree)
        if isinstance(tree, list | tuple):
            return type(tree)(self._all_there(item, numbers=numbers) for item in tree)
        return tree

    def call(self, fn: Function, *args: object, out: Buf, elementwise: bool = False, **kwargs: object) -> Buf:
        """Emit `fn(*args, out=out)`; an elementwise one may overwrite an input that dies here."""
        self.run(fn, *args, out=out, writes=[out], **kwargs)
        if elementwise:
            self.program[-1].reuses = [a for a in args if isinstance(a, Buf)]
        return out

    def compute(
        self, fn: Function, *args: object, outs: Sequence[Buf | None], fresh: bool = False,
        writes: Sequence[Buf] = (), **kwargs: object,
    ) -> None:  # fmt: skip
        """Emit a call to a function that returns its results. They are copied, or held where that is cheaper.

        Args:
            fn: the function; it returns a tensor, or as many as there are `outs`.
            args: its arguments.
            outs: a place for each result; None skips one.
            fresh: no result shares memory with an argument or with another result: they may be held.
            writes: arguments that it writes itself.
            kwargs: its named arguments.
        """
        self.run(fn, *args, writes=[*writes, *(o for o in outs if o is not None)], **kwargs)
        self.program[-1].results, self.program[-1].fresh = list(outs), fresh

    def view(self, buf: Buf, fn: Callable[[torch.Tensor], torch.Tensor]) -> Buf:
        """Return a view of a buffer; `fn` must be a view operation of torch."""
        return Buf(buf.storage, fn(buf.meta))

    def narrow(self, buf: Buf, axis: int, start: int, length: int) -> Buf:
        """Return `length` places of an axis from `start` on, as a view."""
        return self.view(buf, lambda t: t.narrow(axis, start, length))

    def select(self, buf: Buf, axis: int, index: int) -> Buf:
        """Return one place of an axis, as a view without that axis."""
        return self.view(buf, lambda t: t.select(axis, index))

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
            buf.storage.exact = True
            return buf
        copy = self.new(buf.shape, buf.dtype)
        if self.device.type == "cpu" and len(buf.shape) == 2 and buf.meta.stride(0) == 1:
            columns, rows = buf.shape  # of the matrix that lies there
            cuts = strips(rows, columns, buf.dtype.itemsize)
            places, pieces = ([self.narrow(whole, 1, *cut) for cut in cuts] for whole in (copy, buf))
            self.run(private("torch._foreach_copy_"), places, pieces, writes=places)
        else:
            self.copy(buf, copy)
        return copy

    def copy(self, buf: Buf, place: Buf) -> None:
        """Copy what a buffer holds to a place, in the place's dtype."""
        self.run(torch.Tensor.copy_, place, buf, writes=[place])

    def cast(self, buf: Buf, dtype: torch.dtype) -> Buf:
        """Return the buffer converted to another dtype."""
        copy = self.new(buf.shape, dtype)
        self.copy(buf, copy)
        return copy

    def generator(self) -> torch.Generator:
        """Return the random generator that the executable seeds at the start of each run."""
        if not self.generators:
            self.generators.append(torch.Generator(self.device))
        return self.generators[0]


def _bufs_in(tree: object) -> Iterable[Buf]:
    if isinstance(tree, Buf):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _bufs_in(item)
