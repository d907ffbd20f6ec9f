"""Sequences of tensors and optional values."""

from __future__ import annotations

from ontrain.operators.record import Axis, Smallest, Stock, define

__all__: list[str] = []

SEQUENCE = "it makes or reads a sequence of tensors, and values here are tensors"
OPTIONAL = "it makes or reads an optional value, and values here are tensors"

define("ConcatFromSequence", axis=Axis.ONE_MORE, no_gradient=SEQUENCE, stock=Stock.COMPARED)
define("Optional", no_gradient=OPTIONAL, smallest=Smallest(inputs=1))
define("OptionalGetElement", no_gradient=OPTIONAL, stock=Stock.COMPARED)
define("OptionalHasElement", no_gradient=OPTIONAL, stock=Stock.COMPARED)
define("SequenceAt", no_gradient=SEQUENCE, stock=Stock.COMPARED)
define("SequenceConstruct", no_gradient=SEQUENCE, stock=Stock.COMPARED)
define("SequenceEmpty", no_gradient=SEQUENCE, stock=Stock.COMPARED)
define("SequenceErase", no_gradient=SEQUENCE, stock=Stock.COMPARED)
define("SequenceInsert", no_gradient=SEQUENCE, stock=Stock.COMPARED)
define("SequenceLength", no_gradient=SEQUENCE, stock=Stock.COMPARED)
define("SequenceMap", no_gradient=SEQUENCE, smallest=Smallest(inputs=1))
define("SplitToSequence", settings=(1,), no_gradient=SEQUENCE, stock=Stock.COMPARED)
