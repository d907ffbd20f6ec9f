"""Which passes run, in what order, and how a user's own pass gets among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ontrain.errors import OptionError, nearest
from ontrain.passes.common_subexpressions import ShareCommonSubexpressions
from ontrain.passes.expand_contributed import ExpandContributed
from ontrain.passes.expand_recurrent import ExpandRecurrent
from ontrain.passes.fuse_activations import FuseActivations
from ontrain.passes.fuse_attention import FuseAttention
from ontrain.passes.fuse_head import FuseHead
from ontrain.passes.inference import (
    FoldBatchNormalization,
    FoldChannelArithmetic,
    FuseConvActivations,
    FuseHardActivations,
    FuseIntegerProducts,
    FuseLayerNormalization,
    FuseLinearActivations,
    FuseMatMulAdd,
    FuseRMSNormalization,
    RemoveIdentities,
    TransposeWeights,
)
from ontrain.passes.infra import Pass
from ontrain.passes.linear_to_gemm import LinearToGemm
from ontrain.passes.pad_to_conv import PadToConv
from ontrain.passes.powers_to_products import PowersToProducts
from ontrain.passes.rows import (
    AttendSequences,
    EliminateMasks,
    EliminatePadding,
    EliminateUnlabelledRows,
    EliminateUnreadRows,
    HidePaddedStates,
    MultiplyPresentRows,
)
from ontrain.passes.share_masks import ShareMasks
from ontrain.passes.simplify import Simplify
from ontrain.passes.whole_images_to_gemm import WholeImagesToGemm

__all__ = [
    "FORWARD_PASSES", "INFERENCE_PASSES", "STEP_PASSES", "Stage", "check_names", "pipeline", "register_pass",
    "unregister_pass",
]  # fmt: skip

Stage = Literal["forward", "step", "inference"]

FORWARD_PASSES: tuple[Pass, ...] = (
    ExpandRecurrent(),
    ExpandContributed(),
    Simplify(),
    ShareCommonSubexpressions(),
    FuseAttention(),
    HidePaddedStates(),
    EliminateUnlabelledRows(),
    EliminateUnreadRows(),
    EliminateMasks(),
    ShareMasks(),
    EliminatePadding(),
    AttendSequences(),
    FuseRMSNormalization(),
    FuseActivations(),
    FuseHardActivations(),
    FuseConvActivations(),
    PowersToProducts(),
    PadToConv(),
    WholeImagesToGemm(),
    LinearToGemm(),
    FuseHead(),
    FuseLinearActivations(),
    FuseIntegerProducts(),
)
"""Run on a specialised forward graph, before differentiation."""
STEP_PASSES: tuple[Pass, ...] = (Simplify(), MultiplyPresentRows(), ShareCommonSubexpressions())
"""Run on the whole step."""
INFERENCE_PASSES: tuple[Pass, ...] = (
    RemoveIdentities(),
    ShareCommonSubexpressions(),
    RemoveIdentities(),
    PadToConv(),
    FoldBatchNormalization(),
    FoldChannelArithmetic(),
    FuseLayerNormalization(),
    FuseActivations(),
    FuseMatMulAdd(),
    TransposeWeights(),
)
"""Run on a graph of open sizes that is made for inference, whose weights have their values."""

_running: dict[str, list[Pass]] = {
    "forward": list(FORWARD_PASSES), "step": list(STEP_PASSES), "inference": list(INFERENCE_PASSES),
}  # fmt: skip


def pipeline(stage: Stage) -> tuple[Pass, ...]:
    """Return the passes of a stage in the order in which they run, registered ones included."""
    return tuple(_list(stage))


def register_pass(graph_pass: Pass, *, stage: Stage, after: str | None = None) -> None:
    """Let a pass run in every plan that is made from now on.

    Args:
        graph_pass: an instance of a `Pass`.
        stage: "forward", on the specialised forward graph before it is differentiated, "step", on the whole step, or
            "inference", on a graph of open sizes that is exported.
        after: name of the pass to run behind; None runs it last.

    Raises:
        OptionError: there is no such stage, the stage has no pass `after`, or it has a pass of this name already.
    """
    running = _list(stage)
    names = [other.name for other in running]
    if graph_pass.name in names:
        raise OptionError(f"the stage {stage!r} has a pass {graph_pass.name!r} already", way_out="unregister it first")
    if after is not None and after not in names:
        raise OptionError(f"the stage {stage!r} has no pass {after!r}", way_out=f"its passes are {', '.join(names)}")
    running.insert(len(running) if after is None else names.index(after) + 1, graph_pass)


def unregister_pass(name: str, *, stage: Stage) -> None:
    """Take a pass out of a stage.

    Raises:
        OptionError: the stage has no pass of that name.
    """
    running = _list(stage)
    check_names([name], running)
    running[:] = [other for other in running if other.name != name]


def check_names(names: Sequence[str], known: Sequence[Pass] | None = None) -> None:
    """Raise OptionError for a name that no pass has, by default none of all stages."""
    known = [graph_pass for passes in _running.values() for graph_pass in passes] if known is None else known
    have = list(dict.fromkeys(graph_pass.name for graph_pass in known))
    for name in names:
        if name not in have:
            raise OptionError(f"no pass is called {name!r}", way_out=f"known: {nearest(name, have)}")


def _list(stage: str) -> list[Pass]:
    if stage not in _running:
        raise OptionError(f"there is no stage {stage!r}", way_out="use 'forward', 'step' or 'inference'")
    return _running[stage]
