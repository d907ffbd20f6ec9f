"""The models of PyTorch's compiler benchmarks for the CPU, small and random."""

from tests.training.compiled.suite import language, pictures
from tests.training.compiled.suite.entry import SuiteModel

__all__ = ["MODELS", "SuiteModel"]

MODELS = {model.name: model for model in (*language.MODELS, *pictures.MODELS)}
