"""Helpers on `onnx_ir.Model`: building, typing, folding, specialising, verifying, printing. No torch, no runtime."""

from ontrain.graph.builder import Builder, Operand, dims, is_float, static_dims
from ontrain.graph.display import to_text
from ontrain.graph.infer import DOMAIN, OPSET, register_inference, schema_of
from ontrain.graph.rebuild import Rewrite, clone_value, live_nodes, new_model, rebuild, specialise
from ontrain.graph.roles import Role, by_role, role_of, set_role, set_updates, updates_of
from ontrain.graph.source import annotate, describe, inherit_source, shape_text, source_of
from ontrain.graph.verify import verify, verify_requested

__all__ = [
    "DOMAIN",
    "OPSET",
    "Builder",
    "Operand",
    "Rewrite",
    "Role",
    "annotate",
    "by_role",
    "clone_value",
    "describe",
    "dims",
    "inherit_source",
    "is_float",
    "live_nodes",
    "new_model",
    "rebuild",
    "register_inference",
    "role_of",
    "schema_of",
    "set_role",
    "set_updates",
    "shape_text",
    "source_of",
    "specialise",
    "static_dims",
    "to_text",
    "updates_of",
    "verify",
    "verify_requested",
]
