"""An nn.Module becomes a verified graph, with parameters as named inputs."""

from ontrain.capture.aten import aten
from ontrain.capture.module import Captured, capture
from ontrain.capture.names import REQUIRES_GRAD
from ontrain.capture.structure import CallSpec, Spec
from ontrain.capture.validate import validate

__all__ = ["REQUIRES_GRAD", "CallSpec", "Captured", "Spec", "aten", "capture", "validate"]
