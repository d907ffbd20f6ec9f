"""One matrix product, in the formulation that is the fastest on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.heap import return_freed_pages
from ontrain.providers.torch.neighbours import delay
from ontrain.providers.torch.packing import PACKED_BYTES, add_product, can_pack
from ontrain.providers.torch.plan import plan_memory
from ontrain.providers.torch.timings import ATEN
from ontrain.providers.torch.tuning import formulations
from ontrain.providers.torch.weights import LINEAR

__all__ = ["FORMULATIONS", "Factors", "formulation", "multiply"]

_WORTH = 1 << 24
"""Floating-point operations from which on a product is measured: below it is a matter of the call."""
_BLOCK = 12 << 20
"""Bytes that a matrix may take where it is copied."""
_BY_ROW = ("N", "n", "w")
_WIDE = 1 << 12
"""Numbers that lie between the rows of a result from which on each row has pages of its own."""
_LEAST = 16
"""Rows, columns and inner size from which on there is more than one formulation."""
_ROUNDS, _ALIKE, _ENOUGH = range(3, 13), 1.05, 0.5
"""Rounds of measuring, how much the two least times may differ in the end, and seconds that are enough before."""
_HOPELESS = 1.5
"""How many times as long as the fastest a formulation takes that is not measured further."""
_LATE = 0.05
"""Share of a time that threads may have waited for a core in it."""
_NARROW = 256
"""Columns to which a factor is cut to be packed; below, its inner side is cut."""
_PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


@dataclass(frozen=True)
class Factors:
    """out [R, C] = x [R, K] · w [K, C], and what is added to it.

    Attributes:
        x, w, out: the matrices, row after row or column after column.
        bias: [C], added to each row.
        before: [R, C], added to the product; may be `out` itself. There is no bias then.
    """

    x: Buf
    w: Buf
    out: Buf
    bias: Buf | None = None
    before: Buf | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """R, K, C."""
        (rows, inner), columns = self.x.shape, self.w.shape[1]
        return rows, inner, columns

    def across(self, e: Emitter) -> Factors:
        """Return the same product transposed."""
        x, w, out = (e.view(factor, torch.t) for factor in (self.w, self.x, self.out))
        return Factors(x, w, out, before=None if self.before is None else e.view(self.before, torch.t))


def multiply(e: Emitter, factors: Factors) -> None:
    """Emit the product, in the formulation that was measured to be the fastest; see `Tuning`."""
    name = formulation(e, factors)
    if name == ATEN:
        _aten(e, factors)
        e.program[-1].factors = factors.x, factors.w, factors.out
        return
    for block in _blocks(e, _upright(e, factors)):
        FORMULATIONS[name](e, block)
        e.program[-1].factors = block.x, block.w, block.out


def formulation(e: Emitter, factors: Factors) -> str:
    """Return the name of the formulation in which `multiply` emits a product."""
    tuning = e.settings.tuning
    if tuning is None or len(FORMULATIONS) == 1 or e.device.type != "cpu" or 2 * math.prod(factors.sizes) < _WORTH:
        return ATEN
    factors = _upright(e, factors)
    orders = "".join(_order(factor) for factor in (factors.x, factors.w, factors.out))
    floats = all(factor.dtype == torch.float32 for factor in (factors.x, factors.w, factors.out))
    if not floats or min(factors.sizes) < _LEAST or "?" in orders or orders[2] not in _BY_ROW:
        return ATEN
    first = _blocks(e, factors)[0]
    orders = _order(first.x) + _order(first.w) + _order_of_result(first.out)
    adds = " + result" if first.before is not None else " + bias" if first.bias is not None else ""
    rows, inner, columns = map(_class_of, first.sizes)
    sizes = rows, inner, columns
    name = f"{'x'.join(map(str, sizes))} {orders}{adds}"
    return tuning.fastest(name, FORMULATIONS, lambda: _measure(sizes, orders, adds))


def _upright(e: Emitter, f: Factors) -> Factors:
    """The product, or the same one transposed, so that its result lies row after row; with a bias as it is."""
    return f if f.bias is not None or _order(f.out) in _BY_ROW else f.across(e)


def _blocks(e: Emitter, f: Factors) -> list[Factors]:
    """Cut a product whose matrices are large: oneDNN copies them, and large memory comes from the system each time."""
    rows, inner, columns = f.sizes
    cut = [_BLOCK // 4 // other for other in (max(inner, columns), columns, inner)]
    if columns > max(cut[2], inner):  # of two large sides the inner one is cut: pieces of the result have gaps
        return [
            block for j, n in _cuts(columns, cut[2])
            for block in _blocks(e, Factors(
                f.x, e.narrow(f.w, 1, j, n), e.narrow(f.out, 1, j, n),
                None if f.bias is None else e.narrow(f.bias, 0, j, n),
                None if f.before is None else e.narrow(f.before, 1, j, n),
            ))
        ]  # fmt: skip
    if inner > cut[1] and inner >= columns:
        return [
            block for j, n in _cuts(inner, cut[1])
            for block in _blocks(e, Factors(
                e.narrow(f.x, 1, j, n), e.narrow(f.w, 0, j, n), f.out,
                f.bias if j == 0 else None, f.before if j == 0 else f.out,
            ))
        ]  # fmt: skip
    if rows > cut[0]:
        return [
            Factors(
                e.narrow(f.x, 0, j, n), f.w, e.narrow(f.out, 0, j, n), f.bias,
                None if f.before is None else e.narrow(f.before, 0, j, n),
            )
            for j, n in _cuts(rows, cut[0])
        ]  # fmt: skip
    return [f]


def _cuts(size: int, limit: int) -> list[tuple[int, int]]:
    """Where equal pieces of at most about `limit` begin, and their sizes."""
    step = -(-size // (-(-size // max(_LEAST, limit)) * _LEAST)) * _LEAST
    return [(start, min(step, size - start)) for start in range(0, size, step)]


def _order(matrix: Buf) -> str:
    """N for row after row, T for column after column, n and t where there are gaps between them."""
    (rows, columns), (down, across) = matrix.shape, matrix.meta.stride()
    if across == 1 and down >= columns:
        return "N" if down == columns else "n"
    if down == 1 and across >= rows:
        return "T" if across == rows else "t"
    return "?"


def _order_of_result(matrix: Buf) -> str:
    """The same, and w for rows that lie far apart, as those of a part of a classifier's scores do."""
    order, gap = _order(matrix), matrix.meta.stride(0) - matrix.shape[1]
    return "w" if order == "n" and gap >= _WIDE else order


def _class_of(size: int) -> int:
    """A size that stands for those a little smaller: batches of many lengths shall not all be measured."""
    step = max(_LEAST, 1 << (size.bit_length() - 3))
    return -(-size // step) * step


# Formulations


def _aten(e: Emitter, f: Factors) -> None:
    added = f.before if f.bias is None else f.bias
    if added is None:
        e.call(torch.mm, f.x, f.w, out=f.out)
    else:
        e.call(torch.addmm, added, f.x, f.w, out=f.out)


def _packed(e: Emitter, f: Factors) -> None:
    """oneDNN's convolution on a packed factor, which adds to what is there: a result is written where it belongs."""
    parts = _packs(f)
    if not all(can_pack(f.sizes[0], depth, width) for (_, depth), (_, width) in parts):
        _aten(e, f)
        return
    x, have = f.x, None
    for (i, depth), (j, width) in parts:
        if i != have:
            x, have = e.contiguous(e.narrow(f.x, 1, i, depth)), i
        factor = e.narrow(e.narrow(f.w, 0, i, depth), 1, j, width)
        place, bias = e.narrow(f.out, 1, j, width), None if f.bias is None or i else e.narrow(f.bias, 0, j, width)
        before = place if i else None if f.before is None else e.narrow(f.before, 1, j, width)
        # An image with gaps would be copied to memory from the system, and back.
        out = place if place.meta.is_contiguous() else e.new(place.shape)
        if before is None:
            e.run(torch.Tensor.zero_, out, writes=[out])
        else:
            _copied(e, before, out)
        e.run(add_product, out, x, factor, bias, writes=[out])
        _copied(e, out, place)


def _copied(e: Emitter, source: Buf, target: Buf) -> None:
    if not source.same_elements(target):
        e.run(torch.Tensor.copy_, target, source, writes=[target])


def _packs(f: Factors) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the parts of w lie that are packed one by one: (start, size) of the inner side and of the columns."""
    _, inner, columns = f.sizes
    most = PACKED_BYTES // 4
    if inner * columns <= most:
        return [((0, inner), (0, columns))]
    if most // inner >= _NARROW:
        return [((0, inner), cut) for cut in _cuts(columns, most // inner)]
    return [(cut, (0, columns)) for cut in _cuts(inner, most // columns)]


def _linear(e: Emitter, f: Factors) -> None:
    """oneDNN's kernel for linear layers, which reads w in either order, and returns its result in memory of its own."""
    result = f.out if f.before is None else e.new(f.out.shape)
    x, w = e.contiguous(f.x), e.view(f.w, torch.t)
    # With gaps in w oneDNN takes its reference kernel, which is a thousand times slower.
    if _order(w) == "n":
        w = e.contiguous(w)
    elif _order(w) == "t":
        w = e.view(e.contiguous(f.w), torch.t)
    e.compute(LINEAR, x, w, f.bias, "none", [], "", outs=[result], fresh=True)
    if f.before is not None:
        e.call(torch.add, f.before, result, out=f.out)


_EMITTERS = {"aten": _aten, "packed": _packed, "linear": _linear}
FORMULATIONS: dict[str, Callable[[Emitter, Factors], None]] = {name: _EMITTERS[name] for name in formulations()}
"""By name, the preferred first; a build of torch may lack oneDNN."""


# Measuring


def _runner(name: str, sizes: tuple[int, int, int], orders: str, adds: str = "") -> Callable[[], object]:
    """A function that computes a product of ones, of matrices that it holds.

    Args:
        name: of the formulation.
        sizes: rows, inner size and columns.
        orders: of x, w and the result, "NTN" for rows, columns and rows; in lower case there are gaps between them,
            wide ones where the letter is w.
        adds: " + bias", " + result" (to what the last call left) or nothing.
    """
    rows, inner, columns = sizes
    e = Emitter(torch.device("cpu"))

    def matrix(order: str, *size: int) -> Buf:
        down, across = size if order in _BY_ROW else size[::-1]
        gap = _WIDE if order == "w" else _LEAST * order.islower()
        matrix = torch.empty(down, across + gap, **_PLAIN)[:, :across].fill_(1)
        return e.constant(matrix if order in _BY_ROW else matrix.t())

    out = matrix(orders[2], rows, columns)
    bias = e.constant(torch.ones(columns, **_PLAIN)) if adds == " + bias" else None
    factors = Factors(
        matrix(orders[0], rows, inner), matrix(orders[1], inner, columns), out, bias,
        before=out if adds == " + result" else None,
    )  # fmt: skip
    FORMULATIONS[name](e, factors)
    memory = torch.empty(plan_memory(e.program, []), dtype=torch.uint8, device="cpu")
    (code,) = codes([e.program])
    run = code.bind(Binder(memory).resolve)
    return lambda: run([])


def _measure(sizes: tuple[int, int, int], orders: str, adds: str) -> dict[str, float] | None:
    """The least seconds of each formulation; they take turns until each has come about as low twice.

    One that is far slower than another drops out. What was taken while a thread of ours waited for a core does not
    count. None if too little does.
    """
    with torch.no_grad():
        ways = {name: _runner(name, sizes, orders, adds) for name in FORMULATIONS}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        begin = time.perf_counter()
        for number in range(1, _ROUNDS.stop):
            for name, run in ways.items():
                before = delay()
                start = time.perf_counter()
                run()
                seconds = time.perf_counter() - start
                if delay() - before <= _LATE * seconds:
                    taken[name].append(seconds)
            if number == 1:
                taken = {name: [] for name in ways}  # the first round makes kernels and touches memory
                continue
            best = min((min(times) for times in taken.values() if times), default=math.inf)
            ways = {name: run for name, run in ways.items() if not taken[name] or min(taken[name]) <= _HOPELESS * best}
            if number < _ROUNDS.start:
                continue
            alike = all(len(taken[name]) > 1 and sorted(taken[name])[1] <= _ALIKE * min(taken[name]) for name in ways)
            if alike or time.perf_counter() - begin > _ENOUGH:
                break
        sure = all(taken.values()) and all(len(taken[name]) > 1 for name in ways)
        del ways, run
    return_freed_pages()
    return {name: min(times) for name, times in taken.items()} if sure else None
