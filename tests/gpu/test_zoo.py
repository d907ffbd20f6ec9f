"""The models of the zoo on a GPU: gradients equal to eager PyTorch's there, at two sizes."""

from __future__ import annotations

import re

import pytest

from tests.models.zoo import ZOO, Entry
from tests.models.zoo.judge import judge, judge_module

pytestmark = [pytest.mark.gpu, pytest.mark.sampled(4)]

pytest.importorskip("transformers")


def _ids(entries: list[Entry]) -> list[str]:
    return [re.sub(r"[^\w-]+", "_", entry.name) for entry in entries]


ONE_GRAPH = [entry for entry in ZOO if not entry.refused]


@pytest.mark.parametrize("entry", ONE_GRAPH, ids=_ids(ONE_GRAPH))
def test_gradients_of_one_graph_are_eagers(entry: Entry):
    judge(entry, device="cuda").expect_eagers()


@pytest.mark.parametrize("entry", ZOO, ids=_ids(ZOO))
def test_gradients_of_a_wrapped_module_are_eagers(entry: Entry):
    judge_module(entry, device="cuda").expect_eagers()
