"""Names of torch's that are only compared. The table has a row for each."""

from __future__ import annotations

__all__ = ["GLOBAL_HOOKS", "LIBRARY_FUNCTIONS", "MODULE_HOOKS", "MODULE_STATE", "TALKATIVE_LOGGERS"]

LIBRARY_FUNCTIONS = frozenset({
    "torch._library.autograd", "torch.utils.checkpoint", "torch._higher_order_ops.cond",
    "torch._higher_order_ops.scan", "torch._higher_order_ops.while_loop",
})  # fmt: skip
"""Modules of torch's own autograd functions, whose calls are one node each."""
TALKATIVE_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
"""They write a hundred lines of traceback before the error that says where and why."""
MODULE_STATE = ("_parameters", "_buffers", "_modules")
"""The tables of an nn.Module."""
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Its tables of hooks."""
GLOBAL_HOOKS = tuple(f"_global{name}" for name in MODULE_HOOKS)
"""The tables of hooks of all modules."""
