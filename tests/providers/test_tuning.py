"""Products in the formulation that was measured to be the fastest: chosen, kept in a file, no reason to fail."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from ontrain import OptionError
from ontrain.cli.app import app
from ontrain.providers import get_provider
from ontrain.providers.torch import tuning
from ontrain.training import ORTTrainer, optim

SIZES = (64, 256, 512)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path))
    return tmp_path / "products.json"


@pytest.fixture
def clock(monkeypatch):
    """Times by formulation; measuring would only show how busy the machine is. Lists what was measured."""
    times, asked = {"aten": 2.0, "onednn": 1.0}, []

    def measure(*product):
        asked.append(product)
        return dict(times)

    monkeypatch.setattr(tuning, "_measure", measure)
    return times, asked


def test_the_fastest_is_taken_and_measured_once(file, clock):
    times, asked = clock
    first = tuning.open_tuning()
    assert [first.fastest(SIZES, True, True) for _ in range(2)] == ["onednn"] * 2
    assert tuning.open_tuning().fastest(SIZES, True, True) == "onednn"  # another process, from the file
    assert len(asked) == 1
    times["onednn"] = 1.99
    assert first.fastest(SIZES, False, True) == "aten"  # another product, and hardly a gain
    assert len(asked) == 2


def test_another_machine_measures_anew(file, clock, monkeypatch):
    tuning.open_tuning().fastest(SIZES, True, False)
    monkeypatch.setattr(tuning, "_machine", lambda: "another")
    tuning.open_tuning().fastest(SIZES, True, False)
    assert len(clock[1]) == 2 and len(json.loads(file.read_text())) == 2


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[" * 100_000, '{"a": 3}', '{"MACHINE": {"NAME": {"aten": "x", "onednn": 1}}}',
     '{"MACHINE": {"NAME": {"aten": 1.0}}}', '{"MACHINE": {"NAME": {"aten": NaN, "onednn": -1.0}}}'],
)  # fmt: skip
def test_a_torn_or_foreign_file_is_as_if_it_were_not_there(file, clock, content):
    name = f"{'x'.join(map(str, SIZES))} NT + bias"
    file.write_text(content.replace("MACHINE", tuning._machine()).replace("NAME", name))
    assert tuning.open_tuning().fastest(SIZES, True, True) == "onednn"
    assert list(json.loads(file.read_text())[tuning._machine()]) == [name]


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path, clock, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path / "a file"))
    assert tuning.open_tuning().fastest(SIZES, True, True) == "onednn"


def test_small_products_are_not_measured(file, clock):
    assert tuning.open_tuning().fastest((8, 8, 8), True, True) == "aten"
    assert not clock[1] and not file.exists()


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", tuning.FORMULATIONS)
def test_every_formulation_is_the_same_product(name, by_column, bias):
    x, b = torch.randn(7, 33), torch.randn(19) if bias else None
    w = torch.randn(19, 33).t() if by_column else torch.randn(33, 19)
    wanted = x.double() @ w.double() + (b.double() if b is not None else 0)
    torch.testing.assert_close(tuning.FORMULATIONS[name](x, w, b), wanted.float(), rtol=1e-5, atol=1e-5)


def test_measuring_gives_a_time_for_each(file):
    times = tuning._measure(SIZES, True, True)
    assert set(times) == {"aten", *tuning.FORMULATIONS} and all(0 < one < 60 for one in times.values())


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(256, 512), nn.Linear(512, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.down(torch.relu(self.up(x))) ** 2).mean()


def test_training_tuned_gives_the_same_losses(file, clock):
    x, curves = torch.randn(64, 256), []
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


def test_it_is_off_unless_asked_for(monkeypatch):
    monkeypatch.delenv("ONTRAIN_TUNE", raising=False)
    assert get_provider("TorchExecutionProvider").settings.tuning is None
    monkeypatch.setenv("ONTRAIN_TUNE", "1")
    assert get_provider("TorchExecutionProvider").settings.tuning is not None
    monkeypatch.setenv("ONTRAIN_TUNE", "yes")
    with pytest.raises(OptionError, match="ONTRAIN_TUNE"):
        get_provider("TorchExecutionProvider")


def test_the_command_shows_what_was_measured(file, clock):
    tuning.open_tuning().fastest(SIZES, True, True)
    shown = CliRunner().invoke(app, ["products"])
    assert shown.exit_code == 0 and "64x256x512 NT + bias" in shown.output and "100%" in shown.output
    found = json.loads(CliRunner().invoke(app, ["products", "--json"]).output)
    assert found["machines"] == json.loads(file.read_text())
