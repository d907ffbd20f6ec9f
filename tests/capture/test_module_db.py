"""Every module that torch tests itself: an ORTModule has eager's results, gradients and buffers, or refuses by name."""

from __future__ import annotations

import json

import pytest
import torch

from tests.capture import module_db

pytestmark = pytest.mark.sampled(12)

pytest.importorskip("expecttest", reason="torch's module samples need it")

INFOS = module_db.infos()
REFUSED = json.loads(module_db.TABLE.read_text())


@pytest.mark.parametrize(("name", "info"), INFOS, ids=[name for name, _ in INFOS])
def test_a_module_is_right_or_refused_by_name(name, info, request):
    count = 0 if request.config.getoption("--all-samples") else 2
    kind, text = module_db.outcome(info, count)
    assert kind != "wrong", text
    # Another version of torch has other modules, and other samples of them.
    if torch.__version__.split("+")[0] == REFUSED["torch"]:
        assert (kind == "refused") == (name in REFUSED["refused"]), (
            f"{kind} {text}; renew the table by `python -m tests.capture.module_db --write`"
        )


def test_few_modules_are_refused():
    assert len(INFOS) >= 114 or torch.__version__.split("+")[0] != REFUSED["torch"]
    assert len(REFUSED["refused"]) <= 4
