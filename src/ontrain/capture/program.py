"""An exported program made ready for translation: one flat graph, no writes through views, known operators only."""

from __future__ import annotations

import difflib
import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ontrain.capture.aliases import Aliases, mutates, written_to
from ontrain.capture.aten.complex import complexes, is_complex
from ontrain.capture.aten.registry import find, operator_name, table, writes_first_only
from ontrain.capture.aten.sparse import is_sparse, sparse_matrices
from ontrain.capture.decomposition import decomposed, functional, simplify_questions, taken_apart
from ontrain.capture.inner_casts import cast_before
from ontrain.capture.outs import written_apart
from ontrain.capture.source import node_text, source_line
from ontrain.errors import CaptureError
from ontrain.internals import HigherOrderOperator, OpOverload, available, of

__all__ = ["BRANCHES", "flat_graph", "is_ignored", "prepare"]

_NEAR = 0.75
"""How alike the names of operators are of which one is named in place of another."""
_SKIPPED = frozenset({"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
                      "sym_constrain_range_for_size"})  # fmt: skip
_WINDOWS = torch.ops.aten.unfold.default
_LOSING = (_WINDOWS, torch.ops.aten.view.dtype)
"""Views. Torch takes what lies between windows for zeros, and gradients for ones that go through a view of bits."""
_HIGHER = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
_CONTROL = ("cond", "while_loop", "scan")
BRANCHES = "ontrain.branches"
"""Where a branch or loop has its inner programs, as flat graphs, in its node's `meta`; its arguments are the rest."""


def prepare(program: ExportedProgram) -> tuple[ExportedProgram, fx.Graph]:
    """Return the program and its flat graph, decomposed no further than the table needs.

    Raises:
        CaptureError: an operator has neither a translation nor a decomposition into operators that have one.
    """
    simplify_questions(program)
    _hold_written(program)
    if _casts(program.graph_module):
        _refuse_lost_writes(program.graph_module.graph)
        cast_before(program.graph_module)
        program = decomposed(program)  # which says autocast's casts as operators
    graph = flat_graph(program.graph_module)
    missing = _missing(graph)
    if missing and _followed(graph) and taken_apart(program, missing) and _followed(graph):
        missing = _missing(graph)
    if missing:
        _refuse_lost_writes(flat_graph(program.graph_module))
        program = decomposed(program)
        graph = flat_graph(program.graph_module)
    elif not _followed(graph):
        _refuse_lost_writes(graph)
        program = functional(program)
        graph = flat_graph(program.graph_module)
        if _missing(graph):
            return prepare(program)
    missing = _missing(graph)
    if missing:
        raise _missing_error(missing[0])
    return program, graph


def _hold_written(program: ExportedProgram) -> None:
    """Make a buffer of each tensor outside of the module's state that the program writes to.

    self.mean.mul_(0.9).add_(0.1 * x.mean())  # a plain attribute
    """
    aliases = Aliases(program.graph)
    roots = {aliases.root(target) for node in program.graph.nodes for target in written_to(node)}
    written = {node.name for node in roots if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR and spec.arg.name in written:
            spec.kind, spec.persistent = InputKind.BUFFER, False


def _refuse_lost_writes(graph: fx.Graph) -> None:
    """Refuse writes through views that torch, which follows what is not followed here, follows otherwise than eager."""
    aliases = Aliases(graph)
    for write in filter(mutates, graph.nodes):
        target = write.args[0]
        for view in aliases.path(target) if isinstance(target, fx.Node) else ():
            if view.target in _LOSING and not _fills(view):
                raise CaptureError(
                    f"a write through {operator_name(view.target)} that cannot be followed",
                    node=node_text(write),
                    source=source_line(write),
                    reason="torch's trace would leave other values or gradients than eager PyTorch",
                    way_out="write to the tensor itself, or to a slice of it",
                )


def _fills(view: fx.Node) -> bool:
    """Whether windows lie side by side from the first place of an axis to the last, so that none is left out."""
    if view.target is not _WINDOWS or not isinstance(view.args[0], fx.Node):
        return False
    shape = view.args[0].meta["val"].shape
    numbers: list[Any] = [shape[view.args[1]] if shape else 1, *view.args[2:4]]
    length, size, step = numbers
    return all(isinstance(n, int) for n in numbers) and size == step and length % size == 0


def _casts(module: fx.GraphModule) -> bool:
    """Whether a program, or a block in it, turns autocast on."""
    inner = (child for child in module.children() if isinstance(child, fx.GraphModule))
    return any(_higher(n) == _HIGHER[1] and bool(n.args[2]) for n in module.graph.nodes) or any(map(_casts, inner))


def is_ignored(node: fx.Node) -> bool:
    """Whether a node only asserts what the trace found out."""
    target = node.target
    if target in (operator.eq, operator.ge, operator.le, available("torch._check")):
        return True
    return isinstance(target, OpOverload) and operator_name(target) in _SKIPPED


def flat_graph(module: fx.GraphModule) -> fx.Graph:
    """Return the module's graph with the bodies of no_grad and disabled-autocast blocks in place of their calls.

    An operator with `out=` is written as one without, and a copy.
    """
    flat = fx.Graph(module)
    results = _inline(flat, module, None)
    output = flat.output(results)
    output.meta = dict(module.graph.output_node().meta)
    written_apart(flat)
    return flat


def _inline(flat: fx.Graph, module: fx.GraphModule, inputs: list[Any] | None) -> Any:
    copies: dict[fx.Node, Any] = {}
    feeds = iter(inputs or ())

    def renamed(value: Any) -> Any:
        return fx.map_arg(value, lambda node: copies[node])

    for node in module.graph.nodes:
        if node.op == "output":
            return renamed(node.args[0])
        if node.op == "placeholder" and inputs is not None:
            copies[node] = next(feeds)
        elif node.op == "get_attr" and isinstance(getattr(module, str(node.target), None), fx.GraphModule):
            copies[node] = getattr(module, str(node.target))
        elif node.op == "get_attr":
            copies[node] = flat.create_node("get_attr", node.target, name=node.name)
            copies[node].meta = {**node.meta, "ontrain.constant": _attribute(module, str(node.target))}
        elif (kind := _higher(node)) in _HIGHER:
            copies[node] = _call(flat, node, kind, [copies[a] if isinstance(a, fx.Node) else a for a in node.args])
        elif kind in _CONTROL:
            arguments = [renamed(arg) for arg in node.args]
            inner = [arg for arg in arguments if isinstance(arg, fx.GraphModule)]
            rest = tuple(arg for arg in arguments if not isinstance(arg, fx.GraphModule))
            copies[node] = flat.call_function(node.target, rest)
            # torch leaves the call itself without the user's line.
            lines = (node.meta.get("stack_trace") for graph in inner for node in graph.graph.nodes)
            line = node.meta.get("stack_trace") or next(filter(None, lines), None)
            copies[node].meta = {**node.meta, "stack_trace": line, BRANCHES: tuple(map(flat_graph, inner))}
        elif node.target is operator.getitem and isinstance(copies.get(node.args[0]), tuple | list):
            copies[node] = copies[node.args[0]][node.args[1]]
        else:
            copies[node] = flat.node_copy(node, renamed)
    raise AssertionError("a graph without output")


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _call(flat: fx.Graph, node: fx.Node, kind: str, args: list[Any]) -> Any:
    if kind == "wrap_with_autocast":
        # (device_type, dtype, enabled, cache_enabled, body, *inputs)
        assert not args[2], "autocast that is on was decomposed into casts"
        return _inline(flat, args[4], args[5:])
    return _inline(flat, args[1], args[2:])


def _higher(node: fx.Node) -> str:
    target = node.target
    return str(of("torch._ops.HigherOrderOperator._name", target)) if isinstance(target, HigherOrderOperator) else ""


def _followed(graph: fx.Graph) -> bool:
    branches = (branch for node in graph.nodes for branch in node.meta.get(BRANCHES, ()))
    return Aliases(graph).followed and all(map(_followed, branches))


def _missing(graph: fx.Graph) -> list[fx.Node]:
    names = []
    for node in graph.nodes:
        if BRANCHES in node.meta:
            names += [name for branch in node.meta[BRANCHES] for name in _missing(branch)]
            continue
        if node.op != "call_function" or is_ignored(node) or node.target is operator.getitem:
            continue
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            continue
        if find(node.target) is None and not _known_apart(node):
            names.append(node)
    return names


def _known_apart(node: fx.Node) -> bool:
    """Whether an operator has a translation for the complex or sparse tensors that it takes or gives."""
    if not isinstance(node.target, OpOverload) or not writes_first_only(node.target):
        return False
    values, name = [operand.meta.get("val") for operand in (node, *node.all_input_nodes)], operator_name(node.target)
    return (is_complex(values) and name in complexes) or (is_sparse(values) and name in sparse_matrices)


def _missing_error(node: fx.Node) -> CaptureError:
    name = str(node.target)
    if isinstance(node.target, HigherOrderOperator):
        return CaptureError(
            f"torch's higher-order operator {_higher(node)} has no translation",
            source=source_line(node),
            reason=f"of those with functions as arguments {', '.join(_CONTROL)} have one",
            way_out="write it as torch.vmap or torch.while_loop, as tensor operators on all rows at once, or as a loop "
            "in Python",
        )
    own = name.removeprefix("aten.").split(".")[0].strip("_")
    near = difflib.get_close_matches(own, {entry.split(".")[0] for entry in table}, cutoff=_NEAR)
    hint = f" (near: {', '.join(map(repr, near))})" if near else ""
    return CaptureError(
        f"operator {name} has no translation",
        node=node_text(node),
        source=source_line(node),
        reason=f"it is not among the {len(table)} of ontrain's table, and torch does not decompose it into those",
        way_out=f"register one with ontrain.capture.aten, or write the line with other operators{hint}; or leave the "
        'module to PyTorch, wholly by ORTModule(model, fallback="FALLBACK_UNSUPPORTED_TORCH_MODEL"), or as a piece of '
        'torch.compile(model, backend="ontrain")',
    )
