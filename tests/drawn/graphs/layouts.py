"""Steps that put images together, cut them, or bring them into another layout."""

from __future__ import annotations

from tests.drawn.graphs.growth import Growth, Value, image, row, token
from tests.drawn.graphs.images import CHANNELS_FIRST, CHANNELS_LAST

LARGEST_SCALE = 1


@image
def concatenated(growth: Growth, value: Value):
    """With a value of this scale, and perhaps once more with itself."""
    draw = growth.draw
    other = draw.choice([v for v in growth.values if v.steps is image and v.scale == value.scale])
    parts = [value, other, *([value] if draw.flag(1 / 3) else [])]
    name = growth.node("Concat", *(part.name for part in parts), axis=draw.choice([1, -3]))
    return Value(name, image, sum(part.channels for part in parts), value.scale)


@image
def split(growth: Growth, value: Value):
    """Into halves of the channels."""
    half = value.channels // 2
    if value.channels % 2:
        return None
    names = growth.node("Split", value.name, growth.integers(half, half), outputs=2, axis=1)
    return [Value(name, image, half, value.scale) for name in names]


@image
def sliced(growth: Growth, value: Value):
    """All channels but the last."""
    channels = max(1, value.channels - 1)
    bounds = [growth.integers(number) for number in (0, channels, 1)]
    return Value(growth.node("Slice", value.name, *bounds), image, channels, value.scale)


@image
def padded(growth: Growth, value: Value):
    """Pad and a convolution that takes the padding away."""
    mode, outputs = growth.draw.choice(["constant", "reflect", "edge"]), growth.draw.choice([2, 4])
    larger = growth.node("Pad", value.name, growth.integers(0, 0, 1, 1, 0, 0, 1, 1), mode=mode)
    weight = growth.weight(outputs, value.channels, 3, 3, fan_in=9)
    return Value(growth.node("Conv", larger, weight), image, outputs, value.scale)


@image
def resized(growth: Growth, value: Value):
    """Twice as high and wide."""
    if value.scale == LARGEST_SCALE:
        return None
    draw = growth.draw
    settings = dict(
        mode=draw.choice(["nearest", "linear"]), nearest_mode="floor",
        coordinate_transformation_mode=draw.choice(["half_pixel", "asymmetric"]),
    )  # fmt: skip
    name = growth.node("Resize", value.name, "", growth.store([1, 1, 2, 2], "float32"), **settings)
    return Value(name, image, value.channels, value.scale + 1)


@image
def depth_to_space(growth: Growth, value: Value):
    """Twice as high and wide, of a quarter of the channels."""
    if value.channels % 4 or value.scale == LARGEST_SCALE:
        return None
    name = growth.node("DepthToSpace", value.name, blocksize=2, mode=growth.draw.choice(["DCR", "CRD"]))
    return Value(name, image, value.channels // 4, value.scale + 1)


@image
def channels_last(growth: Growth, value: Value):
    """An activation, a product and a bias between transpositions, as far as they are drawn."""
    draw, channels = growth.draw, value.channels
    name = growth.node("Transpose", value.name, perm=CHANNELS_LAST)
    if draw.flag():
        name = growth.node(draw.choice(["Relu", "Tanh"]), name)
    if draw.flag():
        name = growth.node("MatMul", name, growth.weight(channels, channels, fan_in=channels))
    if draw.flag():
        name = growth.node("Add", name, growth.weight(channels))
    return Value(growth.node("Transpose", name, perm=CHANNELS_FIRST), image, channels, value.scale)


@image
def pooled(growth: Growth, value: Value):
    """To rows: the means of channels."""
    return Value(growth.node("Flatten", growth.node("GlobalAveragePool", value.name)), row, value.channels)


@image
def tokens(growth: Growth, value: Value):
    """To tokens: a place is one."""
    name = growth.node("Reshape", value.name, growth.integers(0, value.channels, -1))
    return Value(growth.node("Transpose", name, perm=[0, 2, 1]), token, value.channels, value.scale)
