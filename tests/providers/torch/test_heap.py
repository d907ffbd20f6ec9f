"""Freed memory stays with the process, and working memory asks for large pages."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ontrain.providers.torch.heap import empty

_SCRIPT = """
import resource, sys
import torch
if sys.argv[1] == "keep":
    from ontrain.providers.torch.heap import keep_freed_pages
    keep_freed_pages()

def step():
    held = [torch.empty(8 << 20, dtype=torch.uint8).fill_(1) for _ in range(3)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(9):
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
    # glibc learns in either mode, and a block may come to lie elsewhere once: one step touches 6,144 pages.
    assert faults["keep"] < 2 * 6144 < faults["leave"]


@pytest.mark.skipif(sys.platform != "linux", reason="another system has other advice")
def test_working_memory_asks_for_large_pages():
    memory = empty(16 << 20, torch.device("cpu"))
    assert memory.shape == (16 << 20,) and memory.dtype == torch.uint8
    assert "hg" in _flags(memory.data_ptr() + (8 << 20)), "madvise(2) marks what asks for huge pages"


@pytest.mark.parametrize("count", [0, 1, 1000, (2 << 20) + 1])
def test_working_memory_is_of_any_size(count):
    memory = empty(count, torch.device("cpu"))
    assert memory.fill_(3).sum() == 3 * count


def _flags(address: int) -> list[str]:
    """What the kernel notes about the mapping that an address lies in, as in proc(5)."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            start, stop = (int(end, 16) for end in name.split("-"))
            inside = start <= address < stop
        elif name == "VmFlags:" and inside:
            return rest
    raise AssertionError("no mapping holds the address")
