"""Places that are chosen before the first instruction: of updates, gradients, and what is only reshaped into them."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, Role, new_model, set_gradient_of, set_role, set_updates
from ontrain.providers.base import StateSpec
from ontrain.providers.torch.constants import Constants
from ontrain.providers.torch.pins import place_module, place_step
from ontrain.providers.torch.program import compile_step
from ontrain.providers.torch.residents import Residents
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.state import TorchState

CPU = torch.device("cpu")


def _input(name: str, shape: list[int], role: Role = Role.INPUT) -> ir.Value:
    return set_role(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)), role)


def _step(read_later: bool = False) -> tuple[ir.Graph, TorchState]:
    """w ← w − 0.1 · reshape(x xᵀ), and the old w if it is read later."""
    x, w = _input("x", [2, 3]), _input("w", [4], Role.PARAMETER)
    op = Builder(new_model([x, w], "graph").graph)
    gradient = op.Reshape(op.MatMul(x, op.Transpose(x, perm=[1, 0])), [4])
    update = op.Sub(w, op.Mul(gradient, op.const(0.1)))
    op.graph.outputs.append(set_updates(update, "w"))
    if read_later:
        op.graph.outputs.append(op.Exp(w))
    return op.graph, TorchState([StateSpec("w", (4,), ir.DataType.FLOAT, "parameter")], CPU)


def test_an_update_is_computed_in_the_state():
    graph, state = _step()
    constants = Constants(CPU)
    placement = place_step(graph, state, constants)
    (update,) = graph.outputs
    assert placement.pins[update].storage is constants.buffer(state["w"]).storage and not placement.late


def test_an_update_waits_for_who_reads_the_old_value():
    graph, state = _step(read_later=True)
    placement = place_step(graph, state, Constants(CPU))
    update = graph.outputs[0]
    assert update not in placement.pins and [late.value for late in placement.late] == [update]
    state["w"] = torch.arange(4.0)
    program = compile_step(graph, state, Settings())
    assert program.forward[-1].writes[0].storage.tensor is not None, "the state is written last"


def test_a_gradient_that_is_reshaped_is_computed_in_its_place():
    x, w, dy = _input("x", [2, 3]), _input("w", [3, 4], Role.PARAMETER), _input("dy", [2, 4], Role.ADJOINT)
    op = Builder(new_model([x, w, dy], "graph").graph)
    product = op.MatMul(op.Transpose(dy, perm=[1, 0]), x)
    gradient = op.Transpose(product, perm=[1, 0])
    op.graph.outputs.append(set_gradient_of(gradient, "w"))
    residents = Residents({"w": torch.zeros(3, 4)})
    placement = place_module(op.graph, residents)
    place = residents.gradient("w")
    assert placement.pins[gradient] is place is placement.gradients["w"]
    assert placement.pins[product].storage is place.storage and placement.pins[product].meta.stride() == (1, 4)


def test_lowering_leaves_the_placement_as_it_was(monkeypatch):
    from ontrain.providers.torch import program

    snapshots = []

    def remembered(*arguments):
        placement = place_step(*arguments)
        fields = (getattr(placement, field.name) for field in dataclasses.fields(placement))
        snapshots.append((placement, [dict(field) if isinstance(field, dict) else list(field) for field in fields]))
        return placement

    monkeypatch.setattr(program, "place_step", remembered)
    compile_step(*_step(read_later=True), Settings())
    ((placement, before),) = snapshots
    fields = (getattr(placement, field.name) for field in dataclasses.fields(placement))
    assert [dict(field) if isinstance(field, dict) else list(field) for field in fields] == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        placement.pins = {}
