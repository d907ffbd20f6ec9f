"""Models for on-device training, put together out of blocks (onnxruntime.training.onnxblock)."""

from ontrain.training.onnxblock import blocks, loss, optim
from ontrain.training.onnxblock.base import base, custom_op_library, empty_base
from ontrain.training.onnxblock.blocks import Block
from ontrain.training.onnxblock.checkpoints import load_checkpoint_to_model, save_checkpoint
from ontrain.training.onnxblock.training import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
