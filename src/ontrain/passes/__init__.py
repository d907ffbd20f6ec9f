"""Graph passes, each one file, in a readable ordered list."""

from ontrain.passes.bfloat16_products import BFloat16Products
from ontrain.passes.bisect import Finding, NothingWrongError, bisect
from ontrain.passes.common_subexpressions import ShareCommonSubexpressions
from ontrain.passes.expand_recurrent import ExpandRecurrent
from ontrain.passes.fuse_activations import FuseActivations
from ontrain.passes.fuse_head import FuseHead
from ontrain.passes.inference import (
    FoldWeights as FoldWeights,
    SettleNumbers as SettleNumbers,
    Weights as Weights,
    forget_weights as forget_weights,
    with_weights as with_weights,
)
from ontrain.passes.infra import Pass, PassReport, RewritePass
from ontrain.passes.journal import Journal
from ontrain.passes.linear_to_gemm import LinearToGemm
from ontrain.passes.lower_precision import HALF, LowerPrecision, announce
from ontrain.passes.pad_to_conv import PadToConv
from ontrain.passes.pipeline import (
    FORWARD_PASSES,
    STEP_PASSES,
    check_names,
    pipeline,
    register_pass,
    unregister_pass,
)
from ontrain.passes.powers_to_products import PowersToProducts
from ontrain.passes.recompute import (
    BUDGET_ALLOWED as BUDGET_ALLOWED,
    Recomputation as Recomputation,
    Recompute as Recompute,
    Schedule as Schedule,
    clusters as clusters,
    parse_budget as parse_budget,
    parse_clusters as parse_clusters,
)
from ontrain.passes.rows import (
    HidePaddedCandidates,
    RowPass as RowPass,
    Selection as Selection,
    bucket as bucket,
    counting as counting,
)
from ontrain.passes.runner import run_passes
from ontrain.passes.serving import Padding as Padding, Serving as Serving, serve as serve, serving_of as serving_of
from ontrain.passes.simplify import Simplify
from ontrain.passes.whole_images_to_gemm import WholeImagesToGemm

__all__ = [
    "FORWARD_PASSES",
    "HALF",
    "STEP_PASSES",
    "BFloat16Products",
    "ExpandRecurrent",
    "Finding",
    "FuseActivations",
    "FuseHead",
    "HidePaddedCandidates",
    "Journal",
    "LinearToGemm",
    "LowerPrecision",
    "announce",
    "NothingWrongError",
    "PadToConv",
    "Pass",
    "PassReport",
    "PowersToProducts",
    "RewritePass",
    "ShareCommonSubexpressions",
    "Simplify",
    "WholeImagesToGemm",
    "bisect",
    "check_names",
    "pipeline",
    "register_pass",
    "run_passes",
    "unregister_pass",
]
