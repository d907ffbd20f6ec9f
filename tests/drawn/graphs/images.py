"""Steps from images, (N, C, H, W)."""

from __future__ import annotations

import math

from tests.drawn.graphs.growth import Growth, Value, image

ACTIVATIONS = ["Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Elu"]
CHANNELS_LAST, CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def _same(value: Value, name: str) -> Value:
    return Value(name, image, value.channels, value.scale)


def _convolved(growth: Growth, value: Value, outputs: int, groups: int) -> list[Value]:
    """A convolution with what may follow it: a bias, a normalization, an activation."""
    draw = growth.draw
    size = draw.choice([1, 3, 3, 5])
    dilation = draw.choice([1, 1, 1, 2]) if size == 3 else 1
    fan_in = value.channels // groups
    inputs = [value.name, growth.weight(outputs, fan_in, size, size, fan_in=fan_in * size * size)]
    inputs += [growth.weight(outputs)] if draw.flag() else []
    padding = [size // 2 * dilation] * 4
    name = growth.node("Conv", *inputs, group=groups, pads=padding, dilations=[dilation] * 2)
    values = [Value(name, image, outputs, value.scale)]
    if draw.flag(1 / 3):
        values.append(normalised(growth, values[-1]))
    if draw.flag(1 / 3):
        values.append(_same(values[-1], growth.node(draw.choice(ACTIVATIONS), values[-1].name)))
    return values


@image.share(3)
def convolution(growth: Growth, value: Value):
    """In groups or not."""
    draw, channels = growth.draw, value.channels
    groups = draw.choice([1, 1, 1, *([2] if channels % 2 == 0 else [])])
    return _convolved(growth, value, groups * draw.choice([1, 2, 4, 8, 3]), groups)


@image
def depthwise(growth: Growth, value: Value):
    """A convolution of each channel."""
    return _convolved(growth, value, value.channels * growth.draw.choice([1, 2]), value.channels)


@image
def transposed_convolution(growth: Growth, value: Value):
    """ConvTranspose that leaves the size."""
    outputs = growth.draw.choice([2, 4])
    weight = growth.weight(value.channels, outputs, 3, 3, fan_in=9)
    return Value(growth.node("ConvTranspose", value.name, weight, pads=[1] * 4), image, outputs, value.scale)


@image
def normalised(growth: Growth, value: Value):
    """BatchNormalization; where the graph trains, the scale and shift that are left of it."""
    channels = value.channels
    if growth.trains:
        scaled = growth.node("Mul", value.name, growth.weight(1, channels, 1, 1))
        return _same(value, growth.node("Add", scaled, growth.weight(1, channels, 1, 1)))
    inputs = [growth.weight(channels) for _ in range(3)] + [growth.positive(channels)]
    epsilon = growth.draw.choice([1e-5, 1e-3])
    return _same(value, growth.node("BatchNormalization", value.name, *inputs, epsilon=epsilon))


@image
def instance_norm(growth: Growth, value: Value):
    """InstanceNormalization."""
    scale, bias = growth.weight(value.channels), growth.weight(value.channels)
    return _same(value, growth.node("InstanceNormalization", value.name, scale, bias))


@image
def layer_norm(growth: Growth, value: Value):
    """LayerNormalization of channels, between transpositions."""
    moved = growth.node("Transpose", value.name, perm=CHANNELS_LAST)
    scale, bias = growth.weight(value.channels), growth.weight(value.channels)
    normal = growth.node("LayerNormalization", moved, scale, bias, axis=-1)
    return _same(value, growth.node("Transpose", normal, perm=CHANNELS_FIRST))


@image.share(2)
def activation(growth: Growth, value: Value):
    """Relu, HardSwish, Sigmoid or LeakyRelu."""
    op_type = growth.draw.choice(["Relu", "HardSwish", "Sigmoid", "LeakyRelu"])
    return _same(value, growth.node(op_type, value.name))


@image
def silu(growth: Growth, value: Value):
    """A value times its sigmoid."""
    return _same(value, growth.node("Mul", value.name, growth.node("Sigmoid", value.name)))


@image
def gelu(growth: Growth, value: Value):
    """GELU written with Erf."""
    error = growth.node("Erf", growth.node("Div", value.name, growth.store(math.sqrt(2))))
    product = growth.node("Mul", value.name, growth.node("Add", error, growth.store(1)))
    return _same(value, growth.node("Mul", product, growth.store(0.5)))


@image
def prelu(growth: Growth, value: Value):
    """PRelu of each channel."""
    return _same(value, growth.node("PRelu", value.name, growth.weight(value.channels, 1, 1)))


@image
def root(growth: Growth, value: Value):
    """The root of absolute values."""
    absolute = growth.node("Abs", value.name)
    absolute = growth.node("Add", absolute, growth.store(0.1)) if growth.trains else absolute
    return _same(value, growth.node("Sqrt", absolute))


@image
def clip(growth: Growth, value: Value):
    """Between two numbers."""
    low, high = growth.draw.choice([0, -0.3]), growth.draw.choice([6, 0.4])
    return _same(value, growth.node("Clip", value.name, growth.store(low), growth.store(high)))


@image
def softmax(growth: Growth, value: Value):
    """Over any axis but the first."""
    return _same(value, growth.node("Softmax", value.name, axis=growth.draw.choice([1, 2, 3, -1])))


@image.share(2)
def joined(growth: Growth, value: Value):
    """With another value: a sum, a difference, a product, a maximum."""
    others = growth.like(value)
    if not others:
        return None
    op_type = growth.draw.choice(["Add", "Sub", "Mul", "Max", "Add", "Add"])
    return _same(value, growth.node(op_type, value.name, growth.draw.choice(others).name))


@image
def by_constants(growth: Growth, value: Value):
    """With positive constants of a channel each, or a single one."""
    channels = value.channels
    shape = growth.draw.choice([(1, channels, 1, 1), (channels, 1, 1), (), (1,)])
    op_type = growth.draw.choice(["Mul", "Add", "Div", "Sub"])
    return _same(value, growth.node(op_type, value.name, growth.positive(*shape, least=0.5)))


@image
def bias(growth: Growth, value: Value):
    """A constant for each channel is added."""
    return _same(value, growth.node("Add", value.name, growth.weight(1, value.channels, 1, 1)))


@image
def centred(growth: Growth, value: Value):
    """Less its mean over channels or places."""
    axes = growth.integers(*growth.draw.choice([[1], [2, 3], [-1]]))
    return _same(value, growth.node("Sub", value.name, growth.node("ReduceMean", value.name, axes)))


@image
def maximum_pool(growth: Growth, value: Value):
    """MaxPool that leaves the size."""
    return _same(value, growth.node("MaxPool", value.name, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]))


@image
def average_pool(growth: Growth, value: Value):
    """AveragePool that leaves the size, with its padding or without."""
    settings = dict(kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=growth.draw.choice([0, 1]))
    return _same(value, growth.node("AveragePool", value.name, **settings))


@image
def by_mean(growth: Growth, value: Value):
    """Times the mean of its channel."""
    return _same(value, growth.node("Mul", value.name, growth.node("GlobalAveragePool", value.name)))


@image
def excited(growth: Growth, value: Value):
    """Squeeze and excitation."""
    channels, mean = value.channels, growth.node("GlobalAveragePool", value.name)
    narrow = growth.node("Relu", growth.node("Conv", mean, growth.weight(3, channels, 1, 1)))
    wide = growth.node("Conv", narrow, growth.weight(channels, 3, 1, 1))
    gate = growth.node("HardSigmoid", wide, alpha=1 / 6, beta=0.5)
    return _same(value, growth.node("Mul", value.name, gate))
