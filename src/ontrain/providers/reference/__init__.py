"""onnx's reference evaluator as a provider: slow, plain, and independent of everything else."""

from ontrain.providers.reference.provider import ReferenceExecutionProvider

__all__ = ["ReferenceExecutionProvider"]
