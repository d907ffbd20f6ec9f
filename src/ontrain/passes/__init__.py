"""Graph passes, each one file, in a readable ordered list."""

from ontrain.passes.common_subexpressions import ShareCommonSubexpressions
from ontrain.passes.infra import Pass, PassReport, RewritePass, check_names, run_passes
from ontrain.passes.linear_to_gemm import LinearToGemm
from ontrain.passes.simplify import Simplify

__all__ = [
    "FORWARD_PASSES",
    "STEP_PASSES",
    "LinearToGemm",
    "Pass",
    "PassReport",
    "RewritePass",
    "ShareCommonSubexpressions",
    "Simplify",
    "check_names",
    "run_passes",
]

FORWARD_PASSES: tuple[Pass, ...] = (Simplify(), ShareCommonSubexpressions(), LinearToGemm())
"""Run on a specialised forward graph, before differentiation."""
STEP_PASSES: tuple[Pass, ...] = (Simplify(), ShareCommonSubexpressions())
"""Run on the whole step."""
