"""Freed memory stays with the process, so that a step that takes and frees some has no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import resource, sys
import torch
if sys.argv[1] == "keep":
    from ontrain.providers.torch.heap import keep_freed_pages
    keep_freed_pages()

def step():
    held = [torch.empty(8 << 20, dtype=torch.uint8).fill_(1) for _ in range(3)]

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other rules")
def test_memory_that_a_step_frees_is_not_faulted_in_anew(monkeypatch):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"):
        monkeypatch.delenv(name, raising=False)
    faults = {
        mode: int(subprocess.run([sys.executable, "-c", _SCRIPT, mode], check=True, capture_output=True).stdout)
        for mode in ("keep", "leave")
    }
    assert faults["keep"] < 100
    assert faults["leave"] > 1000, "there is nothing to be kept"
