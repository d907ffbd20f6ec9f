"""Constants that depend on sizes."""

from __future__ import annotations

import pytest

from ontrain.errors import GraphError
from tests.graph.traced import REFUSED, generalised


def test_a_constant_that_nothing_explains_is_refused():
    with pytest.raises(GraphError, match="Add cannot be written for all sizes"):
        generalised(REFUSED["entries of a constant"], ["batch", 4, 3])
