"""What a test's processes begin with: torch, and the parts of ontrain that load it."""

import torch._dynamo.output_graph  # a capture loads it
import torch.distributed

import ontrain.capture
import ontrain.cli
import ontrain.providers.torch
import ontrain.session
import ontrain.training.ortmodule
import ontrain.training.orttrainer

__all__ = ["ontrain", "torch"]
