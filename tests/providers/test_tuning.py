"""Products in the formulation that was measured to be the fastest: chosen, kept in a file, no reason to fail."""

from __future__ import annotations

import itertools
import json
import multiprocessing

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from ontrain import OptionError
from ontrain.cli.app import app
from ontrain.providers import get_provider
from ontrain.providers.torch import tuning
from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering import product
from ontrain.providers.torch.plan import plan_memory
from ontrain.providers.torch.settings import Settings
from ontrain.training import ORTTrainer, optim

NAME = "64x256x512 NTN + bias"
BOTH = ("aten", "linear")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path))
    return tmp_path / "products.json"


@pytest.fixture
def clock(monkeypatch):
    """Times by formulation; measuring would only show how busy the machine is. Lists what was measured."""
    times, asked = {"aten": 2.0, "linear": 1.0}, []

    def measure(*asked_for):
        asked.append(asked_for)
        return dict(times)

    monkeypatch.setattr(product, "_measure", measure)
    return times, asked


# The choice


def test_the_fastest_is_taken_and_measured_once(file):
    asked = []

    def measure(linear):
        asked.append(linear)
        return {"aten": 2.0, "linear": linear}

    first = tuning.open_tuning()
    assert [first.fastest(NAME, BOTH, lambda: measure(1.0)) for _ in range(2)] == ["linear"] * 2
    assert tuning.open_tuning().fastest(NAME, BOTH, lambda: measure(1.0)) == "linear"  # another process, from the file
    assert first.fastest("64x64x64 NNN", BOTH, lambda: measure(1.99)) == "aten"  # hardly a gain
    assert asked == [1.0, 1.99]


def test_another_machine_measures_anew(file, monkeypatch):
    tuning.open_tuning().fastest(NAME, BOTH, lambda: {"aten": 2.0, "linear": 1.0})
    monkeypatch.setattr(tuning, "_machine", lambda: "another")
    assert tuning.open_tuning().fastest(NAME, BOTH, lambda: {"aten": 1.0, "linear": 2.0}) == "aten"
    assert len(json.loads(file.read_text())) == 2


def test_of_those_that_are_about_as_fast_the_first_is_taken():
    assert tuning.choice(NAME, {"aten": 2.0, "packed": 1.04, "linear": 1.0}) == "packed"
    assert tuning.choice(NAME, {"aten": 2.0, "packed": 1.06, "linear": 1.0}) == "linear"
    assert tuning.choice(NAME, {"aten": 1.04, "packed": 1.01, "linear": 1.0}) == "aten"


def test_a_large_result_is_written_to_planned_memory_for_a_little_time():
    assert tuning.choice("1024x768x3072 NTN", {"aten": 2.0, "packed": 1.2, "linear": 1.0}) == "packed"
    assert tuning.choice("1024x768x3072 NTN", {"aten": 2.0, "packed": 1.3, "linear": 1.0}) == "linear"
    assert tuning.choice("1024x3072x768 NTN", {"aten": 2.0, "packed": 1.2, "linear": 1.0}) == "linear"


def test_of_two_that_measure_at_once_the_first_to_write_decides_for_both(file):
    late = tuning.open_tuning()
    early = tuning.open_tuning()
    assert early.fastest(NAME, BOTH, lambda: {"aten": 2.0, "linear": 1.0}) == "linear"
    assert late.fastest(NAME, BOTH, lambda: {"aten": 1.0, "linear": 2.0}) == "linear"


def test_times_of_other_formulations_are_as_if_there_were_none(file):
    """Of an older version, or of a build that had fewer."""
    tuning.open_tuning().fastest(NAME, BOTH, lambda: {"aten": 2.0, "linear": 1.0})
    three = {"aten": 3.0, "packed": 1.0, "linear": 2.0}
    assert [tuning.open_tuning().fastest(NAME, three, lambda: dict(three)) for _ in range(2)] == ["packed"] * 2
    assert json.loads(file.read_text()) == {tuning._machine(): {NAME: three}}


def _settle(folder, number, results):
    mine = tuning.Tuning(folder / "products.json")
    times = {"aten": 2.0, "linear": 1.0} if number % 2 else {"aten": 1.0, "linear": 2.0}
    results.put([mine.fastest(f"{k}x16x16 NNN", BOTH, lambda: times) for k in range(20)])


def test_processes_agree_and_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_settle, args=(tmp_path, number, results)) for number in range(4)]
    for one in processes:
        one.start()
    chosen = [results.get(timeout=60) for _ in processes]
    for one in processes:
        one.join()
    assert all(one == chosen[0] for one in chosen)
    (known,) = tuning.read_timings(tmp_path / "products.json").values()
    assert len(known) == 20


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[" * 100_000, '{"a": 3}', '{"MACHINE": {"NAME": {"aten": "x", "linear": 1}}}',
     '{"MACHINE": {"NAME": {"linear": 1.0}}}', '{"MACHINE": {"a product": {"aten": 1.0}}}',
     '{"MACHINE": {"NAME": {"aten": NaN, "linear": -1.0}}}'],
)  # fmt: skip
def test_a_torn_or_foreign_file_is_as_if_it_were_not_there(file, content):
    file.write_text(content.replace("MACHINE", tuning._machine()).replace("NAME", NAME))
    assert tuning.open_tuning().fastest(NAME, BOTH, lambda: {"aten": 2.0, "linear": 1.0}) == "linear"
    assert list(json.loads(file.read_text())[tuning._machine()]) == [NAME]


def test_what_cannot_be_kept_is_not_chosen_and_that_is_said_once(tmp_path, monkeypatch, caplog):
    """Another process could not know of it, and would round differently."""
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path / "a file"))
    mine = tuning.open_tuning()
    assert [mine.fastest(name, BOTH, lambda: {"aten": 2.0, "linear": 1.0}) for name in (NAME, "64x64x64 NNN")] == [
        "aten"
    ] * 2
    (said,) = caplog.records
    assert "set ONTRAIN_CACHE_DIR" in said.getMessage()


# The formulations


class _Always:
    def __init__(self, name):
        self.name, self.asked = name, []

    def fastest(self, name, names, measure):
        self.asked.append(name)
        return self.name


def _matrix(order, *size):
    down, across = size if order in "Nn" else size[::-1]
    made = torch.randn(down, across + 5 * order.islower())[:, :across]
    return made if order in "Nn" else made.t()


def _multiplied(name, x, w, out, bias=None, before=None):
    """What `multiply` computes, and into `out`."""
    always = _Always(name)
    e = Emitter(torch.device("cpu"), settings=Settings(tuning=always))
    held = [e.constant(one) if one is not None else None for one in (x, w, out, bias)]
    there = held[2] if before is out else e.constant(before) if before is not None else None
    product.multiply(e, product.Factors(*held, there))
    memory = torch.empty(plan_memory(e.program, []), dtype=torch.uint8)
    (code,) = codes([e.program])
    code.bind(Binder(memory).resolve)([])
    return always.asked


_CASES = [
    (name, "".join(orders), adds, None)
    for name, orders, adds in itertools.product(
        product.FORMULATIONS, itertools.product("NTn", repeat=3), ("", "bias", "result", "other")
    )
] + [
    (name, orders, adds, 1 << 12)
    for name in ("linear", "packed") for orders in ("NTN", "NNn", "TNT") for adds in ("", "bias", "result", "other")
]  # fmt: skip


@pytest.mark.parametrize(("name", "orders", "adds", "block"), _CASES)
def test_every_formulation_is_the_same_product(name, orders, adds, block, monkeypatch):
    monkeypatch.setattr(product, "_WORTH", 0)
    if block is not None:
        monkeypatch.setattr(product, "_BLOCK", block)
    rows, inner, columns = 37, 83, 101
    x, w, out = _matrix(orders[0], rows, inner), _matrix(orders[1], inner, columns), _matrix(orders[2], rows, columns)
    bias = torch.randn(columns) if adds == "bias" else None
    before = out if adds == "result" else torch.randn(rows, columns) if adds == "other" else None
    added = bias if bias is not None else before if before is not None else torch.zeros(())
    wanted = x.double() @ w.double() + added.double()
    _multiplied(name, x, w, out, bias, before)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "sizes", [(768, 3072, 3072), (3072, 3072, 3072), (160, 768, 30522), (30522, 160, 768), (160, 30522, 768)]
)
def test_no_large_matrix_is_given_to_onednn(sizes):
    rows, inner, columns = sizes
    e = Emitter(torch.device("cpu"))
    whole = product.Factors(e.new((rows, inner)), e.new((inner, columns)), e.new((rows, columns)))
    blocks = product._blocks(e, whole)
    matrices = [one for block in blocks for one in (block.x, block.w, block.out)]
    assert max(4 * one.meta.numel() for one in matrices) <= 1.01 * product._BLOCK
    work = sum(2 * block.sizes[0] * block.sizes[1] * block.sizes[2] for block in blocks)
    assert work == 2 * rows * inner * columns  # each part once


@pytest.mark.skipif("linear" not in product.FORMULATIONS, reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("order", ["N", "T", "n", "t"])
def test_the_kernel_for_linear_layers_is_given_no_gaps(order):
    """With gaps in the second factor oneDNN is a thousand times slower."""
    e = Emitter(torch.device("cpu"))
    x, w, out = (e.constant(one) for one in (_matrix("N", 64, 32), _matrix(order, 32, 48), _matrix("N", 64, 48)))
    product.FORMULATIONS["linear"](e, product.Factors(x, w, out))
    given = e.program[-1].args[1]
    assert sorted(given.meta.stride()) in ([1, 32], [1, 48])


def test_products_of_nearly_the_same_size_share_a_measurement(monkeypatch):
    asked = {
        _multiplied("aten", torch.ones(rows, 768), torch.ones(768, 768), torch.ones(rows, 768))[0]
        for rows in (513, 600, 640)
    }
    assert asked == {"640x768x768 NNN"}


@pytest.mark.parametrize("size", [(8, 8, 8), (1 << 12, 8, 1 << 12)])
def test_small_and_thin_products_are_not_measured(size):
    rows, inner, columns = size
    assert not _multiplied("linear", torch.ones(rows, inner), torch.ones(inner, columns), torch.ones(rows, columns))


def test_double_precision_is_not_measured():
    x = torch.ones(512, 512, dtype=torch.float64)
    assert not _multiplied("linear", x, x, torch.empty_like(x))


@pytest.mark.parametrize(("orders", "adds"), [("NTN", " + bias"), ("TNN", " + result"), ("ntn", "")])
def test_measuring_gives_a_time_for_each(orders, adds):
    times = product._measure((64, 256, 512), orders, adds)
    assert set(times) == set(product.FORMULATIONS)
    assert all(0 < one < 60 for one in times.values())


def test_measuring_minds_no_defaults_of_the_users():
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        assert all(0 < one < 60 for one in product._measure((64, 256, 512), "TNN", " + bias").values())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


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
        assert bool(clock[1]) == tune
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
    tuning.open_tuning().fastest(NAME, BOTH, lambda: {"aten": 2.0, "linear": 1.0})
    shown = CliRunner().invoke(app, ["products"])
    assert shown.exit_code == 0 and "64x256x512 NTN + bias" in shown.output and "100%" in shown.output
    found = json.loads(CliRunner().invoke(app, ["products", "--json"]).output)
    assert found["machines"] == json.loads(file.read_text())
