"""Seeds, hypothesis profiles, skips of what the machine lacks, and the flag that rewrites the pinned public names."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from tests.slices import beginning_elsewhere, sliced

# Examples build graphs and run them, so a deadline would only measure how busy the machine is.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
if "PYTEST_XDIST_WORKER" in os.environ:
    # About as many workers as cores: each computes on one, and so do the processes that it starts.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# What was imported once is not compiled again by each process that a test starts, nor are tests rewritten anew by the
# next run. Containers tell Python not to keep what it compiled.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
# Every graph is verified after every pass, in the processes that tests start too.
os.environ.setdefault("ONTRAIN_VERIFY", "1")


POISONED_BYTES = 32 << 20
"""Of a block of working memory; the rest of a large one would take longer than the run."""


CASES = pytest.StashKey[Counter[str]]()
"""How many cases of each test were collected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of torch, numpy and random before each test (0)")
    parser.addoption(
        "--update-public-api", action="store_true", help="write the public names as they are to tests/public_api.txt"
    )
    parser.addoption(
        "--thorough", action="store_true", help="run the tests marked thorough, too: near duplicates of others"
    )
    parser.addoption(
        "--all-cases", action="store_true", help="run all cases of tests marked sampled, as --thorough does, too"
    )
    parser.addoption("--slice", metavar="K/N", help="run the K-th of N parts of the tests that are chosen otherwise")
    parser.addoption("--turn", type=int, default=0, help="begin a part at another test each turn (0)")
    parser.addoption(
        "--all-samples", action="store_true", help="capture eight of torch's samples of each operator, not one"
    )


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: some tests wait for clocks and for other processes, and compute nothing then."""
    return (os.cpu_count() or 1) + 1


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave all but each so manieth case of a test that is marked `sampled` to the thorough run."""
    marker = item.get_closest_marker("sampled")
    if marker is None or item.config.getoption("--all-cases") or item.nodeid in item.config.args:
        return
    test = item.nodeid.partition("[")[0]
    counts = item.config.stash.setdefault(CASES, Counter())
    # One of each n in a row, each time one place further on: cases that differ in every second place all have a turn.
    row, place = divmod(counts[test], marker.args[0])
    if place != -row % marker.args[0]:
        item.add_marker("thorough")
    counts[test] += 1


@pytest.hookimpl(trylast=True)  # behind -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    remaining = items
    if not config.getoption("--thorough"):
        remaining = [item for item in remaining if not item.get_closest_marker("thorough")]
    if config.getoption("--slice"):
        remaining = beginning_elsewhere(sliced(remaining, config.getoption("--slice")), config.getoption("--turn"))
    chosen = set(remaining)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = remaining


def pytest_collection_finish(session: pytest.Session) -> None:
    # A million objects are there to stay. Neither the garbage collector nor a capture, which looks for generators of
    # random numbers among all objects, goes through them again for each test.
    gc.collect()
    gc.freeze()
    # pytest listens to each logger that passes nothing on, and torch prints every graph that it traces, with the stack,
    # to the one of its own as soon as anybody listens there: a tenth of a capture.
    logging.getLogger("torch.__trace").propagate = True
    # What a capture makes lives as long as it takes. Behind so small a rest, Python would look through all of it, in
    # vain, for a tenth of the tests' time: the third generation is collected five times as rarely. The young ones are
    # collected ten times as rarely, for hypothesis calls a function of its own at each collection.
    gc.set_threshold(7000, 10, 5)


def pytest_report_header(config: pytest.Config) -> str:
    import torch

    return f"seed {config.getoption('--seed')}, torch {torch.__version__} on {torch.get_num_threads()} threads"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, as the header prints it."""
    return int(request.config.getoption("--seed"))


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(params=[True, False], ids=["by units for bytes", "in floating point"])
def units(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Products of bytes both ways; on a processor without units for them onnxruntime's kernel would lose digits."""
    from ontrain.providers.torch.lowering import integer_products
    from ontrain.providers.torch.processor import multiplies_bytes

    there: bool = request.param
    if there and not multiplies_bytes():
        pytest.skip("the processor has no units for products of bytes")
    monkeypatch.setattr(integer_products, "multiplies_bytes", lambda: there)
    return there


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> Iterator[None]:
    import torch

    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed writes down who called it for each kind of device that is not there: half a millisecond.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(seed)
    yield
    if (process := sys.modules.get("ontrain.training.process")) is not None:
        process.set_seed(0)  # of trainers, which a test may have set for its whole process


@pytest.fixture(autouse=True, scope="session")
def _unwritten_memory_is_nan() -> Iterator[None]:
    """What a run reads of its working memory before it has written there is NaN as a float and -1 as a whole number."""
    from ontrain.providers.torch.blocks import Block, Blocks

    take = Blocks.take

    def poisoned(self: Blocks, nbytes: int) -> Block:
        block = take(self, nbytes)
        block.memory[:POISONED_BYTES].fill_(0xFF)
        return block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blocks, "take", poisoned)
        yield


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of captured graphs, one for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "captures"


@pytest.fixture(scope="module")
def captured_once(captures: Path) -> Iterator[None]:
    """A module's tests, and the processes that they start, find captured what was captured before.

    For tests of what becomes of a graph, not of how it is captured: the trace of a model takes longer than all else
    that a small one goes through.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONTRAIN_CACHE_DIR", str(captures))
        yield


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Threads take turns every ten microseconds of Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def rows_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not reach the loss are left out of small models, too, where nothing is gained by it."""
    monkeypatch.setattr("ontrain.session.row_counts.WORTH_COUNTING", 0)
