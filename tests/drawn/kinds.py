"""The kinds of cases: of each, its families and its judge."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.drawn.draw import Draw
from tests.drawn.families import Families
from tests.drawn.judge import Outcome, judge

__all__ = ["KINDS", "Kind", "draw_and_judge"]


@dataclass(frozen=True)
class Kind:
    """A kind of case.

    Attributes:
        text: what is compared with what.
        room: the module with its families, its judge, and, as WITHOUT, the families that are not of this kind.
        families: the families' name there.
        judge: the judge's name there.
        modules: in which families register themselves.
    """

    text: str
    room: str
    families: str
    judge: str
    modules: Sequence[str]

    def loaded(self) -> tuple[Families, Callable[[Draw, str, list[str]], None]]:
        """The families, each registered, and the judge: a function of a draw, a family's name, and what is drawn."""
        for module in self.modules:
            importlib.import_module(f"tests.drawn.{module}")
        room = importlib.import_module(f"tests.drawn.{self.room}")
        families = getattr(room, self.families).without(*getattr(room, "WITHOUT", ()))
        return families, getattr(room, self.judge)


_CALLS = (
    "windows", "losses", "layers", "elements", "reductions", "places", "algebra", "distributions", "linalg", "criteria",
)  # fmt: skip
_NODES = (
    "windows", "indices", "reductions", "elements", "tensors", "recurrences", "signals", "contributed",
    "contributed_attention", "quantised", "classical",
)  # fmt: skip
_NETWORKS = ("networks.rowwise", "networks.mixing", "networks.losses")
_MODULES = ("stages", "blocks", "recurrent", "attention", "embeddings")
_STEPS = ("graphs.images", "graphs.layouts", "graphs.rows", "graphs.tokens")

KINDS = {
    "calls": Kind(
        "a call of PyTorch through ORTModule, beside eager: values, gradients, buffers",
        "calls.call", "call", "judge_call", [f"calls.{name}" for name in _CALLS],
    ),
    "networks": Kind(
        "a network of tokens with masks and labels through ORTModule, beside eager",
        "networks.network", "block", "judge_network", _NETWORKS,
    ),
    "modules": Kind(
        "a network of images, a recurrent one, attention or embeddings through ORTModule, beside eager",
        "modules.module", "sample", "judge_module", [f"modules.{name}" for name in _MODULES],
    ),
    "precisions": Kind(
        "such a network under autocast, in bfloat16 or in float32, beside eager in the same",
        "modules.precision", "sample", "judge_precision", [f"modules.{name}" for name in _MODULES],
    ),
    "trainers": Kind(
        "such a network in ORTTrainer, beside written-out optimizers",
        "trainers.trainer", "block", "judge_trainer", _NETWORKS,
    ),
    "nodes": Kind(
        "an ONNX node on the torch provider, beside stock onnxruntime",
        "nodes.node", "node", "judge_node", [f"nodes.{name}" for name in _NODES],
    ),
    "graphs": Kind(
        "an ONNX graph on the torch provider, beside stock onnxruntime",
        "graphs.beside_stock", "image", "judge_graph", _STEPS,
    ),
    "gradients": Kind(
        "gradients of an ONNX graph that ORTTrainer trains, beside central differences",
        "graphs.beside_differences", "image", "judge_gradients", _STEPS,
    ),
}  # fmt: skip


def draw_and_judge(kind: str, seed: int, number: int, only: Sequence[str] = ()) -> Outcome:
    """The outcome of a case; of the families named in `only`, if any is."""
    families, judged = KINDS[kind].loaded()
    family = only[number % len(only)] if only else families.of(number)
    draw = Draw(seed, family, number)
    return judge(kind, family, seed, number, lambda drawn: judged(draw, family, drawn))
