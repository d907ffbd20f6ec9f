"""Random numbers from a counter, in plain operators: equal keys give equal numbers, on every machine.

onnxruntime's own Dropout and Random* draw from a stream that is seeded when a session is made and then runs on, so
that no run could be resumed. Here number i of stream s is splitmix64(key + stream(s) + i·γ), a pure function of the
graph's RNG input. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, Role, set_role, static_dims

__all__ = ["Streams", "drawn_share", "mix"]

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_LANES = 4
# Counters are the sum of a column and a row, so that none of the constants grows with the tensor.
_COLUMNS = 4096


def mix(*counters: int) -> int:
    """Return 64 bits that depend on every bit of the counters and on their order."""
    z = 0
    for counter in counters:
        z = (z + (counter + 1) * _GAMMA) & _MASK
        z = ((z ^ (z >> 30)) * _FIRST) & _MASK
        z = ((z ^ (z >> 27)) * _SECOND) & _MASK
        z ^= z >> 31
    return z


def drawn_share(ratio: float) -> float:
    """Return the share that `Streams.keep` drops: the multiple of 2⁻¹⁶ next to `ratio`, and never all."""
    return min(round(ratio * 2**16), 2**16 - 1) / 2**16


class Streams:
    """Writes random numbers into one graph, each use from a stream of its own.

    The graph gets an input of role RNG, [1] uint64: `mix` of the step's seed and offset.
    """

    def __init__(self) -> None:
        self._count = 0
        self._key: ir.Value | None = None

    def keep(self, op: Builder, shape: tuple[int, ...], ratio: float) -> ir.Value:
        """Return a bool tensor that is false with probability `ratio`, as `drawn_share` rounds it.

        One number of 64 bits makes four decisions, each by its upper bits after a shift.
        """
        count = math.prod(shape)
        bits = self._bits(op, -(-count // _LANES))
        shifts = np.arange(_LANES, dtype=np.uint64).reshape(_LANES, 1) * np.uint64(64 // _LANES)
        lanes = op.BitShift(op.Reshape(bits, [1, -1]), shifts, direction="LEFT")
        threshold = np.array(int(drawn_share(ratio) * 2**16) << 48, np.uint64)
        return _first(op, op.Reshape(op.GreaterOrEqual(lanes, threshold), [-1]), shape)

    def uniform(self, op: Builder, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
        """Return numbers in [0, 1), of 53 bits for float64 and of 24 for anything narrower."""
        wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        digits = 53 if wide == ir.DataType.DOUBLE else 24
        bits = op.BitShift(self._bits(op, math.prod(shape)), np.array(64 - digits, np.uint64), direction="RIGHT")
        uniform = op.Mul(op.Cast(bits, to=wide), op.const(2.0**-digits, wide))
        numbers: ir.Value = op.Cast(_first(op, op.Reshape(uniform, [-1]), shape), to=dtype)
        return numbers

    def normal(self, op: Builder, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
        """Return standard normal numbers (Box and Muller 1958)."""
        wide = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        radius = op.Sqrt(op.Mul(op.Log(op.Sub(1.0, self.uniform(op, shape, wide))), -2.0))
        angle = op.Mul(self.uniform(op, shape, wide), 2 * math.pi)
        numbers: ir.Value = op.Cast(op.Mul(radius, op.Cos(angle)), to=dtype)
        return numbers

    def _bits(self, op: Builder, count: int) -> ir.Value:
        """At least `count` numbers of 64 random bits, [R, C]."""
        columns = max(1, min(count, _COLUMNS))
        counters = [np.arange(n, dtype=np.uint64) * np.uint64(_GAMMA * c & _MASK) for n, c in
                    ((-(-count // columns), columns), (columns, 1))]  # fmt: skip
        start = op.Add(self._key_of(op), np.array([mix(self._count)], np.uint64))
        self._count += 1
        z: ir.Value = op.Add(op.Add(counters[0].reshape(-1, 1), start), counters[1])
        for shift, factor in ((30, _FIRST), (27, _SECOND), (31, None)):
            z = op.BitwiseXor(z, op.BitShift(z, np.array(shift, np.uint64), direction="RIGHT"))
            z = z if factor is None else op.Mul(z, np.array(factor, np.uint64))
        return z

    def _key_of(self, op: Builder) -> ir.Value:
        if self._key is None:
            self._key = ir.Value(name=op.fresh("rng_key"), shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.UINT64))
            op.graph.inputs.append(set_role(self._key, Role.RNG))
        return self._key


def _first(op: Builder, flat: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """The leading numbers of a vector in a shape."""
    count = math.prod(shape)
    if static_dims(flat) != (count,):
        flat = op.Slice(flat, [0], [count], [0])
    shaped: ir.Value = op.Reshape(flat, list(shape))
    return shaped
