"""Providers of other packages: what is wrong with one is said by name."""

import importlib.metadata
import sys

import pytest

from ontrain.errors import OptionError, ProviderError
from ontrain.providers import available_providers, get_provider

MODULE = """
from ontrain.providers import Capabilities

class Whole:
    name = "Whole"
    device = "cpu"
    capabilities = Capabilities()
    def __init__(self, device): pass
    def supports(self, node): return "nothing is"
    def create_state(self, specs): return {}
    def compile(self, model, state): raise NotImplementedError

def number(device): return 3
"""
ENTRY_POINTS = """
[ontrain.providers]
WholeProvider = provider_of_another:Whole
NumberProvider = provider_of_another:number
AbsentProvider = module_that_is_absent:Provider
NamelessProvider = provider_of_another:Nameless
TorchExecutionProvider = provider_of_another:number
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    """A distribution with these entry points on the path."""
    (tmp_path / "provider_of_another.py").write_text(MODULE)
    info = tmp_path / "another-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("provider_of_another", None)


def test_an_entry_point_is_found_by_its_name():
    assert get_provider("WholeProvider").name == "Whole"
    assert "WholeProvider" in available_providers()


def test_a_package_is_found_that_was_installed_after_the_first_look(tmp_path):
    assert "LateProvider" not in available_providers()
    info = tmp_path / "late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ontrain.providers]\nLateProvider = provider_of_another:Whole\n")
    assert get_provider("LateProvider").name == "Whole"


def test_metadata_is_read_once(monkeypatch):
    available_providers()
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    assert "WholeProvider" in available_providers()


def test_a_built_in_name_cannot_be_taken():
    assert get_provider("TorchExecutionProvider").name == "TorchExecutionProvider"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NumberProvider", "int has no name, supports, create_state, compile"),
        ("AbsentProvider", "AbsentProvider of another cannot be loaded\n.*module_that_is_absent:Provider"),
        ("NamelessProvider", "provider_of_another:Nameless"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_package(name, said):
    with pytest.raises(ProviderError, match=said):
        get_provider(name)


def test_an_option_that_it_does_not_take():
    with pytest.raises(OptionError, match="speed"):
        get_provider("WholeProvider", options={"speed": 2})
