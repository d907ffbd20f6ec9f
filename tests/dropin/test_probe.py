"""Every name of onnxruntime's is there, takes the same arguments, and its calls come to the same on both providers."""

from __future__ import annotations

import inspect

import pytest

from tests.dropin.calls import CALLS, DIFFERENT
from tests.dropin.models import write
from tests.dropin.probe import PROVIDERS, is_upstreams, pairs, signature_differs
from tests.dropin.twins import compare

OWN = {name: pair for name, pair in pairs() if not is_upstreams(pair)}
CASES = [(name, number) for name, calls in CALLS.items() for number in range(len(calls))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models"))


def test_what_is_ontrains_own_is_called_here():
    """A name that a later onnxruntime or ontrain adds has to get its calls."""
    called = {*CALLS, *(difference.name for difference in DIFFERENT)}
    classes = {name.partition(".")[0] for name in called}
    uncalled = [name for name in OWN if name not in called and not (inspect.isclass(OWN[name][0]) and name in classes)]
    assert uncalled == []


@pytest.mark.parametrize("name", [name for name in OWN if not inspect.isclass(OWN[name][0])])
def test_arguments_are_onnxruntimes(name):
    assert signature_differs(OWN[name]) == ""


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_call_comes_to_what_onnxruntime_comes_to(name, number, provider, folder, tmp_path):
    compare(CALLS[name][number], folder, tmp_path, [provider])


@pytest.mark.parametrize("difference", DIFFERENT, ids=[f"{d.name}-{i}" for i, d in enumerate(DIFFERENT)])
def test_what_stays_different_is_listed(difference, folder, tmp_path):
    for provider in PROVIDERS if difference.on_all else PROVIDERS[1:]:
        with pytest.raises(AssertionError):
            compare(difference.call, folder, tmp_path, [provider])
    if not difference.on_all:
        compare(difference.call, folder, tmp_path, PROVIDERS[:1])
