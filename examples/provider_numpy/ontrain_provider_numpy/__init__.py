"""An execution provider for ontrain in plain numpy."""

from ontrain_provider_numpy.provider import NumpyExecutionProvider

__all__ = ["NumpyExecutionProvider"]
