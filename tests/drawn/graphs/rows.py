"""Steps from rows, (N, C)."""

from __future__ import annotations

from tests.drawn.graphs.growth import Growth, Value, row

OUTPUTS = [3, 8]


@row
def gemm(growth: Growth, value: Value):
    """Gemm, its weight transposed or not."""
    outputs, transposed = growth.draw.choice(OUTPUTS), growth.draw.choice([0, 1])
    shape = (outputs, value.channels) if transposed else (value.channels, outputs)
    inputs = [value.name, growth.weight(*shape), growth.weight(outputs)]
    return Value(growth.node("Gemm", *inputs, transB=transposed, alpha=growth.draw.choice([1.0, 0.5])), row, outputs)


@row
def product(growth: Growth, value: Value):
    """MatMul and Add."""
    outputs = growth.draw.choice(OUTPUTS)
    name = growth.node("MatMul", value.name, growth.weight(value.channels, outputs))
    return Value(growth.node("Add", name, growth.weight(outputs)), row, outputs)


@row
def square(growth: Growth, value: Value):
    """A value times itself."""
    return Value(growth.node("Mul", value.name, value.name), row, value.channels)


@row.share(3)
def row_activation(growth: Growth, value: Value):
    """Softmax, Relu or Tanh."""
    return Value(growth.node(growth.draw.choice(["Softmax", "Relu", "Tanh"]), value.name), row, value.channels)
