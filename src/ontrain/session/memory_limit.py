"""How much memory there is: the machine's, or what this process may have of it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import torch

__all__ = ["memory_limit"]

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """Return the bytes that one operator's tensors can have at most: of the host, or of a GPU in use if it has more.

    The host's are those of the machine, of the container (control groups 1 and 2), or of the process (RLIMIT_AS).
    """
    if sys.platform == "win32":  # tells nothing in the standard library
        return sys.maxsize
    import resource

    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        host = min(host, allowed)
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            host = min(host, int(Path(path).read_text()))
    device = int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_initialized() else 0
    return max(host, device)
