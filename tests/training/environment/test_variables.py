"""Environment variables: those of onnxruntime's that mean something, and those that no longer do."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from ontrain.errors import OptionError
from ontrain.passes import Journal
from ontrain.training.environment import VARIABLES, collect_environment, variables
from ontrain.training.ortmodule import DebugOptions, LogLevel, ORTModule
from tests.training.ortmodule.networks import LanguageModel

SOURCE = Path(variables.__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch):
    monkeypatch.setattr(variables, "_said", set())


def test_the_table_has_what_the_sources_read():
    texts = [path.read_text() for path in SOURCE.rglob("*.py") if path != Path(variables.__file__)]
    read = set(re.findall(r"\b(?:ONTRAIN|ORTMODULE)_[A-Z_]+\b", "\n".join(texts)))
    known = {name for name, variable in VARIABLES.items() if variable.meaning is not None}
    switches = {
        f"ORTMODULE_ENABLE_{optimization}_OPTIMIZER" for optimization in ("COMPUTE", "SPARSE", "EMBEDDING_SPARSE")
    }
    assert {name for name in read if not name.endswith("_")} == known - switches


def test_a_variable_without_meaning_is_said_once(monkeypatch):
    monkeypatch.setenv("ORTMODULE_USE_TRITON", "1")
    monkeypatch.setenv("ORTMODULE_FALBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.warns(UserWarning) as said:
        for _ in range(2):
            ORTModule(nn.Linear(2, 2))
    texts = [str(warning.message) for warning in said]
    assert len(texts) == 2
    assert texts[0].startswith("ORTMODULE_FALBACK_POLICY=") and "'ORTMODULE_FALLBACK_POLICY'" in texts[0]
    assert texts[1].startswith("ORTMODULE_USE_TRITON=1 is set and means nothing to ontrain: no kernels")


def test_a_variable_with_a_meaning_is_not_said(monkeypatch):
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "0")
    monkeypatch.setenv("ORTMODULE_ENABLE_TUNING", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ORTModule(nn.Linear(2, 2))


def test_the_log_level_of_the_environment_goes_first(monkeypatch):
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "ERROR")
    assert DebugOptions(log_level=LogLevel.WARNING).log_level is LogLevel.ERROR
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "WARN")
    with pytest.raises(OptionError, match="ORTMODULE_LOG_LEVEL is 'WARN'[^$]*'WARNING'"):
        DebugOptions()


@pytest.mark.parametrize(
    ("switch", "off"),
    [
        ("COMPUTE", {"EliminateUnreadRows", "EliminateUnlabelledRows", "EliminatePadding"}),
        ("SPARSE", {"EliminateUnlabelledRows", "EliminatePadding"}),
        ("EMBEDDING_SPARSE", {"EliminatePadding"}),
    ],
)
def test_upstreams_optimizers_turn_passes_off(monkeypatch, switch, off):
    assert DebugOptions().journal(training=True).off == Journal("x").off == set()
    monkeypatch.setenv(f"ORTMODULE_ENABLE_{switch}_OPTIMIZER", "0")
    assert DebugOptions().journal(training=True).off == off
    monkeypatch.setenv(f"ORTMODULE_ENABLE_{switch}_OPTIMIZER", "off")
    with pytest.raises(OptionError, match="is 'off'"):
        DebugOptions().journal(training=True)


@pytest.mark.usefixtures("rows_counted")
def test_without_the_sparse_optimizer_ignored_rows_are_computed(monkeypatch):
    ids = torch.randint(0, 20, (3, 6))
    labels = torch.where(torch.arange(6) < 4, -100, ids)
    widths = []
    for value in ("1", "0"):
        monkeypatch.setenv("ORTMODULE_ENABLE_SPARSE_OPTIMIZER", value)
        ours = ORTModule(LanguageModel())
        ours(ids, labels)[0].backward()
        (plan,) = ours._engine.entries[0].session.plans.values()
        widths.append(plan.executable.planned_bytes)
    assert widths[0] < widths[1]


def test_tuning_is_asked_of_the_provider(monkeypatch, tmp_path):
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path))
    tuned = []
    for value in ("0", "1"):
        monkeypatch.setenv("ORTMODULE_ENABLE_TUNING", value)
        ours = ORTModule(nn.Linear(2, 2))
        ours(torch.ones(1, 2))
        tuned.append(ours._engine.entries[0].session.provider.settings.tuning is not None)
    assert tuned == [False, True]


def test_the_report_says_what_is_set_and_fails_for_nothing(monkeypatch):
    monkeypatch.setenv("ONTRAIN_CACHE", "perhaps")
    monkeypatch.setenv("ONTRAIN_DUMB", "folder")
    report = collect_environment()
    assert report.cache["captured graphs"] == "ONTRAIN_CACHE is 'perhaps'"
    rows = {row["name"]: row for row in report.variables}
    assert set(VARIABLES) <= set(rows) and rows["ONTRAIN_CACHE"]["value"] == "perhaps"
    assert not rows["ONTRAIN_DUMB"]["read"] and "'ONTRAIN_DUMP'" in rows["ONTRAIN_DUMB"]["meaning"]
    assert report.versions["torch"] == torch.__version__ and report.threads["torch"] == torch.get_num_threads()
    assert report.system["cores"] == os.cpu_count() and "TorchExecutionProvider" in report.providers
