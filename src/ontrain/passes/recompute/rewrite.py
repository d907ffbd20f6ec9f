"""The step with what was dropped computed again, just before the node of the backward pass that reads it first."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import DOMAIN
from ontrain.operators import operand_of
from ontrain.passes.recompute.choose import Choice
from ontrain.passes.recompute.schedule import Schedule, mask_of

__all__ = ["insert_copies"]


def insert_copies(schedule: Schedule, choice: Choice) -> int:
    """Insert the second computations into the schedule's graph; return how many nodes were added, views not counted."""
    return _Inserter(schedule, choice).run()


class _Inserter:
    """Copies nodes in front of their readers; `_second` maps values to their second selves."""

    def __init__(self, schedule: Schedule, choice: Choice) -> None:
        self._schedule, self._copies = schedule, choice.profile.copies
        self._graph, self._root = schedule.graph, schedule.memory.root
        self._second: dict[ir.Value, ir.Value] = {}
        self._names = {v.name for node in schedule.nodes for v in node.outputs}
        self._names |= {v.name for v in (*self._graph.inputs, *self._graph.initializers.values())}
        self._count = 0

    def run(self) -> int:
        for node in self._schedule.nodes:
            if node in self._schedule.forward:
                continue
            wanted = [v for v in node.inputs if v is not None and self._root.get(v) in self._copies]
            missing = self._missing(wanted)
            for absent in missing:
                self._count += any(self._root[v] is v for v in absent.outputs)
            copies = [self._copy(value) for value in missing]
            if copies:
                self._graph.insert_before(node, copies)
            for index, value in enumerate(node.inputs):
                if value is not None and value in self._second:
                    node.replace_input_with(index, self._second[value])
        return self._count

    def _missing(self, values: list[ir.Value]) -> list[ir.Node]:
        """The nodes, in their old order, whose second run makes the values."""
        nodes: dict[ir.Node, None] = {}
        work = list(values)
        while work:
            value = work.pop()
            node = value.producer()
            if value in self._second or self._root.get(value) not in self._copies or node is None or node in nodes:
                continue
            nodes[node] = None
            work += [v for v in node.inputs if v is not None]
        return sorted(nodes, key=self._schedule.position.__getitem__)

    def _copy(self, node: ir.Node) -> ir.Node:
        inputs = [None if v is None else self._second.get(v, v) for v in node.inputs]
        mask, attributes, outputs = mask_of(node), list(node.attributes.values()), len(node.outputs)
        domain, op_type = node.domain, node.op_type
        if mask is not None and op_type == "Dropout":
            # What applies a mask going backward applies it to the input as well.
            ratio = operand_of(node, 1)
            share = 0.5 if ratio is None or ratio.const_value is None else float(ratio.const_value.numpy())
            domain, op_type, inputs, outputs = DOMAIN, "DropoutGrad", [inputs[0], mask], 1
            attributes = [ir.AttrFloat32("ratio", share)]
        elif mask is not None:
            inputs = [*inputs, None][:4] + [mask]
            outputs = 2
        copy = ir.Node(domain, op_type, inputs, attributes, num_outputs=outputs)
        copy.metadata_props.update(node.metadata_props)
        for old, new in zip(node.outputs, copy.outputs, strict=False):
            new.type, new.shape, new.name = old.type, old.shape, self._name(old.name)
            if self._root.get(old) in self._copies:
                self._second[old] = new
        copy.name = copy.outputs[0].name
        return copy

    def _name(self, name: str | None) -> str:
        wish, number = f"{name}_again", 0
        while wish in self._names:
            number += 1
            wish = f"{name}_again_{number}"
        self._names.add(wish)
        return wish
