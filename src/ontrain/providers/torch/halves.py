"""Lowering of a graph in two halves: forward until the outputs are handed out, backward once adjoints are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir
import torch

from ontrain.graph import Role, gradient_of, halves, reads, role_of, static_dims, updates_of
from ontrain.providers.torch.buffers import Buf, torch_dtype
from ontrain.providers.torch.emitter import Emitter, outside
from ontrain.providers.torch.memory import Memory
from ontrain.providers.torch.module import TorchModuleExecutable
from ontrain.providers.torch.plan import ALWAYS, HELD_LONG, outside_bytes, plan_memory
from ontrain.providers.torch.sums import add_in_place

__all__ = ["compile_halves", "pass_pins_back", "places_of_feeds"]

# Through these a place wished for the output is a place for the input.
_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose"})


def compile_halves(
    graph: ir.Graph, memory: Memory, lower: Callable[[Emitter, Iterable[ir.Node]], None]
) -> TorchModuleExecutable:
    """Lower both halves with one plan of memory: what backward needs stays where forward left it.

    Args:
        graph: every operator has a lowering; resident inputs are found in `memory` by name.
        memory: the user's tensors, and where gradients go.
        lower: emits the instructions of nodes.
    """
    e = Emitter(memory.device, settings=memory.settings)
    forward, backward = halves(graph)
    inputs = places_of_feeds(e, [v for v in graph.inputs if _is_fed(v)])
    targets = _residents(e, graph, memory, {v for node in backward for v in reads(node)})
    gradients = _pin_gradients(e, graph, memory)
    pass_pins_back(e, graph)
    add_in_place(e, graph, list(gradients.values()))
    lower(e, forward)
    for value, target in targets:
        e.run(torch.Tensor.copy_, target, e.value(value), writes=[target])
    handed = [v for v in graph.outputs if updates_of(v) is None and gradient_of(v) is None]
    outputs = {v.name or "": e.there(e.value(v)) for v in handed}
    e.run(outside, *outputs.values())
    boundary = len(e.program)
    adjoints = places_of_feeds(e, [v for v in graph.inputs if role_of(v) is Role.ADJOINT])
    lower(e, backward)
    others = _finish_gradients(e, graph, gradients)
    nbytes = plan_memory(e.program, [buf.storage.root() for buf in others.values() if buf.storage.planned],
                         held=HELD_LONG if e.device.type == "cpu" else ALWAYS)  # fmt: skip
    read = {id(buf.storage) for one in e.program[boundary:] for buf in one.reads}
    resident = {v.name or "": memory.residents[v.name or ""] for v in graph.inputs if role_of(v).resident}
    return TorchModuleExecutable(
        ([i for i in e.program[:boundary] if i.fn is not outside],
         [i for i in e.program[boundary:] if i.fn is not outside]),
        inputs=inputs, outputs=outputs, adjoints=adjoints, gradients=gradients, other_gradients=others,
        nbytes=nbytes, outside_nbytes=outside_bytes(e.program), memory=memory, generators=e.generators,
        reads=[name for name, buf in resident.items() if id(buf.storage) in read],
    )  # fmt: skip


def pass_pins_back(e: Emitter, graph: ir.Graph) -> None:
    """Let what is only reshaped into a place of its own be computed there."""
    for node in reversed(graph):
        if node.op_type not in _RESHAPES or not node.outputs:
            continue
        pin, source = e.pinned(node.outputs[0]), node.inputs[0]
        if pin is None or source is None or source.producer() is None or e.pinned(source) is not None:
            continue
        if node.op_type == "Transpose":
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else ()
            back = sorted(range(len(pin.shape)), key=lambda i: perm[i]) if perm else list(range(len(pin.shape)))[::-1]
            e.pin(source, e.permute(pin, back))
        elif pin.meta.is_contiguous():
            e.pin(source, e.reshape(pin, static_dims(source)))


def _is_fed(value: ir.Value) -> bool:
    return not role_of(value).resident and role_of(value) is not Role.ADJOINT


def places_of_feeds(e: Emitter, values: Iterable[ir.Value]) -> dict[str, Buf]:
    """Bind what each run brings to places in its own working memory, filled before the instructions that follow."""
    places = {}
    for value in values:
        buf = places[value.name or ""] = e.new(static_dims(value), torch_dtype(value.dtype))
        e.bind(value, buf)
    if places:
        e.run(outside, writes=list(places.values()))
    return places


def _residents(e: Emitter, graph: ir.Graph, memory: Memory, later: set[ir.Value]) -> list[tuple[ir.Value, Buf]]:
    """Bind parameters and buffers; return the updates, to be written at the end of the forward half.

    A buffer that the backward half reads is read as it was before its update: from a copy.
    """
    updated = {name: v for v in graph.outputs if (name := updates_of(v)) is not None}
    late = []
    for value in graph.inputs:
        name = value.name or ""
        if not role_of(value).resident:
            continue
        place = memory.residents[name]
        if name in updated:
            late.append((updated[name], place))
            if value in later:
                copy = e.new(place.shape, place.dtype)
                e.run(torch.Tensor.copy_, copy, place, writes=[copy])
                place = copy
        e.bind(value, place)
    return late


def _pin_gradients(e: Emitter, graph: ir.Graph, memory: Memory) -> dict[str, Buf]:
    """Let gradients of parameters be computed where they are handed out; return those places."""
    places = {}
    for value in graph.outputs:
        name = gradient_of(value)
        if name is not None and name in memory.residents:
            places[name] = memory.residents.gradient(name)
            e.pin(value, places[name])
    return places


def _finish_gradients(e: Emitter, graph: ir.Graph, places: dict[str, Buf]) -> dict[str, Buf]:
    """Copy gradients that did not land in their place, and return those of inputs, which have none.

    An input's gradient that is also a parameter's was computed in the parameter's place, which changes with each
    backward: the input gets a copy.
    """
    others = {}
    elsewhere = {place.storage for place in places.values()}
    for value in graph.outputs:
        name = gradient_of(value)
        if name is None:
            continue
        found = e.value(value)
        if name not in places:
            if found.storage in elsewhere:
                own = e.new(found.shape, found.dtype)
                e.run(torch.Tensor.copy_, own, found, writes=[own])
                found = own
            others[name] = found
        elif not (found.storage is places[name].storage and found.same_layout(places[name])):
            e.run(torch.Tensor.copy_, places[name], found, writes=[places[name]])
    return others
