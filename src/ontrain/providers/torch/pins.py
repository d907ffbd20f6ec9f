"""Places chosen beforehand: residents are updated where they are, gradients computed where they are handed out."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ontrain.graph import Role, gradient_of, halves, reads, role_of, static_dims, updates_of
from ontrain.operators import View, record_of
from ontrain.providers.torch.buffers import Buf, new_buf, torch_dtype
from ontrain.providers.torch.constants import Constants
from ontrain.providers.torch.lowering.optimizer import group_key, is_update
from ontrain.providers.torch.placement import Late, Placement, Snapshot, UpdateKey
from ontrain.providers.torch.residents import Residents
from ontrain.providers.torch.state import TorchState
from ontrain.providers.torch.sums import add_in_place

__all__ = ["place_module", "place_step"]

Pins = dict[ir.Value, Buf]

# Through these a place wished for the output is a place for the input.
_PASSED = frozenset({View.SAME, View.RESHAPED, View.PERMUTED})


def place_step(graph: ir.Graph, state: TorchState, constants: Constants) -> Placement:
    """Return the placement of a graph that runs as a whole; residents are found in the session's state."""
    # Hyper-parameters are copied to the device too: a step never waits for the host.
    feeds = {value: _place(value) for value in graph.inputs if not role_of(value).resident}
    residents = {v: constants.buffer(state[v.name or ""]) for v in graph.inputs if role_of(v).resident}
    bound = {**feeds, **residents}
    pins, late = _pin_updates(graph, state, constants)
    gradients = _pin_gradients_of_updates(graph, state, constants, pins)
    _pass_back(graph, pins)
    addends, skipped = add_in_place(graph, pins, bound, gradients.values())
    _pin_units(graph, pins)
    return Placement(
        feeds=_named(feeds), bound=bound, pins=pins, late=late, addends=addends, skipped=skipped,
        updates=_groups(graph), gradients=gradients,
        constants=frozenset(buf.storage for v, buf in residents.items() if state.is_constant(v.name or "")),
    )  # fmt: skip


def place_module(graph: ir.Graph, residents: Residents) -> Placement:
    """Return the placement of a graph in two halves; residents are the user's tensors, in memory of the user's own.

    A buffer that the backward half reads is read as it was before its update: from a copy.
    """
    feeds = {v: _place(v) for v in graph.inputs if not role_of(v).resident and role_of(v) is not Role.ADJOINT}
    adjoints = {v: _place(v) for v in graph.inputs if role_of(v) is Role.ADJOINT}
    bound = {**feeds, **adjoints}
    read_later = {v for node in halves(graph)[1] for v in reads(node)}
    updates = {name: v for v in graph.outputs if (name := updates_of(v)) is not None}
    late, snapshots = list[Late](), list[Snapshot]()
    for value in graph.inputs:
        name = value.name or ""
        if not role_of(value).resident:
            continue
        bound[value] = resident = residents[name]
        if name in updates:
            late.append(Late(updates[name], resident))
            if value in read_later:
                bound[value] = new_buf(resident.shape, resident.dtype)
                snapshots.append(Snapshot(bound[value], resident))
    pins: Pins = {}
    gradients: dict[str, Buf] = {}
    for value in graph.outputs:
        parameter = gradient_of(value)
        if parameter is not None and parameter in residents:
            pins[value] = gradients[parameter] = residents.gradient(parameter)
    _pass_back(graph, pins)
    addends, skipped = add_in_place(graph, pins, bound, gradients.values())
    return Placement(
        feeds=_named(feeds), adjoints=_named(adjoints), bound=bound, pins=pins, snapshots=snapshots, late=late,
        addends=addends, skipped=skipped, gradients=gradients,
    )  # fmt: skip


def _place(value: ir.Value) -> Buf:
    return new_buf(static_dims(value), torch_dtype(value.dtype))


def _named(places: dict[ir.Value, Buf]) -> dict[str, Buf]:
    return {value.name or "": buf for value, buf in places.items()}


def _pin_updates(graph: ir.Graph, state: TorchState, constants: Constants) -> tuple[Pins, list[Late]]:
    """Let updates be computed straight into the state where nobody reads the old value later; return the others."""
    position = {node: i for i, node in enumerate(graph)}
    inputs = {v.name: v for v in graph.inputs}
    pins, late = dict[ir.Value, Buf](), list[Late]()
    for value in graph.outputs:
        target = updates_of(value)
        if target is None:
            continue
        resident = constants.buffer(state[target])
        producer = value.producer()
        if is_update(producer):
            continue  # the update's own lowering writes in place
        readers = [position[use.node] for use in inputs[target].uses()]
        direct = (
            producer is not None
            and _writes_over(producer)
            and all(reader <= position[producer] for reader in readers)
            and not _is_shown(inputs[target], value)
        )
        if direct:
            pins[value] = resident
        else:
            late.append(Late(value, resident))
    return pins, late


def _is_shown(state: ir.Value, update: ir.Value) -> bool:
    """Whether another output than its update may show the memory of a state: what a second state becomes, say."""
    shown = [state]
    for value in shown:
        if value.is_graph_output() and value is not update:
            return True
        views = (use.node for use in value.uses() if use.idx == 0 and record_of(use.node).view is not View.NONE)
        shown += [output for node in views for output in node.outputs]
    return False


def _writes_over(node: ir.Node) -> bool:
    """Whether results may be written over the state that they update while it is read."""
    record = record_of(node)
    return record.updates or record.view is View.SAME or (record.elementwise and bool(record.overwrites))


def _pin_gradients_of_updates(
    graph: ir.Graph, state: TorchState, constants: Constants, pins: Pins
) -> dict[str, Buf]:  # fmt: skip
    """Lay gradients out like the parameters they belong to, so that optimizer and norm walk one flat buffer."""
    places = {}
    for node in graph:
        if not is_update(node):
            continue
        param, grad = node.inputs[:2]
        assert param is not None and grad is not None
        places[param.name or ""] = place = constants.buffer(state.gradient(param.name or ""))
        if grad.producer() is not None and grad not in pins:
            pins[grad] = place
    return places


def _groups(graph: Iterable[ir.Node]) -> dict[UpdateKey, list[ir.Node]]:
    groups: dict[UpdateKey, list[ir.Node]] = {}
    for node in graph:
        if is_update(node):
            groups.setdefault(group_key(node), []).append(node)
    return groups


def _pass_back(graph: ir.Graph, pins: Pins) -> None:
    """Let what is only reshaped into a place of its own be computed there."""
    for node in reversed(graph):
        view = View.NONE if node.domain else record_of(node).view
        if view not in _PASSED:
            continue
        pin, source = pins.get(node.outputs[0]), node.inputs[0]
        if pin is None or source is None or source.producer() is None or source in pins:
            continue
        if view is View.PERMUTED:
            axes = range(len(pin.shape))
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else axes[::-1]
            back = sorted(axes, key=perm.__getitem__)
            pins[source] = Buf(pin.storage, pin.meta.permute(back))
        elif pin.meta.is_contiguous():
            pins[source] = Buf(pin.storage, pin.meta.view(static_dims(source)))


def _pin_units(graph: ir.Graph, pins: Pins) -> None:
    """Let gradients for an adjoint of one be computed where the gradient belongs, to be scaled there."""
    for node in graph:
        if node.op_type != "ScaleGrad":
            continue
        unit, place = node.inputs[0], pins.get(node.outputs[0])
        if unit is not None and place is not None and len(unit.uses()) == 1 and not unit.is_graph_output():
            pins[unit] = place
