"""Programs written for onnxruntime run as they are where every import of it finds ontrain, and compute the same."""

from __future__ import annotations

import functools
import importlib.util

import pytest

from tests.dropin.programs import PROGRAMS, WAYS, computed, furthest

expected = functools.cache(lambda name: computed(name, "onnxruntime"))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same(name, way):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    furthest(computed(name, way), expected(name))


def test_another_number_or_text_is_noticed():
    assert furthest({"a": [1.0, 2.0], "b": "x"}, {"a": [1.0, 2.0], "b": "x"}) == 0
    for other in ({"a": [1.0, 2.1], "b": "x"}, {"a": [1.0], "b": "x"}, {"a": [1.0, 2.0], "b": "y"}, {"a": [1.0, 2.0]}):
        with pytest.raises(AssertionError):
            furthest(other, {"a": [1.0, 2.0], "b": "x"})
