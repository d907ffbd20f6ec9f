"""An ONNX graph that grows by steps: each reads a value that is there, and adds another.

A step is a function of a Growth and a Value. It returns the new value, several, or None where it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.drawn.draw import Draw
from tests.drawn.families import Families

__all__ = ["Growth", "Value", "grown", "image", "row", "token"]

image = Families()
"""Steps from a value (N, C, H, W)."""
row = Families()
"""Steps from a value (N, C)."""
token = Families()
"""Steps from a value (N, L, C)."""

OPSET, IR_VERSION = 20, 9


@dataclass(frozen=True)
class Value:
    """A value of the graph.

    Attributes:
        name: in the graph.
        steps: the families of steps that can read it, by its layout.
        channels: how many.
        scale: how often its height and width were doubled.
    """

    name: str
    steps: Families
    channels: int
    scale: int = 0


class Growth:
    """A graph of one input x with steps added so far.

    Args:
        draw: what steps choose by.
        dtype: of all numbers.
        trains: whether gradients are looked at: then nothing is normalised by stored statistics, and no root is taken
            at zero.
    """

    def __init__(self, draw: Draw, dtype: type = np.float32, trains: bool = False) -> None:
        self.draw, self.dtype, self.trains = draw, dtype, trains
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.values = [Value("x", image, draw.choice([2, 3, 4, 8, 16]))]
        self.log: list[str] = []
        self.sizes: tuple[Any, Any] = draw.choice([("height", "width"), (6, 5), ("height", "width")])

    def node(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return its output's name, or the names of several."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def store(self, array: Any, dtype: Any = None) -> str:
        """Add an initializer, of the graph's type if no other is stated; return its name."""
        name = f"w{len(self.arrays)}"
        self.arrays[name] = np.asarray(array, dtype or self.dtype)
        return name

    def integers(self, *numbers: int) -> str:
        """Add an initializer of whole numbers; return its name."""
        return self.store(numbers, np.int64)

    def weight(self, *shape: int, fan_in: int = 1) -> str:
        """Add normal numbers; return their name."""
        return self.store(self.draw.array(*shape, dtype=np.float64) * 0.5 / np.sqrt(fan_in))

    def positive(self, *shape: int, least: float = 0.1) -> str:
        """Add numbers of at least `least`; return their name."""
        return self.store(abs(self.draw.array(*shape, dtype=np.float64)) * 0.5 + least)

    def like(self, value: Value) -> list[Value]:
        """Other values of its layout, channels and scale."""
        key = (value.steps, value.channels, value.scale)
        return [v for v in self.values if (v.steps, v.channels, v.scale) == key and v.name != value.name]

    def add(self, step: str, value: Value) -> bool:
        """Take a step from a value, if it fits."""
        outputs = value.steps[step](self, value)
        if outputs is None:
            return False
        self.log.append(step)
        self.values.extend([outputs] if isinstance(outputs, Value) else outputs)
        return True

    def ends(self) -> list[Value]:
        """Values that nothing reads, and at times another one."""
        used = {name for node in self.nodes for name in node.input}
        ends = [v for v in self.values[1:] if v.name not in used] or self.values[-1:]
        further = self.draw.choice(self.values[1:]) if self.draw.flag(0.3) else ends[0]
        return ends if further in ends else [*ends, further]

    def model(self, batch: Any, outputs: Sequence[str], fed: Sequence[str] = ()) -> onnx.ModelProto:
        """The file; initializers named in `fed` are inputs."""
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [helper.make_tensor_value_info("x", element, [batch, self.values[0].channels, *self.sizes])]
        inputs += [helper.make_tensor_value_info(name, element, self.arrays[name].shape) for name in fed]
        initializers = [numpy_helper.from_array(a, name) for name, a in self.arrays.items() if name not in fed]
        outputs_info = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "grown", inputs, outputs_info, initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def batches(self, count: int, batch: Any, largest: int) -> Iterator[np.ndarray]:
        """Inputs of different sizes, as far as the file leaves them open."""
        for _ in range(count):
            rows = batch if isinstance(batch, int) else self.draw.integer(1, 3)
            sizes = self.sizes if isinstance(self.sizes[0], int) else self.draw.sizes(2, 4, largest)
            yield self.draw.array(rows, self.values[0].channels, *sizes, dtype=self.dtype)


def grown(draw: Draw, family: str, dtype: type = np.float32, trains: bool = False) -> Growth:
    """A graph of three to twelve steps, one of them of this family of images where it fits."""
    growth = Growth(draw, dtype, trains)
    # The earliest weight's gradient has gone through all that follows.
    growth.add("bias" if trains else "activation", growth.values[0])
    count = draw.integer(3, 12)
    turn = draw.integer(0, count - 1)
    for step in range(count):
        if step == turn and any(growth.add(family, v) for v in reversed(growth.values) if v.steps is image):
            continue
        value = draw.choice(growth.values[-4:])
        growth.add(draw.choice(value.steps.turns), value)
    return growth
