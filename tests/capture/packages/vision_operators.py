"""torchvision beside a build of torch whose library its own does not fit."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import torch

__all__ = ["define_vision_operators"]

_KEPT: list[torch.library.Library] = []
"""A library's definitions go when it does."""


def define_vision_operators() -> None:
    """Make torchvision importable, if it is installed and lacks its compiled operators.

    PyPI's torchvision is built for PyPI's torch, and its operators don't load beside a build for CPUs alone. Importing
    it then fails, because it gives shapes to operators that are not there; timm imports it. None of the models here
    calls these operators, so they are only declared.
    """
    if find_spec("torchvision") is None or _KEPT:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
