"""What a guard says: the names of guarding nodes, and the errors that they mean where onnxruntime quotes them."""

from __future__ import annotations

from ontrain.errors import ProviderError
from ontrain.rounds import loop_refused

__all__ = ["DIVISION", "POSITION", "ROUNDS", "SIZES", "STACKED", "sprung"]

DIVISION, ROUNDS = "ontrain: integer division", "ontrain: rounds of a loop"
POSITION = "ontrain: position in a sequence"
SIZES, STACKED = "ontrain: sizes of operand", "ontrain: sizes of result"


def sprung(message: str) -> ProviderError | None:
    """Return the error that a message of onnxruntime's means, if a guard made it."""
    if ROUNDS in message:
        return loop_refused()
    if POSITION in message:
        at = _behind(f"{POSITION} before", message)
        return ProviderError(
            "a position in a sequence is not one number",
            node=at or None,
            reason="onnxruntime reads one from wherever the tensor lies, and its process may end",
            way_out="check what makes the position; the file may be damaged",
        )
    if SIZES in message:
        operand, _, at = _behind(SIZES, message).partition(" of ")
        return ProviderError(
            f"operand {operand} has no elements or too few axes, or is zero",
            node=at or None,
            reason="onnxruntime's kernel takes its sizes for granted, and onnxruntime's process would end",
            way_out="feed at least one row and one step, or use TorchExecutionProvider",
        )
    if STACKED in message:
        result, _, at = _behind(STACKED, message).partition(" of ")
        return ProviderError(
            f"result {result} of the graph inside has no elements",
            node=at or None,
            reason="onnxruntime cannot stack such results along an inner axis, and onnxruntime's process would end",
            way_out="let the graph stack them along the first axis, or use TorchExecutionProvider",
        )
    if DIVISION in message:
        at = _behind(f"{DIVISION} before", message)
        return ProviderError(
            "an integer is divided by zero, or the least one by minus one",
            node=at or None,
            reason="the processor has no answer, and onnxruntime's process would end",
            way_out="check what makes the divisor; the file may be damaged",
        )
    return None


def _behind(name: str, message: str) -> str:
    """What follows in the name of a guard that onnxruntime quotes."""
    return message.partition(f"{name} ")[2].partition("'")[0]
