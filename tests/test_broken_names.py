"""Each operator of torch's that is private: without it, what hangs on it is refused by name, or done otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ontrain.internals import TABLE
from tests.broken_name import CASES, TRACED

PRIVATE = [row for row in TABLE if row.name.startswith("torch.ops.") and row.device == "cpu"]
ROWS = {row.name.removeprefix("torch.ops."): row for row in PRIVATE}


def test_every_private_operator_of_a_cpu_has_a_case():
    assert ROWS.keys() == CASES.keys()


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("name", "how"),
    [(name, "gone") for name in CASES]
    + [(name, "changed") for name, row in ROWS.items() if row.canary is not None and name not in TRACED],
)
def test_a_broken_operator_is_refused_by_name_or_done_without(name, how, tmp_path):
    environment = {**os.environ, "ONTRAIN_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.broken_name", name, how]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [CASES[name][1], "equal"]
