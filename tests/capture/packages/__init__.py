"""Models of other packages, small and random."""

from tests.capture.packages import (
    atoms,
    attention,
    densities,
    graphs,
    losses,
    medicine,
    pictures,
    science,
    sequences,
    speech,
    unusual,
)
from tests.capture.packages.entry import MODELS, PackageModel

__all__ = [
    "MODELS",
    "PackageModel",
    "atoms",
    "attention",
    "densities",
    "graphs",
    "losses",
    "medicine",
    "pictures",
    "science",
    "sequences",
    "speech",
    "unusual",
]
