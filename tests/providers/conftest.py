"""Fixtures of the providers' tests."""

from __future__ import annotations

import pytest

from ontrain.providers.torch import expected, processor

_CACHED = (
    processor._description, processor.model_name, processor.maker, processor.generation,
    processor.multiplies_bfloat16, processor.multiplies_bytes, expected.kind,
)  # fmt: skip


@pytest.fixture
def cpuinfo(monkeypatch):
    """Pretend that Linux says something else of the processor."""

    def forget():
        for function in _CACHED:
            function.cache_clear()

    def pretend(text):
        monkeypatch.setattr(processor.Path, "read_text", lambda *args, **kwargs: text)
        forget()

    yield pretend
    monkeypatch.undo()
    forget()
