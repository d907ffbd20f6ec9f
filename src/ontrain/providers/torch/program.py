"""A graph as one program of calls: forward until the outputs are handed out, backward once adjoints are there.

A step is a program without a backward half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.graph import gradient_of, halves, updates_of
from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.constants import Constants
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.instructions import Instruction, outside
from ontrain.providers.torch.lowering.nodes import lower_nodes
from ontrain.providers.torch.pins import place_module, place_step
from ontrain.providers.torch.placement import Late, Placement
from ontrain.providers.torch.plan import ALWAYS, HELD_LONG, outside_bytes, plan_memory
from ontrain.providers.torch.residents import Residents
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.state import TorchState

__all__ = ["Program", "compile_module", "compile_step", "serves_by_rows"]


@dataclass(frozen=True)
class Program:
    """Instructions over storages that have their places in one plan of memory.

    Attributes:
        forward, backward: the instructions of each half.
        inputs, adjoints: what is filled before each half, or lent to it, by the names of graph inputs.
        outputs: what forward hands out, by name.
        gradients: places of parameters' gradients, by the name of the parameter.
        other_gradients: those of inputs, which have no place of their own, by the name of the input.
        generators: what the instructions draw from.
        nbytes: of the arena.
        outside_nbytes: beside the arena, of results that kernels return at one time at most, and of packs.
        joined: whether a call runs several small nodes.
    """

    forward: Sequence[Instruction]
    backward: Sequence[Instruction]
    inputs: Mapping[str, Buf]
    adjoints: Mapping[str, Buf]
    outputs: Mapping[str, Buf]
    gradients: Mapping[str, Buf]
    other_gradients: Mapping[str, Buf]
    generators: Sequence[torch.Generator]
    nbytes: int
    outside_nbytes: int
    joined: bool = False

    @property
    def planned_bytes(self) -> int:
        """Bytes of working memory."""
        return self.nbytes + self.outside_nbytes


def compile_step(graph: ir.Graph, state: TorchState, settings: Settings) -> Program:
    """Compile a graph that runs as a whole; every operator has a lowering, and residents are found in the state."""
    constants = Constants(state.device)
    emitter = Emitter(
        state.device, place_step(graph, state, constants), constants, settings=settings, weights=state.weights,
        joins=serves_by_rows(state, settings),
    )  # fmt: skip
    return _compile(emitter, (list(graph), []), [v for v in graph.outputs if updates_of(v) is None], [])


def serves_by_rows(state: TorchState, settings: Settings) -> bool:
    """Return whether a graph only serves on a CPU, and may run in rows of small nodes.

    Not where a step trains: its numbers are eager PyTorch's, call by call.
    """
    return settings.joins and settings.tuning is not None and state.device.type == "cpu" and state.is_all_constant


def compile_module(graph: ir.Graph, residents: Residents, device: torch.device, settings: Settings) -> Program:
    """Compile a graph in two halves: what backward needs stays where forward left it.

    Args:
        graph: every operator has a lowering.
        residents: the user's tensors, and where gradients go.
        device: where the instructions run.
        settings: the provider's.
    """
    emitter = Emitter(device, place_module(graph, residents), settings=settings)
    handed_out = [v for v in graph.outputs if updates_of(v) is None and gradient_of(v) is None]
    return _compile(emitter, halves(graph), handed_out, [v for v in graph.outputs if gradient_of(v) is not None])


def _compile(
    e: Emitter, nodes: tuple[Sequence[ir.Node], Sequence[ir.Node]], outputs: Sequence[ir.Value],
    gradients: Sequence[ir.Value],
) -> Program:  # fmt: skip
    placement, (forward, backward) = e.placement, nodes
    _fill(e, placement.feeds)
    for snapshot in placement.snapshots:
        e.copy(snapshot.resident, snapshot.copy)
    lower_nodes(e, forward)
    _update(e, placement.late)
    handed_out = {v.name or "": e.there(_row_major(e, e.value(v))) for v in outputs}
    e.run(outside, *handed_out.values())
    cut = len(e.program)
    _fill(e, placement.adjoints)
    lower_nodes(e, backward)
    others = _finish_gradients(e, gradients, placement)
    nbytes = plan_memory(
        e.program, [buf.storage.root() for buf in others.values() if buf.storage.planned],
        held=HELD_LONG if e.device.type == "cpu" else ALWAYS, lends=e.device.type == "cpu",
    )  # fmt: skip
    return Program(
        _inside(e.program[:cut]), _inside(e.program[cut:]), inputs=placement.feeds, adjoints=placement.adjoints,
        outputs=handed_out, gradients=placement.gradients, other_gradients=others, generators=e.generators,
        nbytes=nbytes, outside_nbytes=outside_bytes(e.program), joined=e.joined,
    )  # fmt: skip


def _update(e: Emitter, updates: Sequence[Late]) -> None:
    """Write to residents what they are from now on; one that becomes what another was reads it first."""
    residents = {late.resident.storage.root() for late in updates}
    values = []
    for late in updates:
        value = e.value(late.value)
        is_shown = value is not late.resident and value.storage.root() in residents
        values.append(e.cast(value, value.dtype) if is_shown else value)
    for late, value in zip(updates, values, strict=True):
        e.copy(value, late.resident)


def _row_major(e: Emitter, buf: Buf) -> Buf:
    """What leaves the program: whoever takes it has said nothing of channels last, and may call `view` on it."""
    return e.contiguous(buf) if order_of(buf.meta) is torch.channels_last else buf


def _fill(e: Emitter, places: Mapping[str, Buf]) -> None:
    """Say that places are filled by now, from outside of the program."""
    if places:
        e.run(outside, writes=list(places.values()))


def _inside(instructions: Sequence[Instruction]) -> list[Instruction]:
    return [instruction for instruction in instructions if instruction.fn is not outside]


def _finish_gradients(e: Emitter, gradients: Sequence[ir.Value], placement: Placement) -> dict[str, Buf]:
    """Copy gradients that did not land in their place, and return those of inputs, which have none.

    An input's gradient that is also a parameter's was computed in the parameter's place, which changes with each
    backward: the input gets a copy.
    """
    others = {}
    places = placement.gradients
    elsewhere = {place.storage for place in places.values()}
    for value in gradients:
        name, gradient = gradient_of(value) or "", _row_major(e, e.value(value))
        if name not in places:
            others[name] = e.cast(gradient, gradient.dtype) if gradient.storage in elsewhere else gradient
        elif not gradient.same_elements(places[name]):
            e.copy(gradient, places[name])
    return others
