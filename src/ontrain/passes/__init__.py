"""Graph passes, each one file, in a readable ordered list."""

from ontrain.passes.bisect import Finding, NothingWrongError, bisect
from ontrain.passes.common_subexpressions import ShareCommonSubexpressions
from ontrain.passes.expand_recurrent import ExpandRecurrent
from ontrain.passes.infra import Pass, PassReport, RewritePass
from ontrain.passes.journal import Journal
from ontrain.passes.linear_to_gemm import LinearToGemm
from ontrain.passes.pipeline import (
    FORWARD_PASSES,
    STEP_PASSES,
    check_names,
    pipeline,
    register_pass,
    unregister_pass,
)
from ontrain.passes.runner import run_passes
from ontrain.passes.simplify import Simplify

__all__ = [
    "FORWARD_PASSES",
    "STEP_PASSES",
    "ExpandRecurrent",
    "Finding",
    "Journal",
    "LinearToGemm",
    "NothingWrongError",
    "Pass",
    "PassReport",
    "RewritePass",
    "ShareCommonSubexpressions",
    "Simplify",
    "bisect",
    "check_names",
    "pipeline",
    "register_pass",
    "run_passes",
    "unregister_pass",
]
