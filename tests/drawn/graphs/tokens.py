"""Steps from tokens, (N, L, C)."""

from __future__ import annotations

from tests.drawn.graphs.growth import Growth, Value, row, token


def _same(value: Value, name: str) -> Value:
    return Value(name, token, value.channels, value.scale)


@token.share(2)
def projection(growth: Growth, value: Value):
    """MatMul and Add."""
    outputs = growth.draw.choice([4, 8])
    name = growth.node("MatMul", value.name, growth.weight(value.channels, outputs, fan_in=value.channels))
    return Value(growth.node("Add", name, growth.weight(outputs)), token, outputs, value.scale)


@token
def normalization(growth: Growth, value: Value):
    """LayerNormalization."""
    scale, bias = growth.weight(value.channels), growth.weight(value.channels)
    return _same(value, growth.node("LayerNormalization", value.name, scale, bias, axis=-1))


@token
def written_normalization(growth: Growth, value: Value):
    """A layer normalization in means, powers and roots, as exporters write it."""
    last = growth.integers(-1)
    centred = growth.node("Sub", value.name, growth.node("ReduceMean", value.name, last))
    squares = growth.node("Pow", centred, growth.store(2))
    variance = growth.node("Add", growth.node("ReduceMean", squares, last), growth.store(1e-5))
    normal = growth.node("Div", centred, growth.node("Sqrt", variance))
    scaled = growth.node("Mul", normal, growth.weight(value.channels))
    return _same(value, growth.node("Add", scaled, growth.weight(value.channels)))


@token
def attention(growth: Growth, value: Value):
    """With weights of queries, keys and values."""
    width = value.channels
    query, key, content = (growth.node("MatMul", value.name, growth.weight(width, width)) for _ in range(3))
    scores = growth.node("MatMul", query, growth.node("Transpose", key, perm=[0, 2, 1]))
    shares = growth.node("Softmax", growth.node("Mul", scores, growth.store(0.3)), axis=-1)
    return _same(value, growth.node("MatMul", shares, content))


@token
def attention_of_heads(growth: Growth, value: Value):
    """Two heads that are views of the value."""
    if value.channels % 2:
        return None
    heads = growth.node("Reshape", value.name, growth.integers(0, -1, 2, value.channels // 2))
    heads = growth.node("Transpose", heads, perm=[0, 2, 1, 3])
    scores = growth.node("MatMul", heads, growth.node("Transpose", heads, perm=[0, 1, 3, 2]))
    shares = growth.node("Softmax", growth.node("Div", scores, growth.store(2)), axis=-1)
    joined = growth.node("Transpose", growth.node("MatMul", shares, heads), perm=[0, 2, 1, 3])
    return _same(value, growth.node("Reshape", joined, growth.integers(0, -1, value.channels)))


@token
def perceptron(growth: Growth, value: Value):
    """Two projections with an activation between."""
    width = value.channels
    hidden = growth.node("MatMul", value.name, growth.weight(width, 2 * width))
    hidden = growth.node("Add", hidden, growth.weight(2 * width))
    hidden = growth.node(growth.draw.choice(["Gelu", "Relu"]), hidden)
    return _same(value, growth.node("MatMul", hidden, growth.weight(2 * width, width, fan_in=width * width)))


@token
def mean(growth: Growth, value: Value):
    """To rows: the mean over tokens."""
    return Value(growth.node("ReduceMean", value.name, growth.integers(1), keepdims=0), row, value.channels)


@token
def residual(growth: Growth, value: Value):
    """The sum with another value."""
    others = growth.like(value)
    if not others:
        return None
    return _same(value, growth.node("Add", value.name, growth.draw.choice(others).name))
