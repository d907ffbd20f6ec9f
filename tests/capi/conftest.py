"""The trainers' small models."""

from tests.training.conftest import twins

__all__ = ["twins"]
