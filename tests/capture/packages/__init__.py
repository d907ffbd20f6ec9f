"""Models of other packages, small and random."""

from tests.capture.packages import (
    architectures,
    atoms,
    attention,
    densities,
    geometries,
    graphs,
    labelling,
    languages,
    losses,
    medicine,
    networks_of_graphs,
    perception,
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
    "architectures",
    "atoms",
    "attention",
    "densities",
    "geometries",
    "graphs",
    "labelling",
    "languages",
    "losses",
    "medicine",
    "networks_of_graphs",
    "perception",
    "pictures",
    "science",
    "sequences",
    "speech",
    "unusual",
]
