"""Parts of a step that people name: Gelu, attention's dropout, layers, and chains of operators as in a plan table."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.errors import OptionError, nearest
from ontrain.graph import DOMAIN, Role, is_random, role_of
from ontrain.operators import Operator, Precision, record_of
from ontrain.passes.recompute.request import ClusterRequest, Recomputation
from ontrain.passes.recompute.schedule import Profile, Schedule

__all__ = ["Cluster", "clusters", "forced", "layers"]

_BLOCK = re.compile(r"(?:.*?\.)?\d+(?=\.)")


@dataclass(frozen=True)
class Cluster:
    """Places of a step that are computed again by the same chain of operators and keep as many bytes.

    Attributes:
        name: the operators of the chain, as "Gelu+" or "Pow+Mul+Add+".
        roots: what each place keeps for backward, in the order of the graph.
        bytes: that one place keeps.
        cost: of computing one place again, in floating-point operations, moved bytes included.
    """

    name: str
    roots: tuple[ir.Value, ...]
    bytes: int
    cost: int


def clusters(schedule: Schedule) -> list[Cluster]:
    """Return what could be computed again, the cheapest per byte first."""
    profile = schedule.profile(())
    values: dict[tuple[str, int], list[ir.Value]] = {}
    costs: dict[tuple[str, int], int] = {}
    for root in schedule.crossing:
        if not schedule.can_recompute(root):
            continue
        chain = _chain(schedule, profile, root)
        key = ("".join(f"{node.op_type}+" for node in chain), schedule.bytes_of(root))
        values.setdefault(key, []).append(root)
        costs.setdefault(key, sum(schedule.cost(node) for node in chain))
    rows = [Cluster(name, tuple(roots), size, costs[name, size]) for (name, size), roots in values.items()]
    return sorted(rows, key=lambda row: row.cost / max(row.bytes, 1))


def _chain(schedule: Schedule, profile: Profile, root: ir.Value) -> list[ir.Node]:
    """The nodes that compute a root again from what backward finds anyway, in graph order."""
    chain: dict[ir.Node, None] = {}
    work = [root]
    while work:
        value = work.pop()
        node = schedule.producer(value)
        if node in chain:
            continue
        chain[node] = None
        for source in schedule.sources(value):
            if source not in schedule.read_by_backward and not schedule.keeps(source, value):
                work.append(source)
    return sorted(chain, key=schedule.position.__getitem__)


def forced(schedule: Schedule, request: Recomputation) -> list[ir.Value]:
    """Return the roots that switches and named clusters ask to be dropped.

    Raises:
        OptionError: there is no cluster of a name given, or no repeated layer.

    Warns:
        UserWarning: a switch finds nothing in this model.
    """
    roots: dict[ir.Value, None] = {}
    for wanted, name, find in (
        (request.gelu, "gelu_recompute", _gelu),
        (request.attention_dropout, "attn_dropout_recompute", _attention_dropout),
    ):
        if wanted:
            values = find(schedule)
            if not values:
                warnings.warn(f"{name} finds nothing to compute again in this model", stacklevel=2)
            roots.update(dict.fromkeys(values))
    if request.layers:
        roots.update(dict.fromkeys(_layers(schedule, request.number_of_layers)))
    for cluster in request.clusters:
        roots = _apply(schedule, cluster, roots)
    return [root for root in roots if schedule.can_recompute(root)]


def _apply(schedule: Schedule, request: ClusterRequest, results: dict[ir.Value, None]) -> dict[ir.Value, None]:
    known = clusters(schedule)
    roots = [root for cluster in known if request.name in (cluster.name, "*") for root in cluster.roots]
    if not roots:
        raise OptionError(
            f"there is no cluster {request.name!r} to compute again",
            way_out=f"nearest: {nearest(request.name, dict.fromkeys(cluster.name for cluster in known))}",
        )
    roots = sorted(roots, key=lambda root: schedule.position[schedule.producer(root)])
    chosen = roots if request.count < 0 else roots[: request.count]
    if request.recompute:
        return {**results, **dict.fromkeys(chosen)}
    return {root: None for root in results if root not in set(chosen)}


def _gelu(schedule: Schedule) -> list[ir.Value]:
    """Results and intermediate values of Gelu: one node, or elementwise nodes of one value with tanh or erf in them."""
    source: dict[ir.Value, ir.Value] = {}
    groups: dict[ir.Value, list[ir.Node]] = {}
    for node in schedule.nodes:
        if node not in schedule.forward:
            continue
        inputs = {source.get(v, v) for v in node.inputs if v is not None and v.const_value is None}
        if record_of(node).is_view and len(inputs) == 1 and node.inputs[0] in source:
            source.update(dict.fromkeys(node.outputs, *inputs))
        if _is_formula(record_of(node)) and len(inputs) == 1:
            (origin,) = inputs
            source[node.outputs[0]] = origin
            groups.setdefault(origin, []).append(node)
    chosen = [
        node for group in groups.values() if any(record_of(member).marks_gelu for member in group) for node in group
    ]
    return _crossing(schedule, (node.outputs[0] for node in chosen))


def _is_formula(record: Operator) -> bool:
    """Whether a formula that spells out a Gelu may have the operator in it."""
    return record.function is not None or record.marks_gelu or record.precision is Precision.OWN


def _attention_dropout(schedule: Schedule) -> list[ir.Value]:
    """Probabilities of attention that has dropout, and results of dropout on a softmax."""
    values: list[ir.Value] = []
    for node in schedule.nodes:
        if node not in schedule.forward or not is_random(node):
            continue
        if (node.domain, node.op_type) == (DOMAIN, "Attention") and len(node.outputs) > 1:
            values.append(node.outputs[1])
        elif node.op_type == "Dropout" and node.inputs[0] is not None:
            before = schedule.memory.root.get(node.inputs[0])
            maker = before.producer() if before is not None else None
            if maker is not None and maker.op_type == "Softmax":
                values.append(node.outputs[0])
    return _crossing(schedule, values)


def layers(schedule: Schedule) -> list[tuple[str, list[ir.Node]]]:
    """Return the repeated layers of the forward pass by name, with their nodes.

    A layer is what belongs to one numbered part of the model, as "encoder.layer.3": the nodes that read its parameters,
    and those behind them up to the next part's.
    """
    named: dict[str, list[ir.Node]] = {}
    current: str | None = None
    for node in schedule.nodes:
        if node not in schedule.forward:
            continue
        blocks = [_block(v) for v in _parameters(node)]
        if blocks:
            current = next((block for block in blocks if block is not None), None)
        if current is not None:
            named.setdefault(current, []).append(node)
    stems: dict[str, int] = {}
    for name in named:
        stems[_stem(name)] = stems.get(_stem(name), 0) + 1
    return [(name, nodes) for name, nodes in named.items() if stems[_stem(name)] > 1]


def _parameters(node: ir.Node) -> list[ir.Value]:
    """The parameters that a node reads, views of them included."""
    parameters = []
    for value in node.inputs:
        while value is not None and (maker := value.producer()) is not None and _only_moves(maker):
            value = maker.inputs[0]
        if value is not None and value.is_graph_input() and role_of(value) is Role.PARAMETER:
            parameters.append(value)
    return parameters


def _only_moves(node: ir.Node | None) -> bool:
    return node is not None and bool(node.inputs) and (record_of(node).is_view or node.op_type == "Cast")


def _block(value: ir.Value) -> str | None:
    match = _BLOCK.match(value.name or "")
    return match[0] if match else None


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _layers(schedule: Schedule, count: int) -> list[ir.Value]:
    blocks = layers(schedule)
    if not blocks:
        raise OptionError(
            "there are no repeated layers to compute again",
            reason="layers are told by their parameters' names, as 'encoder.layer.3.…'",
            way_out="set a memory budget instead",
        )
    chosen = blocks if count < 0 else blocks[: count or len(blocks) - 1]
    inside: dict[ir.Node, str] = {node: name for name, nodes in blocks for node in nodes}
    roots: list[ir.Value] = []
    for name, nodes in chosen:
        for node in nodes:
            handed_on = any(_leaves(schedule, value, inside, name) for value in node.outputs)
            roots += [] if handed_on else node.outputs
    return _crossing(schedule, roots)


def _leaves(schedule: Schedule, value: ir.Value, inside: dict[ir.Node, str], name: str) -> bool:
    """Whether a value, or a view of it, is read going forward outside of its layer."""
    for use in value.uses():
        node = use.node
        if node not in schedule.forward:
            continue
        if inside.get(node) != name or (
            record_of(node).is_view and any(_leaves(schedule, v, inside, name) for v in node.outputs)
        ):
            return True
    return value.is_graph_output()


def _crossing(schedule: Schedule, values: Iterable[ir.Value]) -> list[ir.Value]:
    roots = (schedule.memory.root.get(value) for value in values)
    return [r for r in dict.fromkeys(roots) if r is not None and r in schedule.read_by_backward]
