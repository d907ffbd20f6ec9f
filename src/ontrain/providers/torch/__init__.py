"""PyTorch's kernels as an execution provider: instruction list per signature, static lifetimes, flat buffers."""

from ontrain.providers.torch.provider import TorchExecutionProvider

__all__ = ["TorchExecutionProvider"]
