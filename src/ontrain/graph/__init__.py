"""Helpers on `onnx_ir.Model`: building, typing, folding, specialising, verifying, printing. No torch, no runtime."""

from ontrain.graph.blame import blamed_on, blamed_on_whole
from ontrain.graph.bounds import check_sizes, nbytes
from ontrain.graph.builder import Builder, content_of, new_attribute
from ontrain.graph.control import (
    choose,
    draws_random,
    follows_from_random as follows_from_random,
    follows_from_sizes_alone,
    is_random,
    iterate,
    repeat,
    trace,
)
from ontrain.graph.display import to_text
from ontrain.graph.evaluator_corrections import CORRECTIONS as CORRECTIONS
from ontrain.graph.family import Bound as Bound, Family as Family
from ontrain.graph.fold import KEEPS_FILLS as KEEPS_FILLS, evaluate as evaluate
from ontrain.graph.generalise import generalise as generalise, shapes_at as shapes_at
from ontrain.graph.halves import halves, reads
from ontrain.graph.infer import (
    TypeAndShape as TypeAndShape,
    UntypedError as UntypedError,
    infer_node as infer_node,
    register_inference,
    take_shape as take_shape,
    type_and_shape as type_and_shape,
)
from ontrain.graph.outputs import drop_outputs
from ontrain.graph.plain_control import scan_axes as scan_axes
from ontrain.graph.rebuild import clone_value, extract, model_of as model_of, new_model, rebuild, specialise
from ontrain.graph.replay import Rewrite, as_outputs as as_outputs, emit
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
from ontrain.graph.settings import (
    data_constants as data_constants,
    fed_settings as fed_settings,
    fed_switches as fed_switches,
    with_values as with_values,
)
from ontrain.graph.settle import settle as settle, settled as settled, with_sizes as with_sizes
from ontrain.graph.size_arithmetic import SizeArithmetic as SizeArithmetic
from ontrain.graph.slots import Slot, StateKind, set_slot, slot_of
from ontrain.graph.source import annotate, describe, inherit_source, name_of, shape_text, source_of
from ontrain.graph.stages import (
    Stage as Stage,
    is_sized_by_values as is_sized_by_values,
    stages as stages,
    step_of_adjoint as step_of_adjoint,
)
from ontrain.graph.subgraphs import (
    all_nodes,
    captured,
    drop_dead_nodes,
    every_node as every_node,
    graphs_in as graphs_in,
    live_nodes,
    subgraphs,
)
from ontrain.graph.symbolic_shapes import output_shapes as output_shapes
from ontrain.graph.ties import order_ties_as_torch as order_ties_as_torch, orders_ties_as_torch as orders_ties_as_torch
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
    "blamed_on_whole",
    "by_role",
    "captured",
    "choose",
    "check_sizes",
    "clone_value",
    "content_of",
    "describe",
    "dims",
    "draws_random",
    "drop_outputs",
    "emit",
    "extract",
    "gradient_of",
    "halves",
    "inherit_source",
    "is_float",
    "follows_from_sizes_alone",
    "is_random",
    "iterate",
    "drop_dead_nodes",
    "live_nodes",
    "nbytes",
    "new_attribute",
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
