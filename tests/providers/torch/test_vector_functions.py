"""The first sine, root or exponential of a process is as accurate as the second."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import torch
from ontrain.providers.torch import TorchExecutionProvider

TorchExecutionProvider()
torch.mm(torch.rand(4096, 2), torch.rand(2, 256))
x = torch.rand(4096, 256) * 60
print(torch.equal(torch.sin(x), torch.sin(x)))
"""


@pytest.mark.parametrize("processes", [1, pytest.param(12, marks=pytest.mark.thorough)])
def test_the_first_vector_function_of_a_process_is_accurate(processes):
    # A process in three would fail on an idle machine with MKL; fewer beside other work.
    told = [
        subprocess.run([sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(processes)
    ]
    assert told == [["True"]] * processes
