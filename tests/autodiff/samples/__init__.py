"""The one table of samples: every operator that has a gradient, in its forms. All oracles read it."""

from tests.autodiff.samples.adopted import ADOPTED
from tests.autodiff.samples.elementwise import ACTIVATION, MATH
from tests.autodiff.samples.images import IMAGES
from tests.autodiff.samples.linalg import LINALG
from tests.autodiff.samples.movement import INDEX, SHAPE
from tests.autodiff.samples.products import ATTENTION, CONV, POOLING, PRODUCTS
from tests.autodiff.samples.recurrent import LAYERS, RECURRENT
from tests.autodiff.samples.rows import LOSS, NORMALIZATION, REDUCE
from tests.autodiff.samples.sample import Sample
from tests.autodiff.samples.special import SPECIAL
from tests.autodiff.samples.zeros import CHANCE, ZEROS

__all__ = ["CHANCE", "IDS", "SAMPLES", "ZEROS", "Sample"]

SAMPLES: list[Sample] = [
    *MATH, *ACTIVATION, *PRODUCTS, *ATTENTION, *CONV, *POOLING, *SHAPE, *INDEX, *REDUCE, *NORMALIZATION, *LOSS,
    *IMAGES, *ADOPTED, *RECURRENT, *LAYERS, *LINALG, *SPECIAL,
]  # fmt: skip
IDS = [f"{s.op_type}-{sum(o.op_type == s.op_type for o in SAMPLES[:i])}" for i, s in enumerate(SAMPLES)]
