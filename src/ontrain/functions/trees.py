"""Ensembles of decision trees as arrays that all rows walk through at once.

Source: https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html and the operators that it replaces.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.functions.registry import attributes_of
from ontrain.graph import describe, register_inference
from ontrain.operators import ML

__all__ = ["AGGREGATES", "MODES", "Forest", "class_count", "forest_of", "target_count"]

Array = np.ndarray[Any, Any]

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER", "LEAF")
"""How a value is compared with a node's, in the order of the numbers that TreeEnsemble gives the modes."""
_MEMBER, _LEAF = MODES.index("MEMBER"), MODES.index("LEAF")
_ALWAYS = {"LEQ": np.inf, "LT": np.inf, "GTE": -np.inf, "GT": -np.inf, "EQ": 0.0, "NEQ": 1.0, "MEMBER": 0.0}
"""By mode, a value that zero compares with as true."""

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""How the trees' numbers become one, in the order of the numbers that TreeEnsemble gives them."""
_MOST = 1 << 31
"""Weights of leaves: far above what any model holds."""
_SUMS = (AGGREGATES.index("AVERAGE"), AGGREGATES.index("SUM"))


@dataclass(frozen=True)
class Forest:
    """Trees in one numbering: roots first, the deepest tree first; a node's false child follows its true child.

    A leaf's true child is the leaf itself. It compares the feature behind the last one, which is zero in every row,
    with a value that makes the comparison true. So a row that arrived stays while others go on.

    Attributes:
        trees: how many.
        active: for each step downwards, how many trees, from the first one on, are deeper than the steps before.
        feature: of each node, int64; −1 for a leaf.
        value: what the feature is compared with.
        mode: number in `MODES` of the comparison.
        true: the true child's number, int64.
        missing: whether NaN goes to the true child; None if it never does.
        member: of each node, the row in `members` that its mode MEMBER looks into; None without such nodes.
        members: sets of numbers, one a row, padded with NaN.
        weights: what a leaf adds to each target, [nodes, targets], NaN where it says nothing; [nodes] if `target` is
            there.
        target: of each node, the one target that it adds to, int64; None if leaves may add to many.
        named: which targets some leaf adds to.
    """

    trees: int
    active: tuple[int, ...]
    feature: Array
    value: Array
    mode: Array
    true: Array
    missing: Array | None
    member: Array | None
    members: Array
    weights: Array
    target: Array | None
    named: Array

    @property
    def modes(self) -> list[int]:
        """The numbers of the modes that inner nodes have."""
        return [int(mode) for mode in np.unique(self.mode[self.feature >= 0])]


@dataclass(frozen=True)
class _Nodes:
    """Nodes in the file's numbering, and what each leaf says as (node, target, weight)."""

    roots: Array
    feature: Array
    value: Array
    mode: Array
    true: Array
    false: Array
    missing: Array
    members: Sequence[Array]
    said: tuple[Array, Array, Array]


_made: dict[int, tuple[weakref.ref[ir.Attr], Forest]] = {}
"""The forest of a node by the identity of its attribute of features: each plan has a copy of the node, and the copies
share their attributes, which have no hash."""


def forest_of(node: ir.Node) -> Forest:
    """Return the trees of a TreeEnsemble, TreeEnsembleClassifier or TreeEnsembleRegressor.

    Raises:
        GraphError: the attributes describe no trees.
    """
    key = node.attributes.get("nodes_featureids")
    if key is None:
        raise _no_trees(node, "it has no attribute 'nodes_featureids'")
    known = _made.get(id(key))
    if known is None or known[0]() is not key:
        try:
            nodes = _split(node) if node.op_type == "TreeEnsemble" else _whole(node)
        except (ValueError, IndexError, KeyError) as error:
            raise _no_trees(node, str(error)) from error
        at = id(key)
        known = _made[at] = weakref.ref(key, lambda _: _made.pop(at, None)), _laid_out(node, nodes)
    return known[1]


def _no_trees(node: ir.Node, reason: str) -> GraphError:
    return GraphError(f"the attributes of {node.op_type} describe no trees", node=describe(node), reason=reason)


def _numbers(a: Mapping[str, Any], name: str, default: Array | None = None) -> Array:
    """An attribute of numbers; those of an attribute `…_as_tensor` keep their type."""
    tensor = a.get(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(tensor.numpy()).reshape(-1)
    numbers = a.get(name, ())
    if len(numbers) == 0 and default is not None:
        return default
    return np.asarray(numbers, np.float32 if len(numbers) and isinstance(numbers[0], float) else np.int64)


def _whole(node: ir.Node) -> _Nodes:
    """Nodes named by a tree's and their own number, leaves among them."""
    a = attributes_of(node, {})
    trees, numbers = _numbers(a, "nodes_treeids"), _numbers(a, "nodes_nodeids")
    span = int(numbers.max(initial=0)) + 1
    keys = trees * span + numbers
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    if (in_order[1:] == in_order[:-1]).any():
        raise ValueError("two nodes of a tree have one number")

    def place(tree: Array, number: Array, what: str) -> Array:
        wanted = tree * span + number
        at = np.minimum(np.searchsorted(in_order, wanted), len(keys) - 1)
        if ((number < 0) | (number >= span)).any() or (in_order[at] != wanted).any():
            raise ValueError(f"{what} names a node that is not there")
        places: Array = order[at]
        return places

    codes = {f"BRANCH_{mode}": number for number, mode in enumerate(MODES)} | {"LEAF": _LEAF}
    mode = np.array([codes[name] for name in a["nodes_modes"]], np.int64)
    inner = np.flatnonzero(mode != _LEAF)
    true, false = np.zeros((2, len(keys)), np.int64)
    true[inner] = place(trees[inner], _numbers(a, "nodes_truenodeids")[inner], "nodes_truenodeids")
    false[inner] = place(trees[inner], _numbers(a, "nodes_falsenodeids")[inner], "nodes_falsenodeids")
    _, roots = np.unique(trees, return_index=True)
    kind = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
    leaves = place(_numbers(a, f"{kind}_treeids"), _numbers(a, f"{kind}_nodeids"), f"{kind}_nodeids")
    said = leaves, _numbers(a, f"{kind}_ids"), _numbers(a, f"{kind}_weights")
    count = len(keys)
    return _Nodes(
        roots, _numbers(a, "nodes_featureids"), _numbers(a, "nodes_values", np.zeros(count, np.float32)), mode, true,
        false, _numbers(a, "nodes_missing_value_tracks_true", np.zeros(count, np.int64)) != 0, (), said,
    )  # fmt: skip


def _split(node: ir.Node) -> _Nodes:
    """Inner nodes and leaves in two numberings: leaves are put behind the inner nodes."""
    a = attributes_of(node, {})
    feature = _numbers(a, "nodes_featureids")
    inner, leaves = len(feature), len(a["leaf_weights"].numpy())
    children = []
    for child, leaf in (("nodes_truenodeids", "nodes_trueleafs"), ("nodes_falsenodeids", "nodes_falseleafs")):
        numbers, is_leaf = _numbers(a, child), _numbers(a, leaf) != 0
        if ((numbers < 0) | (numbers >= np.where(is_leaf, leaves, inner))).any():
            raise ValueError(f"{child} names a node that is not there")
        children.append(np.concatenate([np.where(is_leaf, inner + numbers, numbers), np.zeros(leaves, np.int64)]))
    roots = _numbers(a, "tree_roots")
    if (roots >= inner).any():
        raise ValueError("tree_roots names a node that is not there")
    mode = np.asarray(a["nodes_modes"].numpy()).astype(np.int64)
    mode = np.concatenate([mode, np.full(leaves, _LEAF)])
    splits = np.asarray(a["nodes_splits"].numpy())
    sets: list[Array] = []
    if "membership_values" in a:
        values = np.asarray(a["membership_values"].numpy())
        sets = np.split(values, np.flatnonzero(np.isnan(values)))
    members = [some[~np.isnan(some)] for some in sets]
    said = inner + np.arange(leaves), _numbers(a, "leaf_targetids"), np.asarray(a["leaf_weights"].numpy())
    missing = _numbers(a, "nodes_missing_value_tracks_true", np.zeros(inner, np.int64)) != 0
    return _Nodes(
        roots, np.concatenate([feature, np.zeros(leaves, np.int64)]),
        np.concatenate([splits, np.zeros(leaves, splits.dtype)]), mode, children[0], children[1],
        np.concatenate([missing, np.zeros(leaves, bool)]), members, said,
    )  # fmt: skip


def _laid_out(node: ir.Node, nodes: _Nodes) -> Forest:
    """The nodes numbered level by level over all trees."""
    count = len(nodes.mode)
    for array in (nodes.feature, nodes.value, nodes.true, nodes.false, nodes.missing):
        if len(array) != count:
            raise _no_trees(node, "its attributes of nodes differ in length")
    if (nodes.feature < 0).any() or ((nodes.roots < 0) | (nodes.roots >= count)).any():
        raise _no_trees(node, "a feature or a root is negative, or not there")
    roots = nodes.roots[np.argsort(-_depths(node, nodes), kind="stable")]
    levels = [(roots, np.arange(len(roots)))]  # in the file's numbering, and the tree
    old, true, active, start = [roots], [], [], len(roots)
    while True:
        frontier, tree = levels[-1]
        inner = np.flatnonzero(nodes.mode[frontier] != _LEAF)
        first = start - len(frontier)
        children = np.arange(first, start)
        children[inner] = start + 2 * np.arange(len(inner))
        true.append(children)
        if len(inner) == 0:
            break
        active.append(int(tree[inner].max()) + 1)
        both = np.stack([nodes.true[frontier[inner]], nodes.false[frontier[inner]]], 1).reshape(-1)
        levels.append((both, np.repeat(tree[inner], 2)))
        old.append(both)
        start += len(both)
    numbers = np.concatenate(old)
    mode, leaf = nodes.mode[numbers], nodes.mode[numbers] == _LEAF
    kinds = np.unique(mode[~leaf])
    if len(kinds):
        mode = np.where(leaf, kinds[0], mode)
    value = nodes.value[numbers]
    value[leaf] = _ALWAYS[MODES[kinds[0]]] if len(kinds) else 0
    member, members = _memberships(node, nodes, numbers, mode, leaf)
    missing = nodes.missing[numbers] & ~leaf
    return Forest(
        len(roots), tuple(active), np.where(leaf, -1, nodes.feature[numbers]), value, mode, np.concatenate(true),
        missing if missing.any() else None, member, members, *_weights(node, nodes.said, numbers, count),
    )  # fmt: skip


def _depths(node: ir.Node, nodes: _Nodes) -> Array:
    """The depth of each tree.

    Raises:
        GraphError: a way down leads in a circle, or many ways lead to one node.
    """
    depths = np.zeros(len(nodes.roots), np.int64)
    frontier, tree, visited = nodes.roots, np.arange(len(nodes.roots)), 0
    while len(frontier):
        # Leaves may be shared; a node reached twice would double what is below it at each level.
        visited += len(frontier)
        inner = nodes.mode[frontier] != _LEAF
        frontier, tree = frontier[inner], tree[inner]
        if visited > 2 * len(nodes.mode) + len(nodes.roots):
            raise _no_trees(node, "a node is reached in two ways, or leads to itself")
        depths[tree] += 1
        frontier = np.concatenate([nodes.true[frontier], nodes.false[frontier]])
        tree = np.concatenate([tree, tree])
    return depths


def _memberships(node: ir.Node, nodes: _Nodes, numbers: Array, mode: Array, leaf: Array) -> tuple[Array | None, Array]:
    """For each node the row of its set, and the sets; the last row holds the zero that leaves look for."""
    dtype = nodes.value.dtype
    askers = np.flatnonzero(nodes.mode == _MEMBER)
    if not len(askers):
        return None, np.zeros((0, 0), dtype)
    if len(nodes.members) < len(askers):
        raise _no_trees(node, f"{len(askers)} nodes ask for members of a set, and there are {len(nodes.members)} sets")
    sets = [*nodes.members[: len(askers)], np.zeros(1, dtype)]
    members = np.full((len(sets), max(map(len, sets))), np.nan, dtype)
    for row, some in zip(members, sets, strict=True):
        row[: len(some)] = some
    rows = np.full(len(nodes.mode), len(askers))
    rows[askers] = np.arange(len(askers))
    return np.where(leaf | (mode != _MEMBER), len(askers), rows[numbers]), members


def _weights(
    node: ir.Node, said: tuple[Array, Array, Array], numbers: Array, count: int
) -> tuple[Array, Array | None, Array]:
    """What leaves add: the attributes `weights`, `target` and `named`."""
    leaves, targets, weights = said
    if not len(leaves) == len(targets) == len(weights):
        raise _no_trees(node, "its attributes of leaves differ in length")
    width = target_count(node, targets)
    if ((targets < 0) | (targets >= width)).any():
        raise _no_trees(node, f"a leaf adds to a target that is not among {width}")
    if count * width > _MOST:
        raise _no_trees(node, f"{count} nodes would add to {width} targets")
    if weights.dtype.kind != "f":
        weights = weights.astype(np.float32)
    named = np.bincount(targets, minlength=width) > 0
    if width == 1:  # as in onnxruntime, what a leaf says first: skl2onnx lets leaves say their number several times
        leaves, first = np.unique(leaves, return_index=True)
        targets, weights = targets[first], weights[first]
    aggregate = attributes_of(node, {}).get("aggregate_function", "SUM")
    sums = aggregate in (*_SUMS, "SUM", "AVERAGE")
    if width > 1 and sums and np.bincount(leaves, minlength=1).max() <= 1:
        target, weight = np.zeros(count, np.int64), np.zeros(count, weights.dtype)
        target[leaves], weight[leaves] = targets, weights
        return weight[numbers], target[numbers], named
    table = np.full((count, width), np.nan, weights.dtype)
    if sums:
        table[leaves, targets] = 0
    (np.add if sums else np.fmin if aggregate == "MIN" else np.fmax).at(table, (leaves, targets), weights)
    return table[numbers], None, named


def target_count(node: ir.Node, targets: Array | None = None) -> int:
    """How many numbers the trees add to: targets, or classes that leaves name."""
    a = attributes_of(node, {})
    if node.op_type != "TreeEnsembleClassifier":
        return int(a.get("n_targets", 1))
    named = np.asarray(a.get("class_ids", ()), np.int64) if targets is None else targets
    return max(class_count(a), int(named.max(initial=0)) + 1)


def class_count(a: Mapping[str, Any]) -> int:
    """How many class labels a classifier has."""
    return max(*(len(a.get(name, ())) for name in ("classlabels_int64s", "classlabels_ints", "classlabels_strings")))


def _rows(x: Any) -> Any:
    return x.shape[0] if len(x.shape) > 1 else 1


def _regressor_types(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape]]:
    x = node.inputs[0]
    assert x is not None and x.dtype is not None
    dtype = x.dtype if node.op_type == "TreeEnsemble" else ir.DataType.FLOAT
    return [(dtype, ir.Shape([_rows(x), int(attributes_of(node, {"n_targets": 1})["n_targets"])]))]


def _classifier_types(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape]]:
    a, rows = attributes_of(node, {}), _rows(node.inputs[0])
    label = ir.DataType.STRING if a.get("classlabels_strings") else ir.DataType.INT64
    return [(label, ir.Shape([rows])), (ir.DataType.FLOAT, ir.Shape([rows, class_count(a) or 2]))]


register_inference("TreeEnsemble", _regressor_types, ML)
register_inference("TreeEnsembleRegressor", _regressor_types, ML)
register_inference("TreeEnsembleClassifier", _classifier_types, ML)
