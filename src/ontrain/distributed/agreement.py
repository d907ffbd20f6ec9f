"""Processes that would train something else than the others are refused before the first step, the difference named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from ontrain import __version__
from ontrain.distributed.liveness import named
from ontrain.distributed.world import World
from ontrain.errors import ProcessError
from ontrain.graph import Role, by_role, shape_text
from ontrain.session import TrainingSession

__all__ = ["agree", "facts"]


def facts(session: TrainingSession) -> dict[str, str]:
    """Return what all processes must have in common, in the order in which differences are looked for."""
    graph = session.model.graph
    said = {
        "the version of ontrain": __version__,
        "the version of torch": str(torch.__version__),
        "the provider": session.provider.name,
        "the optimizer": session.optimizer.algorithm,
        "gradients accumulated": str(session.accumulation_steps),
        "the norm to clip to": str(session.max_norm),
        "the precision": str(session.precision),
    }
    trainable = set(session.trainable)
    for value in by_role(graph, Role.PARAMETER, Role.BUFFER):
        name = value.name or ""
        said[f"{name!r} of the model"] = f"{shape_text(value)}, {'trained' if name in trainable else 'left as it is'}"
    for name in session.trainable:
        said[f"the optimizer for {name!r}"] = json.dumps(session.optimizer.attributes_for(name), sort_keys=True)
    for number, node in enumerate(graph):
        said[f"node {number} of the model"] = _text(node)
    return said


def agree(world: World, said: Mapping[str, str]) -> None:
    """Compare with the other processes.

    Raises:
        ProcessError: on all of them, if one differs; names the first difference, and the ranks on either side.
    """
    digest = hashlib.sha256(json.dumps(dict(said)).encode()).hexdigest()
    if len(set(world.gather(digest))) == 1:
        return
    everyone: list[dict[str, str]] = world.gather(dict(said))
    for what in dict.fromkeys(name for one in everyone for name in one):
        values = [one.get(what, "absent") for one in everyone]
        if len(set(values)) > 1:
            raise ProcessError(
                f"the processes differ in {what}: {_sides(values)}",
                reason="they would train different models",
                way_out="start all of them with the same script, arguments and versions",
            )


def _text(node: ir.Node) -> str:
    """A node without sizes, which depend on the batch at hand."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _sides(values: Sequence[str]) -> str:
    sides: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        sides.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {named(ranks)}" for value, ranks in sides.items())
