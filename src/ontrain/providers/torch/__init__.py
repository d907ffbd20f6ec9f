"""PyTorch's kernels as an execution provider: instruction list per signature, static lifetimes, flat buffers."""

from ontrain.providers.torch.program_operators import ProgramOperator, TensorType, op, program_operator
from ontrain.providers.torch.provider import TorchExecutionProvider

__all__ = ["ProgramOperator", "TensorType", "TorchExecutionProvider", "op", "program_operator"]
