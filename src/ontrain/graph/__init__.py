"""Helpers on `onnx_ir.Model`: building, typing, folding, specialising, verifying, printing. No torch, no runtime."""

from ontrain.graph.blame import blamed_on
from ontrain.graph.bounds import check_sizes, nbytes
from ontrain.graph.builder import Builder
from ontrain.graph.control import choose, draws_random, follows_from_random, is_random, iterate, repeat, trace
from ontrain.graph.display import to_text
from ontrain.graph.halves import halves, reads
from ontrain.graph.infer import register_inference
from ontrain.graph.outputs import drop_outputs
from ontrain.graph.rebuild import clone_value, extract, new_model, rebuild, specialise
from ontrain.graph.replay import Rewrite, emit
from ontrain.graph.roles import (
    Role,
    adjoint_of,
    by_role,
    gradient_of,
    role_of,
    set_adjoint_of,
    set_gradient_of,
    set_role,
    set_updates,
    updates_of,
)
from ontrain.graph.slots import Slot, StateKind, set_slot, slot_of
from ontrain.graph.source import annotate, describe, inherit_source, name_of, shape_text, source_of
from ontrain.graph.subgraphs import all_nodes, captured, live_nodes, subgraphs
from ontrain.graph.verify import verify, verify_requested
from ontrain.graph.working_memory import MemoryOf, WorkingMemory
from ontrain.operators import DOMAIN, OPSET, Operand, dims, is_float, schema_of, static_dims

__all__ = [
    "slot_of",
    "set_slot",
    "set_adjoint_of",
    "adjoint_of",
    "StateKind",
    "Slot",
    "DOMAIN",
    "OPSET",
    "Builder",
    "MemoryOf",
    "Operand",
    "Rewrite",
    "Role",
    "WorkingMemory",
    "all_nodes",
    "annotate",
    "blamed_on",
    "by_role",
    "captured",
    "choose",
    "check_sizes",
    "clone_value",
    "describe",
    "dims",
    "draws_random",
    "follows_from_random",
    "drop_outputs",
    "emit",
    "extract",
    "gradient_of",
    "halves",
    "inherit_source",
    "is_float",
    "is_random",
    "iterate",
    "live_nodes",
    "nbytes",
    "new_model",
    "reads",
    "rebuild",
    "register_inference",
    "repeat",
    "role_of",
    "schema_of",
    "set_gradient_of",
    "set_role",
    "set_updates",
    "shape_text",
    "name_of",
    "source_of",
    "specialise",
    "static_dims",
    "subgraphs",
    "to_text",
    "trace",
    "updates_of",
    "verify",
    "verify_requested",
]
