"""Models that no plan holds whole, as text, with feeds of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser

__all__ = ["BRANCHES", "MODELS", "Model"]

Feeds = dict[str, object]


@dataclass(frozen=True)
class Model:
    """A model, and what is fed to it for a size."""

    text: str
    feeds: Callable[[int], Feeds]

    def serialized(self) -> bytes:
        """Return the file's bytes."""
        proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {self.text}')
        return bytes(proto.SerializeToString())


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers around zero, about half of which are negative."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


def boxes(count: int) -> np.ndarray:
    """Return rectangles by two corners, many of which overlap."""
    corner, sides = np.abs(floats(1, count, 2)), np.abs(floats(1, count, 2, seed=1))
    return np.concatenate([corner, corner + sides + 0.1], -1)


BRANCHES = Model(
    """m (float[rows, 4] x) => (int64[two, found] places, float[n] chosen, float[rows, 4] y, float[trips, 4] stacked)
    <float[4, 4] w = {0.1, -0.2, 0.3, 0.4, 0.5, 0.6, -0.7, 0.8, 0.9, 1, -1.1, 1.2, 1.3, -1.4, 1.5, 1.6},
     int64[1] axis = {0}, float zero = {0}, int64[1] last = {-1}> {
        h = MatMul(x, w)
        positive = Greater(h, zero)
        places = NonZero(positive)
        flat = Reshape(h, last)
        mask = Reshape(positive, last)
        chosen = Compress(flat, mask)
        sum = ReduceSum<keepdims = 0>(h)
        up = Greater(sum, zero)
        y = If(up) <
            then_branch = then () => (float[a, b] t) { t = Tanh(h) },
            else_branch = other () => (float[c, d] e) { doubled = Add(h, h) e = Sub(doubled, x) }
        >
        shape = Shape<start = 0, end = 1>(x)
        trips = Squeeze(shape)
        truth = Constant<value = bool {1}>()
        start = ReduceMax<keepdims = 0>(x, axis)
        final, stacked = Loop(trips, truth, start) <
            body = body (int64 i, bool go, float[4] state) => (bool again, float[4] next, float[4] row) {
                again = Identity(go)
                place = Unsqueeze(i, axis)
                one = Gather<axis = 0>(x, place)
                line = Squeeze(one, axis)
                product = Mul(state, line)
                next = Tanh(product)
                row = Add(next, line)
            }
        >
    }""",
    lambda size: {"x": floats(size, 4)},
)
"""Results as long as values say, a branch on the data, and a loop as long as the batch."""

MODELS = {
    "branches": BRANCHES,
    "a loop that grows": Model(
        """m (float[rows, 3] x, int64 trips) => (float[n, 3] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(trips, yes, x) <
                body = body (int64 i, bool go, float[k, 3] state) => (bool again, float[l, 3] next) {
                    again = Identity(go)
                    twice = Add(state, state)
                    axis = Constant<value = int64[1] {0}>()
                    mean = ReduceMean<keepdims = 1>(twice, axis)
                    next = Concat<axis = 0>(state, mean)
                }
            >
        }""",
        lambda size: {"x": floats(size, 3), "trips": np.array(size % 4, np.int64)},
    ),
    "a loop that stops by its data": Model(
        """m (float[n] x) => (float[n] y, int64 rounds) <float ten = {10}, int64 one = {1}, int64 none = {0}> {
            yes = Constant<value = bool {1}>()
            y, rounds = Loop("", yes, x, none) <
                body = body (int64 i, bool go, float[n] state, int64 count) => (bool again, float[n] next, int64 more) {
                    grown = Add(state, x)
                    next = Add(grown, grown)
                    size = ReduceL2<keepdims = 0>(next)
                    again = Less(size, ten)
                    more = Add(count, one)
                }
            >
        }""",
        lambda size: {"x": floats(size) + 0.01},
    ),
    "items of a sequence": Model(
        """m (float[m, n] x, int64 at) => (float[a, b] item, seq(float[c, d]) rest, int64 count, float[e, f] all) {
            split = Constant<value = int64 {2}>()
            parts = SplitToSequence<axis = 0>(x, split)
            item = SequenceAt(parts, at)
            rest = SequenceErase(parts, at)
            longer = SequenceInsert(rest, item)
            count = SequenceLength(longer)
            all = ConcatFromSequence<axis = 0>(longer)
        }""",
        lambda size: {"x": floats(size + 2, 3), "at": np.array(-1, np.int64)},
    ),
    "a sequence made in a loop": Model(
        """m (float[rows, 3] x) => (float[rows, 3] y) {
            shape = Shape<start = 0, end = 1>(x)
            trips = Squeeze(shape)
            yes = Constant<value = bool {1}>()
            empty = SequenceEmpty<dtype = 1>()
            filled = Loop(trips, yes, empty) <
                body = body (int64 i, bool go, seq(float[3]) held) => (bool again, seq(float[3]) more) {
                    again = Identity(go)
                    row = Gather<axis = 0>(x, i)
                    bent = Sigmoid(row)
                    more = SequenceInsert(held, bent)
                }
            >
            y = ConcatFromSequence<axis = 0, new_axis = 1>(filled)
        }""",
        lambda size: {"x": floats(size, 3)},
    ),
    "sequences fed": Model(
        """m (seq(float[n]) xs) => (seq(float[n]) ys, float[n] first) <int64 none = {0}> {
            ys = Identity(xs)
            one = SequenceAt(xs, none)
            first = Exp(one)
        }""",
        lambda size: {"xs": [floats(size, seed=seed) for seed in range(3)]},
    ),
    "computed sizes": Model(
        """m (float[n] x) => (float[a, b] y, float[c] z, float[d] best)
        <float zero = {0}, int64[1] one = {1}, int64 unit = {1}, int64[1] none = {0}> {
            positive = Greater(x, zero)
            numbers = Cast<to = 7>(positive)
            count = ReduceSum<keepdims = 1>(numbers)
            wide = Concat<axis = 0>(one, count)
            column = Constant<value = float[1, 1] {2.5}>()
            y = Expand(column, wide)
            filled = ConstantOfShape<value = float[1] {0.5}>(count)
            scalar = Squeeze(count)
            start = Constant<value = int64 {0}>()
            ramp = Range(start, scalar, unit)
            slope = Cast<to = 1>(ramp)
            z = Mul(filled, slope)
            best, places = TopK(x, count)
        }""",
        lambda size: {"x": floats(size)},
    ),
    "boxes": Model(
        """m (float[1, n, 4] boxes, float[1, 2, n] scores) => (int64[k, 3] kept, float[k, 4] rows)
        <int64 most = {5}, float overlap = {0.5}, float least = {0.2},
         int64[1] none = {0}, int64[1] two = {2}, int64[1] last = {1}> {
            kept = NonMaxSuppression(boxes, scores, most, overlap, least)
            column = Gather<axis = 1>(kept, two)
            which = Squeeze(column, last)
            all = Squeeze(boxes, none)
            found = Gather<axis = 0>(all, which)
            rows = Add(found, found)
        }""",
        lambda size: {"boxes": boxes(size), "scores": np.abs(floats(1, 2, size))},
    ),
    "unique numbers": Model(
        """m (int64[n] x) => (int64[k] values, int64[k] first, int64[n] place, int64[k] counts, int64[k] twice) {
            values, first, place, counts = Unique<sorted = 0>(x)
            twice = Add(values, counts)
        }""",
        lambda size: {"x": np.random.default_rng(size).integers(0, 4, size)},
    ),
    "a running sum": Model(
        """m (float[n, 2] x) => (float[2] last, float[n, 2] sums) {
            zero = Constant<value = float[2] {0, 0}>()
            last, sums = Scan(zero, x) <
                num_scan_inputs = 1, body = body (float[2] before, float[2] row) => (float[2] now, float[2] out) {
                    now = Add(before, row)
                    small = Less(now, before)
                    count = NonZero(small)
                    shape = Shape<start = 1, end = 2>(count)
                    number = Cast<to = 1>(shape)
                    out = Mul(now, number)
                }
            >
        }""",
        lambda size: {"x": floats(size, 2)},
    ),
    "strings": Model(
        """m (string[n] words) => (string[n] joined, string[k] kinds, bool[n] same)
        <string[1] tail = {"!"}> {
            joined = StringConcat(words, tail)
            kinds = Unique(words)
            same = Equal(words, joined)
        }""",
        lambda size: {"words": np.array([f"w{i % 3}" for i in range(size)], object)},
    ),
}  # fmt: skip
