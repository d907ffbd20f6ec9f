"""The order of an LSTM's gates: the standard's in an operator, PyTorch's in a module's parameters.

A captured module brings each parameter into the standard's order, and its gradient back, at every step. A kernel that
takes PyTorch's order needs neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["as_stored"]

_STANDARD, _PYTORCH = "iofc", "ifco"
_MOVED = (0, 2, 1)
"""Of the parts i, fc, o of a parameter: the places that they have in the standard."""


def as_stored(op: Builder, w: Value, r: Value, bias: Value | None) -> tuple[Value, Value, Value | None, str]:
    """Return weights [D, 4·H, …] and bias [D, 8·H] in an order common to all, and the order's name.

    PyTorch's order, "ifco", if that is how their parts lie in what they are made of; "iofc" as they are otherwise.
    """
    stored = [None if value is None else _of_parameters(op, value) for value in (w, r, bias)]
    if stored[0] is None or stored[1] is None or (bias is not None and stored[2] is None):
        return w, r, bias, _STANDARD
    return stored[0], stored[1], stored[2], _PYTORCH


def _of_parameters(op: Builder, value: Value) -> Value | None:
    """The same numbers in the order of the parameters that were split, permuted and joined; None if they were not."""
    shaped = value.producer()
    joined = shaped.inputs[0] if shaped is not None and shaped.op_type in ("Reshape", "Unsqueeze") else None
    concat = joined.producer() if joined is not None else None
    if concat is None or concat.op_type != "Concat" or concat.attributes["axis"].as_int() != 0:
        return None
    parameters = [*_parameters(concat.inputs)]
    if not parameters or any(parameter is None for parameter in parameters):
        return None
    whole = op.Concat(*parameters, axis=0) if len(parameters) > 1 else parameters[0]
    return op.Reshape(whole, list(static_dims(value)))


def _parameters(parts: Sequence[ir.Value | None]) -> Iterator[ir.Value | None]:
    """The parameter of each three parts, None for others."""
    for start in range(0, len(parts), 3):
        three = parts[start : start + 3]
        split = three[0].producer() if three[0] is not None else None
        if split is None or split.op_type != "Split" or split.attributes.get_int("axis", 0) != 0:
            yield None
            continue
        halves = len(split.outputs) == 3 and len(three) == 3
        moved = halves and all(part is split.outputs[place] for part, place in zip(three, _MOVED, strict=True))
        sizes = split.inputs[1].const_value if moved and split.inputs[1] is not None else None
        first, middle, last = sizes.numpy().tolist() if sizes is not None else (0, 0, 0)
        quarters = first == last == middle / 2 > 0
        yield split.inputs[0] if quarters else None
