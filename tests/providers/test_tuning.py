"""Products in the formulation that was measured to be the fastest: chosen, kept in a file, no reason to fail."""

from __future__ import annotations

import copy
import json
import math
import multiprocessing
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from ontrain import OptionError
from ontrain.cli.app import app
from ontrain.providers import get_provider
from ontrain.providers.torch import expected, timings, tuning
from ontrain.providers.torch.lowering import product
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

NAME = "64x256x512 NTN + bias"
BOTH = ("aten", "linear")
FAST = 2e-4
"""Seconds that `NAME` plausibly takes on any machine: 8 GFLOP/s."""
TIMES = {"aten": 2 * FAST, "linear": FAST}


@pytest.fixture(autouse=True)
def _unknown_kind(monkeypatch):
    """A processor of which the package's table says nothing, whichever runs the tests."""
    monkeypatch.setattr(tuning, "is_known", lambda: False)
    monkeypatch.setattr(tuning, "distance_to_known", lambda product: math.inf)
    monkeypatch.setattr(tuning, "expected_rate", lambda: 1e10)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path))
    return tmp_path / "products.json"


@pytest.fixture
def clock(monkeypatch):
    """Times by formulation; measuring would only show how busy the machine is. Lists what was measured."""
    asked = []

    def measure(sizes, *others):
        asked.append((sizes, *others))
        seconds = 2 * sizes[0] * sizes[1] * sizes[2] / 8e10
        return {name: seconds * (1 if name == "linear" else 2) for name in product.FORMULATIONS}

    monkeypatch.setattr(product, "_measure", measure)
    return asked


# The choice


def test_the_fastest_is_taken_and_measured_once(file):
    asked = []

    def measure(linear):
        asked.append(linear)
        return {"aten": 2 * FAST, "linear": linear * FAST}

    first = tuning.open_tuning()
    assert [first.fastest(NAME, BOTH, lambda: measure(1.0)) for _ in range(2)] == ["linear"] * 2
    assert tuning.open_tuning().fastest(NAME, BOTH, lambda: measure(1.0)) == "linear"  # another process, from the file
    assert first.fastest("64x256x512 NNN", BOTH, lambda: measure(1.99)) == "aten"  # hardly a gain
    assert asked == [1.0, 1.99]


def test_another_machine_measures_anew(file, monkeypatch):
    tuning.open_tuning().fastest(NAME, BOTH, lambda: TIMES)
    monkeypatch.setattr(tuning, "machine", lambda: "another")
    assert tuning.open_tuning().fastest(NAME, BOTH, lambda: {"aten": FAST, "linear": 2 * FAST}) == "aten"
    assert len(json.loads(file.read_text())) == 2


def test_of_those_that_are_about_as_fast_the_first_is_taken():
    assert timings.choice(NAME, {"aten": 2.0, "packed": 1.04, "linear": 1.0}) == "packed"
    assert timings.choice(NAME, {"aten": 2.0, "packed": 1.06, "linear": 1.0}) == "linear"
    assert timings.choice(NAME, {"aten": 1.04, "packed": 1.01, "linear": 1.0}) == "aten"


def test_a_large_result_is_written_to_planned_memory_for_a_little_time():
    assert timings.choice("1024x768x3072 NTN", {"aten": 2.0, "packed": 1.2, "linear": 1.0}) == "packed"
    assert timings.choice("1024x768x3072 NTN", {"aten": 2.0, "packed": 1.3, "linear": 1.0}) == "linear"
    assert timings.choice("1024x768x3072 NTN", {"aten": 1.1, "packed": 1.2, "linear": 1.0}) == "aten"
    assert timings.choice("1024x768x3072 NTN", {"aten": 1.2, "packed": 1.1, "linear": 1.0}) == "packed"
    assert timings.choice("1024x768x3072 NTw + bias", {"aten": 2.0, "packed": 1.1, "linear": 1.0}) == "linear"
    assert timings.choice("1024x3072x768 NTN", {"aten": 2.0, "packed": 1.2, "linear": 1.0}) == "linear"


def test_of_two_that_measure_at_once_the_first_to_write_decides_for_both(file):
    late = tuning.open_tuning()
    early = tuning.open_tuning()
    assert early.fastest(NAME, BOTH, lambda: TIMES) == "linear"
    assert late.fastest(NAME, BOTH, lambda: {"aten": FAST, "linear": 2 * FAST}) == "linear"


def _of(rows):
    return f"{rows}x256x512 NTN + bias", rows / 64


@pytest.mark.parametrize(
    ("above", "taken", "asked"),
    [(256, "linear", []), (256, "aten", [128]), (512, "linear", [128])],
    ids=["alike", "different", "far apart"],
)
def test_between_two_of_the_same_choice_nothing_is_measured(file, above, taken, asked):
    mine, measured = tuning.open_tuning(), []
    for rows, fast in ((64, "linear"), (above, taken)):
        name, share = _of(rows)
        times = {"aten": 2 * share * FAST, "linear": 2 * share * FAST, fast: share * FAST}
        assert mine.fastest(name, BOTH, lambda times=times: times) == fast
    name, share = _of(128)

    def measure():
        measured.append(128)
        return {"aten": 2 * share * FAST, "linear": share * FAST}

    assert mine.fastest(name, BOTH, measure) == "linear"
    assert measured == asked
    assert tuning.open_tuning().fastest(name, BOTH, measure) == "linear"  # another process, from the file


def test_when_measuring_took_its_share_the_nearest_in_the_same_layout_answers(file, monkeypatch):
    mine, measured = tuning.open_tuning(), []

    def times(rows: int, fast: str):
        _, share = _of(rows)
        measured.append(rows)
        return {"aten": 2 * share * FAST, "linear": 2 * share * FAST, fast: share * FAST}

    assert mine.fastest(_of(64)[0], BOTH, lambda: times(64, "linear")) == "linear"
    assert mine.fastest(_of(1024)[0], BOTH, lambda: times(1024, "aten")) == "aten"
    monkeypatch.setattr(tuning, "_AT_ONCE", -1e9)
    assert mine.fastest(_of(32)[0], BOTH, lambda: times(32, "aten")) == "linear"  # as 64
    assert mine.fastest(_of(4096)[0], BOTH, lambda: times(4096, "linear")) == "aten"  # as 1024
    assert measured == [64, 1024]


@pytest.mark.parametrize(("apart", "taken"), [(0.5, "linear"), (3.0, "aten")], ids=["nearer", "farther"])
def test_the_table_answers_if_its_product_is_nearer_than_any_that_was_measured(apart, taken, file, monkeypatch):
    """A product of 32 rows says little of one of 1,024."""
    monkeypatch.setattr(tuning, "expected", lambda product, names: "linear")
    monkeypatch.setattr(tuning, "distance_to_known", lambda product: apart)
    name, share = _of(64)
    ours = tuning.open_tuning()
    ours.fastest(name, BOTH, lambda: {"aten": share * FAST, "linear": 2 * share * FAST})
    monkeypatch.setattr(tuning, "_AT_ONCE", -1e9)
    assert ours.fastest(_of(256)[0], BOTH, lambda: None) == taken


@pytest.mark.parametrize("taken", BOTH)
def test_when_measuring_took_its_share_the_table_answers_for_the_first_of_a_layout(taken, file, monkeypatch):
    """A first step is not kept waiting by a dozen measurements."""
    monkeypatch.setattr(tuning, "_AT_ONCE", -1e9)
    monkeypatch.setattr(tuning, "expected", lambda product, names: taken)
    mine, measured = tuning.open_tuning(), []
    assert mine.fastest(NAME, BOTH, lambda: measured.append(NAME)) == taken and not measured
    (entry,) = json.loads(file.read_text())[timings.machine()].values()
    assert entry == {"taken": taken, "seconds": {}}


def test_on_a_processor_that_the_table_knows_no_plan_waits_for_a_measurement(file, monkeypatch):
    monkeypatch.setattr(tuning, "is_known", lambda: True)
    monkeypatch.setattr(tuning, "expected", lambda product, names: "linear")
    measured = []
    assert tuning.open_tuning().fastest(NAME, BOTH, lambda: measured.append(NAME)) == "linear" and not measured


@pytest.mark.parametrize("known", [False, True])
def test_what_the_table_knows_is_measured_at_leisure(known, file, monkeypatch):
    clock, measured = [0.0], []
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(tuning, "is_known", lambda: known)
    monkeypatch.setattr(tuning, "_AT_ONCE", -1e9)
    ours = tuning.open_tuning()
    ours.fastest(NAME, BOTH, lambda: measured.append(clock[0]))  # disturbed each time: it stays without a measurement
    for clock[0] in (21.0, 24.0, 42.0):
        ours.review()
    assert measured == ([21.0, 42.0] if known else [21.0, 24.0, 42.0])


def test_what_was_not_measured_is_soon_measured_between_steps(file, reviewed, monkeypatch):
    ours = tuning.open_tuning()
    assert ours.fastest(_of(64)[0], BOTH, lambda: TIMES) == "linear"
    monkeypatch.setattr(tuning, "_AT_ONCE", -1e9)
    name, share = _of(256)
    slow = {"aten": share * FAST, "linear": 2 * share * FAST}
    assert ours.fastest(name, BOTH, lambda: slow) == "linear"
    for _ in range(2):
        ours.review()
    assert ours.version() == 1 and ours.fastest(name, BOTH, dict) == "aten"


def test_times_of_other_formulations_are_as_if_there_were_none(file):
    """Of an older version, or of a build that had fewer."""
    tuning.open_tuning().fastest(NAME, BOTH, lambda: TIMES)
    three = {"aten": 3 * FAST, "packed": FAST, "linear": 2 * FAST}
    assert [tuning.open_tuning().fastest(NAME, three, lambda: dict(three)) for _ in range(2)] == ["packed"] * 2
    assert json.loads(file.read_text()) == {timings.machine(): {NAME: {"taken": "packed", "seconds": three}}}


def _settle(folder, number, results):
    mine = tuning.Tuning(folder / "products.json")
    times = {"aten": 2e-6, "linear": 1e-6} if number % 2 else {"aten": 1e-6, "linear": 2e-6}
    results.put([mine.fastest(f"{k + 1}x160x16 NNN", BOTH, lambda: times) for k in range(20)])


def test_processes_agree_and_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_settle, args=(tmp_path, number, results)) for number in range(4)]
    for process in processes:
        process.start()
    chosen = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(choice == chosen[0] for choice in chosen)
    (known,) = timings.read_timings(tmp_path / "products.json").values()
    assert len(known) == 20


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[" * 100_000, '{"a": 3}', '{"MACHINE": {"NAME": {"aten": "x", "linear": 1}}}',
     '{"MACHINE": {"NAME": {"linear": 1.0}}}', '{"MACHINE": {"a product": {"aten": 1.0}}}',
     '{"MACHINE": {"NAME": {"aten": NaN, "linear": -1.0}}}'],
)  # fmt: skip
def test_a_torn_or_foreign_file_is_as_if_it_were_not_there(file, content):
    file.write_text(content.replace("MACHINE", timings.machine()).replace("NAME", NAME))
    assert tuning.open_tuning().fastest(NAME, BOTH, lambda: TIMES) == "linear"
    assert list(json.loads(file.read_text())[timings.machine()]) == [NAME]


def test_what_cannot_be_kept_is_not_measured_and_that_is_said_once(tmp_path, monkeypatch, caplog):
    """Another process could not know of it, and would round differently; the package's table it knows."""
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path / "a file"))
    mine = tuning.open_tuning()
    names = (NAME, "64x64x64 NNN")
    assert [mine.fastest(name, BOTH, lambda: TIMES) for name in names] == [expected.expected(n, BOTH) for n in names]
    (said,) = caplog.records
    assert "set ONTRAIN_CACHE_DIR" in said.getMessage()


# Training


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 512), nn.Linear(512, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.down(torch.relu(self.up(x))) ** 2).mean()


def test_training_tuned_gives_the_same_losses(file, clock):
    x, curves = torch.randn(256, 256), []
    state = _Network().state_dict()
    for tune in (False, True):
        network = _Network()
        network.load_state_dict(state)
        trainer = ORTTrainer(
            network, {"inputs": [("x", ["batch", 256])], "outputs": [("loss", [], True)]}, optim.SGDConfig(lr=1.0),
            options={"provider": ("TorchExecutionProvider", {"tune": tune})},
        )  # fmt: skip
        curves.append([float(trainer.train_step(x)) for _ in range(4)])
        assert bool(clock) == tune
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


def test_it_is_on_unless_declined(monkeypatch):
    monkeypatch.delenv("ONTRAIN_TUNE", raising=False)
    assert get_provider("TorchExecutionProvider").settings.tuning is not None
    assert get_provider("TorchExecutionProvider", options={"tune": False}).settings.tuning is None
    monkeypatch.setenv("ONTRAIN_TUNE", "0")
    assert get_provider("TorchExecutionProvider").settings.tuning is None
    monkeypatch.setenv("ONTRAIN_TUNE", "yes")
    with pytest.raises(OptionError, match="ONTRAIN_TUNE"):
        get_provider("TorchExecutionProvider")


def test_the_command_shows_what_was_measured(file):
    tuning.open_tuning().fastest(NAME, BOTH, lambda: TIMES)
    shown = CliRunner().invoke(app, ["products"])
    assert shown.exit_code == 0 and "64x256x512 NTN + bias" in shown.output and "100%" in shown.output
    report = json.loads(CliRunner().invoke(app, ["products", "--json"]).output)
    assert report["machines"] == json.loads(file.read_text())


# What is not believed, and what is looked at again


@pytest.fixture
def reviewed(monkeypatch):
    """Reviews are due at once."""
    for number in ("_PAUSE", "_SHARE", "_NEW_PAUSE", "_NEW_SHARE"):
        monkeypatch.setattr(tuning, number, 0.0)


SQUARE = "1024x768x768 NTN"
GOOD = {"aten": 0.02, "linear": 0.006}
"""60 and 200 GFLOP/s."""


@pytest.mark.parametrize(
    "times",
    [None, {"aten": 3.0, "linear": 3.6}, {"aten": 0.006, "linear": 0.073}, {"aten": 1e-7, "linear": 2e-7}],
    ids=["disturbed", "far too slow", "too far apart", "faster than any machine"],
)
def test_what_the_sizes_do_not_predict_is_not_kept(times, file):
    ours = tuning.open_tuning()
    assert ours.fastest(SQUARE, BOTH, lambda: times) == expected.expected(SQUARE, BOTH)
    (entry,) = json.loads(file.read_text())[timings.machine()].values()
    assert entry == {"taken": expected.expected(SQUARE, BOTH), "seconds": {}}


def test_what_a_machine_reached_is_asked_of_other_products(file):
    """60 ms are plausible until a product like it has taken 6."""
    slow = {"aten": 0.062, "linear": 0.073}
    assert tuning.plausible(SQUARE, slow, 2e10) and not tuning.plausible(SQUARE, slow, 2e11)
    ours = tuning.open_tuning()
    ours.fastest(SQUARE, BOTH, lambda: GOOD)
    ours.fastest("1024x768x896 NTN", BOTH, lambda: slow)
    assert not json.loads(file.read_text())[timings.machine()]["1024x768x896 NTN"]["seconds"]


@pytest.mark.parametrize("form", ["of today", "of times alone"])
def test_a_polluted_file_is_measured_anew(form, file):
    seconds = {"aten": 3.0, "linear": 3.6}
    entry = {"taken": "aten", "seconds": seconds} if form == "of today" else seconds
    file.write_text(json.dumps({timings.machine(): {SQUARE: entry}}))
    assert tuning.open_tuning().fastest(SQUARE, BOTH, lambda: GOOD) == "linear"
    assert json.loads(file.read_text())[timings.machine()][SQUARE]["taken"] == "linear"


def test_a_file_of_times_alone_is_read(file):
    file.write_text(json.dumps({timings.machine(): {SQUARE: GOOD}}))
    assert tuning.open_tuning().fastest(SQUARE, BOTH, lambda: pytest.fail("known")) == "linear"


def test_a_choice_that_is_clearly_slow_twice_is_replaced_for_all(file, reviewed):
    ours = tuning.open_tuning()
    measured = [{"aten": 0.006, "linear": 0.012}]
    assert ours.fastest(SQUARE, BOTH, lambda: measured[-1]) == "aten"
    measured.append(GOOD)
    ours.review()
    assert ours.version() == 0 and ours.fastest(SQUARE, BOTH, dict) == "aten"
    ours.review()
    assert ours.version() == 1 and ours.fastest(SQUARE, BOTH, dict) == "linear"
    assert tuning.open_tuning().fastest(SQUARE, BOTH, lambda: pytest.fail("known")) == "linear"


@pytest.mark.parametrize(
    "times", [None, {"aten": 0.0065, "linear": 0.006}, {"aten": 0.006, "linear": 0.073}],
    ids=["disturbed", "hardly slow", "implausible"],
)  # fmt: skip
def test_a_choice_holds_where_nothing_speaks_clearly_against_it(times, file, reviewed):
    ours = tuning.open_tuning()
    measured = [{"aten": 0.006, "linear": 0.012}]
    ours.fastest(SQUARE, BOTH, lambda: measured[-1])
    before = file.read_text()
    measured.append(times)
    for _ in range(3):
        ours.review()
    assert ours.version() == 0 and file.read_text() == before


def test_a_first_answer_is_confirmed_by_a_measurement(file, reviewed):
    ours = tuning.open_tuning()
    measured = [None]
    taken = ours.fastest(SQUARE, BOTH, lambda: measured[-1])
    measured.append({"aten": 0.006, "linear": 0.0061})
    ours.review()
    entry = json.loads(file.read_text())[timings.machine()][SQUARE]
    assert entry == {"taken": taken, "seconds": measured[-1]}


@pytest.mark.parametrize(("slower", "taken"), [(1.15, "linear"), (1.06, "aten")])
def test_what_was_taken_unmeasured_is_replaced_for_less(slower, taken, file, reviewed, monkeypatch):
    monkeypatch.setattr(tuning, "is_known", lambda: True)
    monkeypatch.setattr(tuning, "expected", lambda product, names: "aten")
    ours = tuning.open_tuning()
    assert ours.fastest(SQUARE, BOTH, lambda: pytest.fail("a plan waits")) == "aten"
    ours._measures[timings.machine(), SQUARE] = lambda: {"aten": slower * 0.006, "linear": 0.006}
    for _ in range(3):
        ours.review()
    assert ours.fastest(SQUARE, BOTH, dict) == taken


def test_no_choice_is_replaced_where_torch_is_to_be_deterministic(file, reviewed):
    ours = tuning.open_tuning()
    measured = [{"aten": 0.006, "linear": 0.012}]
    ours.fastest(SQUARE, BOTH, lambda: measured[-1])
    measured.append(GOOD)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            ours.review()
    finally:
        torch.use_deterministic_algorithms(False)
    assert ours.version() == 0


def test_choices_are_of_the_number_of_threads_at_that_time(file):
    before = torch.get_num_threads()
    ours = tuning.open_tuning()
    try:
        torch.set_num_threads(1)
        assert ours.fastest(SQUARE, BOTH, lambda: {"aten": 0.012, "linear": 0.024}) == "aten"
        torch.set_num_threads(2)
        assert ours.fastest(SQUARE, BOTH, lambda: GOOD) == "linear"
    finally:
        torch.set_num_threads(before)
    assert len(json.loads(file.read_text())) == 2


def test_a_plan_in_use_takes_over_what_was_replaced(file, reviewed, monkeypatch):
    """Before the next step, with what a backward under way still needs."""
    fast = ["aten"]

    def measure(sizes, *others):
        seconds = 2 * sizes[0] * sizes[1] * sizes[2] / 8e10
        return {name: seconds * (1 if name == fast[0] else 2) for name in product.FORMULATIONS}

    monkeypatch.setattr(product, "_measure", measure)
    network, x = _Network(), torch.randn(256, 256)
    exact = copy.deepcopy(network).double()
    exact(x.double()).backward()
    wanted = exact.up.weight.grad
    wrapped = ORTModule(network)

    def gradient(loss):
        network.zero_grad(set_to_none=True)
        loss.backward()
        return network.up.weight.grad.double()

    torch.testing.assert_close(gradient(wrapped(x)), wanted, rtol=1e-4, atol=1e-7)
    fast[0] = list(product.FORMULATIONS)[-1]
    under_way = wrapped(x)
    for _ in range(20):
        torch.testing.assert_close(gradient(wrapped(x)), wanted, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(gradient(under_way), wanted, rtol=1e-4, atol=1e-7)
    taken = {entry["taken"] for entry in json.loads(file.read_text())[timings.machine()].values()}
    assert taken == {fast[0]}


def test_the_table_answers_for_every_kind_and_is_safe_for_unknown_ones(monkeypatch):
    for kind in (*expected._table(), "other DEFAULT"):
        monkeypatch.setattr(expected, "kind", lambda kind=kind: kind)
        assert expected.expected(SQUARE, tuning.formulations()) in tuning.formulations()
        assert expected.expected(SQUARE, ["aten"]) == "aten"
        assert 1e9 < expected.expected_rate() < 5e11
    assert expected.expected(SQUARE, tuning.formulations()) == "aten"


def test_parts_of_a_classifiers_scores_are_products_of_their_own(monkeypatch):
    """ATen's reads all of the weight for a few rows again and again, which small products do not show."""
    table = {"2": {"NTN": [[[512, 768, 4096], "aten"]], "NTw": [[[512, 768, 4096], "linear"]]}}
    monkeypatch.setattr(expected, "_known", lambda: {"products": table})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    names = ("aten", "packed", "linear")
    assert expected.expected("512x768x4096 NTN", names) == "aten"
    assert expected.expected("512x768x4096 NTw + bias", names) == "linear"
    del table["2"]["NTw"]
    assert expected.expected("512x768x4096 NTw + bias", names) == "aten"


@pytest.mark.parametrize("family, generation", [(25, "Zen 4"), (26, "Zen 5")])
def test_generations_of_one_name_are_told_apart(family, generation, cpuinfo, monkeypatch):
    """A Zen 4 takes what is fast on a Zen 4; and a file that both write to holds the times of each."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    text = "vendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nflags\t\t: avx512f\n"
    cpuinfo(text.format("AuthenticAMD", family))
    assert expected.kind() == f"amd {generation} AVX512" and expected.kind() in expected._table()
    assert timings.machine().startswith(f"AMD EPYC {generation}, ")
    cpuinfo(text.format("GenuineIntel", family))
    assert expected.kind() == "intel AVX512"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_a_process_that_measures_can_measure(file):
    """Whoever holds the lock in the parent is not there in the child."""
    ours = tuning.open_tuning()
    begun, go_on = threading.Event(), threading.Event()

    def measure():
        begun.set()
        go_on.wait(60)
        return TIMES

    thread = threading.Thread(target=ours.fastest, args=(NAME, BOTH, measure))
    thread.start()
    begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if ours.fastest("64x256x496 NTN", BOTH, lambda: TIMES) == "linear" else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go_on.set()
    thread.join()
    assert status == 0
