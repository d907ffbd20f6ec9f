"""Ensembles of decision trees: all rows go down all trees at once, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from ontrain.functions import AGGREGATES, MODES, Forest, attributes_of, class_count, forest_of
from ontrain.operators import ML
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import lowers
from ontrain.providers.torch.lowering.scores import TRANSFORMS, of_two_classes, transformed

__all__: list[str] = []

Tensor = torch.Tensor
_ROWS = 1 << 10
"""Rows that go down the trees together."""
_NODES = 1 << 15
"""Up to so many nodes a single row goes down faster once all nodes have been asked."""
_PLACES = 1 << 15
"""Places of rows in trees that go down together: what these trees' nodes say stays in a core's cache."""
_COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "LEQ": torch.le, "LT": torch.lt, "GTE": torch.ge, "GT": torch.gt, "EQ": torch.eq, "NEQ": torch.ne,
}  # fmt: skip
_AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    # In double precision the sums are exact where classes tie.
    "SUM": lambda said: said.sum(0, dtype=torch.float64), "AVERAGE": lambda said: said.sum(0, dtype=torch.float64),
    "MIN": lambda said: said.amin(0), "MAX": lambda said: said.amax(0),
}  # fmt: skip


@dataclass(frozen=True)
class _Trees:
    """A `Forest` as tensors in the dtype that values are compared in."""

    trees: int
    active: tuple[int, ...]
    modes: list[int]
    feature: Tensor
    value: Tensor
    mode: Tensor
    true: Tensor
    missing: Tensor | None
    member: Tensor | None
    members: Tensor
    weights: Tensor
    target: Tensor | None
    width: int

    @classmethod
    def of(cls, forest: Forest, features: int, dtype: torch.dtype, fill: float, device: torch.device) -> _Trees:
        """Return the tensors.

        Args:
            forest: the trees.
            features: of a row.
            dtype: in which values are compared and weights added.
            fill: the weight of a leaf for a target of which it says nothing.
            device: where the rows are.
        """
        feature = torch.from_numpy(forest.feature)
        if feature.numel() and int(feature.max()) >= features:
            raise ValueError(f"a node looks at feature {int(feature.max())}, and a row has {features}")
        weights = np.where(np.isnan(forest.weights), fill, forest.weights) if forest.target is None else forest.weights
        target = None if forest.target is None else torch.from_numpy(forest.target).to(device)
        return cls(
            forest.trees, forest.active, forest.modes, torch.where(feature < 0, features, feature).to(device),
            _as(forest.value, dtype, device), torch.from_numpy(forest.mode).to(device),
            torch.from_numpy(forest.true).to(device),
            None if forest.missing is None else torch.from_numpy(forest.missing).to(device),
            None if forest.member is None else torch.from_numpy(forest.member).to(device),
            _as(forest.members, dtype, device), _as(weights, dtype, device), target, len(forest.named),
        )  # fmt: skip

    def scores(self, x: Tensor, aggregate: str) -> Tensor:
        """Return what the trees say of rows [rows, features] about each target, [rows, targets]."""
        parts = [self._some(part, aggregate) for part in x.split(_ROWS)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _some(self, x: Tensor, aggregate: str) -> Tensor:
        places = self._leaves(x)
        if self.target is not None:
            scores = torch.zeros((len(x), self.width), dtype=torch.float64, device=x.device)
            scores.scatter_add_(1, self.target[places].T, self.weights[places].T.double())
        else:
            scores = _AGGREGATES[aggregate](self.weights[places])
        return scores / self.trees if aggregate == "AVERAGE" else scores

    def _leaves(self, x: Tensor) -> Tensor:
        """The leaf that each row arrives at in each tree, [trees, rows]."""
        missing = self.missing
        if missing is not None and x.device.type == "cpu" and not bool(x.isnan().any()):
            missing = None  # a device would be waited for
        if len(x) == 1 and len(self.true) <= _NODES and self.active:
            return self._leaves_of_one(x[0], missing)
        columns = torch.cat([x.T, x.new_zeros((1, len(x)))])
        places = torch.arange(self.trees, device=x.device).unsqueeze(1).repeat(1, len(x))
        some = max(1, _PLACES // max(1, len(x)))
        for first in range(0, self.trees, some):
            block = places[first : first + some]
            for active in self.active:
                count = min(active - first, len(block))
                if count <= 0:
                    break
                here = block[:count].view(-1)
                values = columns.gather(0, self.feature.index_select(0, here).view(count, -1)).view(-1)
                torch.add(self.true.index_select(0, here), self._false(values, here, missing), out=here)
        return places

    def _leaves_of_one(self, row: Tensor, missing: Tensor | None) -> Tensor:
        """The same for a single row: all nodes are asked first, and then a step down is one call."""
        values = torch.cat([row, row.new_zeros(1)]).index_select(0, self.feature)
        below = torch.where(self._false(values, None, missing), self.true + 1, self.true)
        places = torch.arange(self.trees, device=row.device)
        for _ in self.active:
            places = below.index_select(0, places)
        return places.unsqueeze(1)

    def _false(self, values: Tensor, here: Tensor | None, missing: Tensor | None) -> Tensor:
        """Whether each value fails the comparison of its node; the nodes are those of `here`, or all."""
        stated = _of(self.value, here)
        passed: Tensor | None = None
        for mode in self.modes:
            compare = _COMPARISONS.get(MODES[mode])
            if compare is not None:
                result = compare(values, stated)
            else:
                assert self.member is not None
                result = (values.unsqueeze(-1) == self.members[_of(self.member, here)]).any(-1)
            passed = result if passed is None else torch.where(_of(self.mode, here) == mode, result, passed)
        assert passed is not None
        if missing is not None:
            passed |= values.isnan() & _of(missing, here)
        return passed.logical_not()


def _of(table: Tensor, nodes: Tensor | None) -> Tensor:
    return table if nodes is None else table.index_select(0, nodes)


def _as(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)


def _prepared(e: Emitter, node: ir.Node, fill: float = 0.0) -> tuple[Forest, _Trees, torch.dtype]:
    forest, x = forest_of(node), e.value(node.inputs[0])
    dtype = torch.float64 if torch.float64 in (x.dtype, torch.from_numpy(forest.value).dtype) else torch.float32
    return forest, _Trees.of(forest, x.shape[-1], dtype, fill, e.device), dtype


def _base_values(a: dict[str, object], dtype: torch.dtype, device: torch.device) -> Tensor:
    tensor = a.get("base_values_as_tensor")
    if isinstance(tensor, ir.TensorProtocol):
        return _as(tensor.numpy(), dtype, device)
    return torch.tensor(a.get("base_values", ()), dtype=dtype, device=device)


@lowers("TreeEnsemble", "TreeEnsembleRegressor", domain=ML)
def regressor(e: Emitter, node: ir.Node) -> None:
    a = attributes_of(node, {"aggregate_function": "SUM", "post_transform": "NONE"})
    aggregate, transform = a["aggregate_function"], a["post_transform"]
    if node.op_type == "TreeEnsemble":
        aggregate = "SUM" if aggregate == "SUM" else AGGREGATES[aggregate]
        transform = "NONE" if transform == "NONE" else TRANSFORMS[transform]
    empty = {"MIN": float("inf"), "MAX": -float("inf")}.get(aggregate, 0.0)
    _, trees, dtype = _prepared(e, node, empty)
    base = _base_values(a, dtype, e.device)

    def run(x: Tensor) -> Tensor:
        scores = trees.scores(x.reshape(-1, x.shape[-1]).to(dtype), aggregate)
        if empty:
            scores = torch.where(scores == empty, 0.0, scores)
        scores = scores + base if len(base) else scores
        # As in onnxruntime, one target has nothing to be compared with.
        return scores if trees.width == 1 and transform != "PROBIT" else transformed(scores, transform)

    e.compute(run, e.value(node.inputs[0]), outs=[e.out(node.outputs[0])])


@lowers("TreeEnsembleClassifier", domain=ML)
def classifier(e: Emitter, node: ir.Node) -> None:
    a = attributes_of(node, {"post_transform": "NONE"})
    forest, trees, dtype = _prepared(e, node)
    base, transform = _base_values(a, dtype, e.device), a["post_transform"]
    labels = torch.tensor(a["classlabels_int64s"], device=e.device)
    one_score = class_count(a) == 2 and int(forest.named.sum()) == 1
    positive = bool((forest.weights[~np.isnan(forest.weights)] >= 0).all())
    silent = torch.from_numpy(~forest.named).to(e.device)

    # Labels are chosen by rounded scores: of ten votes, each a tenth in single precision, five are then just a half.
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        scores = trees.scores(x.reshape(-1, x.shape[-1]).to(dtype), "SUM")
        if one_score:  # of the second class, whichever the leaves name
            second = scores[:, :1] if forest.named[0] else scores[:, 1:]
            second = (second + base[-1] if len(base) else second).to(dtype)
            chosen = (second[:, 0] > (0.5 if positive else 0)).long()
            return labels[chosen], of_two_classes(second, transform, probability=positive)
        scores = (scores + base if len(base) else scores).to(dtype)
        if trees.width == 1:  # as in onnxruntime, 1 for a row of the class, else 0
            return (scores[:, 0] > 0).long(), transformed(scores, "PROBIT" if transform == "PROBIT" else "NONE")
        best = torch.where(silent, -float("inf"), scores) if not len(base) else scores
        return labels[best.argmax(-1)], transformed(scores, transform)

    e.compute(run, e.value(node.inputs[0]), outs=[e.out(value) if e.reads(value) else None for value in node.outputs])
