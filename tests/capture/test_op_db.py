"""Every operator that torch tests itself: captured with eager's results and gradients, or refused by name."""

from __future__ import annotations

import json

import pytest
import torch

from tests.capture import op_db

pytest.importorskip("expecttest", reason="torch's operator samples need it")

INFOS = op_db.infos()
REFUSED = json.loads(op_db.TABLE.read_text())


# Every fifth; all of them with --thorough.
CHOSEN = [
    pytest.param(name, info, id=name, marks=[pytest.mark.thorough] if i % 5 else [])
    for i, (name, info) in enumerate(INFOS)
]


@pytest.mark.parametrize(("name", "info"), CHOSEN)
@pytest.mark.sampled(5)
def test_an_operator_is_right_or_refused_by_name(name, info, request):
    count = 8 if request.config.getoption("--all-samples") else 1
    kind, text = op_db.outcome(info, count)
    assert kind != "wrong", text
    # Another version of torch has other operators, and decomposes into others.
    if count == 1 and torch.__version__.split("+")[0] == REFUSED["torch"]:
        assert (kind == "refused") == (name in REFUSED["refused"]), (
            f"{kind} {text}; renew the table by `python -m tests.capture.op_db --write`"
        )
