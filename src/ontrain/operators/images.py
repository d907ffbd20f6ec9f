"""Images resampled, and boxes in them."""

from __future__ import annotations

from ontrain.operators.record import Evaluator, define

__all__: list[str] = []

define("AffineGrid", settings=(1,))
define("GridSample", evaluator=Evaluator.IN_PART)
define("ImageDecoder", no_gradient="it decodes bytes")
define("NonMaxSuppression", settings=(2,), weightless=(0, 1, 3, 4), zero_gradient="its results are whole numbers")
define("Resize", settings=(1, 2, 3), loops=True)
define("Upsample", settings=(1,), no_gradient="the standard has withdrawn it")
