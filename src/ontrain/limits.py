"""What a file may ask for, and the environment variables by which a user allows another number."""

from __future__ import annotations

import os

from ontrain.errors import GraphError, OptionError

__all__ = ["NESTING", "NODE_LIMIT", "TooLargeError", "limit", "node_limit"]

NESTING = 32
"""Subgraphs in subgraphs: far above what any exporter writes, far below what recursion bears."""
NODE_LIMIT = "ONTRAIN_NODE_LIMIT"
"""The environment variable that sets the limit of `node_limit`."""
_NODES, _RATIO = 20_000, 2
"""A session of so many nodes is planned in some twenty seconds."""


class TooLargeError(GraphError):
    """Values of a graph do not fit into the machine's memory: no other way of running it has more."""


def limit(variable: str, default: int, counted: str) -> int:
    """Return the number that an environment variable states, or the default.

    Args:
        variable: its name.
        default: for a variable that is not set, or empty.
        counted: what is counted, for the message.

    Raises:
        OptionError: it is no whole number from 1.
    """
    wish = os.environ.get(variable, "")
    if not wish:
        return default
    if not wish.isdecimal() or not 1 <= int(wish) < 2**62:
        raise OptionError(f"{variable} is {wish!r}", way_out=f"give a whole number of {counted} from 1")
    return int(wish)


def node_limit(written: int) -> int:
    """Return how many nodes a file's functions may come to once each call is replaced by its body, calls included.

    By default 20,000, or twice the nodes that the file states: so much is its own.

    Args:
        written: nodes of the file, those of functions counted once.

    Raises:
        OptionError: ONTRAIN_NODE_LIMIT is no whole number from 1.
    """
    return limit(NODE_LIMIT, max(_NODES, _RATIO * written), "nodes")
