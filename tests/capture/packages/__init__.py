"""Models of other packages, small and random."""

from tests.capture.packages import graphs, losses, pictures, science, sequences
from tests.capture.packages.entry import MODELS, PackageModel

__all__ = ["MODELS", "PackageModel", "graphs", "losses", "pictures", "science", "sequences"]
