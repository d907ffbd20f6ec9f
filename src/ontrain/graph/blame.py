"""Work on one node under that node's name: what goes wrong in it is an error that a user can place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from ontrain.errors import GradientError, GraphError, OntrainError, ProviderError
from ontrain.graph.source import describe, source_of

__all__ = ["blamed_on", "blamed_on_whole"]

# What numpy, torch, onnx's evaluator and a plain dictionary raise for values that an operator cannot take.
_REFUSALS = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, AttributeError, MemoryError, OSError)


@contextmanager
def blamed_on(node: ir.Node, problem: str, kind: type[OntrainError] = GraphError) -> Iterator[None]:
    """Turn an exception of the block into an error that names the node; ontrain's own errors are given the node.

    A file may hold a node that every check lets through and whose values still make no sense: an unknown mode, an axis
    too many. An assertion that fails in ontrain is called a gap of ontrain's.
    """
    try:
        yield
    except (GraphError, GradientError, ProviderError) as error:
        if error.node is not None:
            raise
        raise type(error)(
            error.problem, node=describe(node), source=source_of(node), reason=error.reason, way_out=error.way_out
        ) from error
    except OntrainError:
        raise
    except AssertionError as error:
        raise kind(
            problem,
            node=describe(node),
            source=source_of(node),
            reason=f"ontrain expects that this cannot be: {error}"
            if str(error)
            else "ontrain does not expect such a use",
            way_out="if the model runs elsewhere, report it with the file; else it is damaged",
        ) from error
    except _REFUSALS as error:
        text = str(error).strip().splitlines()
        raise kind(
            problem,
            node=describe(node),
            source=source_of(node),
            reason=f"{type(error).__name__}: {text[0] if text else 'no message'}",
        ) from error


@contextmanager
def blamed_on_whole(node: ir.Node, problem: str) -> Iterator[None]:
    """Let an error of ontrain's that names a node of an operator's body name the operator's own node.

    The nodes of a body stand in no file of the user's.
    """
    try:
        yield
    except OntrainError as error:
        if error.node in (None, describe(node)):
            raise
        told = ": ".join(part for part in (error.problem, error.node, error.reason) if part)
        raise type(error)(
            problem, node=describe(node), source=source_of(node), reason=told, way_out=error.way_out
        ) from error
