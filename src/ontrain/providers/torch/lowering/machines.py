"""Support vector machines: all rows against all support vectors."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.functions import Machine, attributes_of, machine_of, pairs
from ontrain.operators import ML
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import lowers
from ontrain.providers.torch.lowering.scores import of_two_classes, transformed

__all__: list[str] = []

Tensor = torch.Tensor
_SURE = 1e-7
"""Probabilities of pairs keep this distance from zero and one, as in libsvm."""
_ROUNDS = 100
_NEAR = 0.005
"""Coupled probabilities of k classes are good enough when no equation is off by more than this over k."""


def _kernel(machine: Machine, x: Tensor, vectors: Tensor) -> Tensor:
    if machine.kernel == "RBF":
        return (-machine.gamma * torch.cdist(x, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()).exp()
    product = x @ vectors.T
    if machine.kernel == "LINEAR":
        return product
    product = machine.gamma * product + machine.shift
    return product**machine.degree if machine.kernel == "POLY" else product.tanh()


def _scores(e: Emitter, machine: Machine) -> tuple[Tensor | None, Tensor, Tensor]:
    vectors = None if machine.vectors is None else torch.from_numpy(machine.vectors).to(e.device)
    return vectors, torch.from_numpy(machine.weights).to(e.device), torch.from_numpy(machine.rho).to(e.device)


@lowers("SVMRegressor", domain=ML)
def regressor(e: Emitter, node: ir.Node) -> None:
    machine, a = machine_of(node), attributes_of(node, {"one_class": 0, "post_transform": "NONE"})
    vectors, weights, rho = _scores(e, machine)
    one_class, probit = a["one_class"], a["post_transform"] == "PROBIT"

    def run(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        scores = (rows if vectors is None else _kernel(machine, rows, vectors)) @ weights + rho[:1]
        if one_class:
            return torch.where(scores > 0, 1.0, -1.0)
        return transformed(scores, "PROBIT") if probit else scores

    e.compute(run, e.value(node.inputs[0]), outs=[e.out(node.outputs[0])])


@lowers("SVMClassifier", domain=ML)
def classifier(e: Emitter, node: ir.Node) -> None:
    machine, a = machine_of(node), attributes_of(node, {"post_transform": "NONE", "prob_a": (), "prob_b": ()})
    vectors, weights, rho = _scores(e, machine)
    labels = torch.tensor(a["classlabels_ints"], device=e.device)
    slope, offset = (torch.tensor(a[name], device=e.device) for name in ("prob_a", "prob_b"))
    transform, classes, positive = a["post_transform"], len(labels), bool((machine.weights >= 0).all())

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.reshape(-1, x.shape[-1]).float()
        if vectors is None:
            scores = _kernel(machine, rows, weights.T) + rho[:1]
            best = scores.argmax(-1)
            if classes == 2:  # as in onnxruntime, the second one wherever any score tells of one
                best = torch.where(scores.amax(-1) >= 0.5 if positive else scores.amax(-1) > 0, 1, best)
            only = classes == 1 and transform != "PROBIT"  # nothing to be compared with
            return labels[best], scores if only else transformed(scores, transform)
        scores = _kernel(machine, rows, vectors) @ weights + rho
        label = labels[_votes(scores, classes).argmax(-1)]
        if len(slope):
            likely = (scores * slope + offset).neg().sigmoid().clamp(_SURE, 1 - _SURE)
            return label, transformed(_coupled(likely.double(), classes).float(), transform)
        if classes == 2:
            return label, of_two_classes(scores, transform, probability=transform != "NONE")
        return label, transformed(scores, transform)

    e.compute(run, e.value(node.inputs[0]), outs=[e.out(value) if e.reads(value) else None for value in node.outputs])


def _votes(scores: Tensor, classes: int) -> Tensor:
    """How many pairs each class wins."""
    votes = scores.new_zeros((len(scores), classes))
    for column, (i, j) in enumerate(pairs(classes)):
        first = (scores[:, column] > 0).float()
        votes[:, i] += first
        votes[:, j] += 1 - first
    return votes


def _coupled(likely: Tensor, classes: int) -> Tensor:
    """Probabilities of classes from the probability of the first class of each pair.

    Source: Wu, Lin, Weng (2004), Probability estimates for multi-class classification by pairwise coupling, second
    approach; the rounds are libsvm's.
    """
    r = likely.new_zeros((len(likely), classes, classes))
    for column, (i, j) in enumerate(pairs(classes)):
        r[:, i, j], r[:, j, i] = likely[:, column], 1 - likely[:, column]
    q = -r.mT * r
    q.diagonal(dim1=1, dim2=2).copy_(r.square().sum(1))
    p = torch.full_like(r[:, 0], 1 / classes)
    for _ in range(max(_ROUNDS, classes)):
        products = torch.einsum("nij,nj->ni", q, p)
        total = (p * products).sum(-1)
        going = (products - total.unsqueeze(-1)).abs().amax(-1) >= _NEAR / classes
        if not bool(going.any()):
            break
        for at in range(classes):
            own = q[:, at, at]
            step = torch.where(going, (total - products[:, at]) / own, 0.0)
            scale = 1 + step
            total = (total + step * (step * own + 2 * products[:, at])) / scale.square()
            p[:, at] += step
            p /= scale.unsqueeze(-1)
            products = (products + step.unsqueeze(-1) * q[:, at]) / scale.unsqueeze(-1)
    return p
