"""Small random models of every family, each with batches of two sizes."""

from tests.models.zoo import convolutional, language, perception, sequences, structured, vision
from tests.models.zoo.entry import Entry

__all__ = ["ZOO", "Entry"]

ZOO = [
    *language.ENTRIES,
    *vision.ENTRIES,
    *perception.ENTRIES,
    *convolutional.ENTRIES,
    *sequences.ENTRIES,
    *structured.ENTRIES,
]
