"""Classes of torch's that other rooms subclass or compare with, and so need when they are imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

__all__ = [
    "DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode",
    "GuardOnDataDependentSymNode", "HigherOrderOperator", "OpOverload", "TorchDispatchMode",
]  # fmt: skip

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator, OpOverload
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
    )
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
    from torch.utils._python_dispatch import TorchDispatchMode
else:

    def _class(module: str, name: str, base: type = object) -> Any:
        """The class, or where it is gone one that has no instances: `private` refuses what needs some, by name."""
        import importlib

        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            return type(name, (base,), {})

    # Both have public instances, so that their classes are found wherever torch keeps them.
    OpOverload = type(torch.ops.aten.add.Tensor)
    HigherOrderOperator = _class("torch._ops", "HigherOrderOperator")
    FakeTensor = _class("torch._subclasses.fake_tensor", "FakeTensor")
    FakeTensorMode = _class("torch._subclasses.fake_tensor", "FakeTensorMode")
    DataDependentOutputException = _class("torch._subclasses.fake_tensor", "DataDependentOutputException", Exception)
    DynamicOutputShapeException = _class("torch._subclasses.fake_tensor", "DynamicOutputShapeException", Exception)
    GuardOnDataDependentSymNode = _class(
        "torch.fx.experimental.symbolic_shapes", "GuardOnDataDependentSymNode", Exception
    )
    TorchDispatchMode = _class("torch.utils._python_dispatch", "TorchDispatchMode")
