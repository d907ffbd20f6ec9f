"""Names of what is measured and by what; what they stand for is made where torch has been imported."""

from __future__ import annotations

__all__ = ["ENGINES", "EPOCHS", "MODELS", "DataMissingError"]

MODELS = ("bert", "bert-logits", "bert-dense", "gpt2", "gpt2-logits", "cola", "xquad")
"""Workloads whose batches were all seen before a step is timed."""
EPOCHS = {"cola-epoch": 267, "xquad-epoch": 100}
"""Workloads of batches as they come, and how many: all of CoLA's training sentences, once."""
ENGINES = (
    "ontrain", "ontrain-aten", "ontrain-budget", "ontrain-hidden", "ontrain-onnxruntime", "ortmodule", "eager",
    "eager-malloc", "compile", "incumbent",
)  # fmt: skip


class DataMissingError(RuntimeError):
    """A text or the vocabulary is not on this machine."""
