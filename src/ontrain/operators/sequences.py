"""Sequences of tensors and optional values."""

from __future__ import annotations

from ontrain.operators.record import Axis, Smallest, define

__all__: list[str] = []

SEQUENCE = "it makes or reads a sequence of tensors, and values here are tensors"
OPTIONAL = "it makes or reads an optional value, and values here are tensors"

define("ConcatFromSequence", axis=Axis.ONE_MORE, no_gradient=SEQUENCE)
define("Optional", no_gradient=OPTIONAL, smallest=Smallest(inputs=1))
define("OptionalGetElement", no_gradient=OPTIONAL)
define("OptionalHasElement", no_gradient=OPTIONAL)
define("SequenceAt", no_gradient=SEQUENCE)
define("SequenceConstruct", no_gradient=SEQUENCE)
define("SequenceEmpty", no_gradient=SEQUENCE)
define("SequenceErase", no_gradient=SEQUENCE)
define("SequenceInsert", no_gradient=SEQUENCE)
define("SequenceLength", no_gradient=SEQUENCE)
define("SequenceMap", no_gradient=SEQUENCE, smallest=Smallest(inputs=1))
define("SplitToSequence", settings=(1,), no_gradient=SEQUENCE)
