"""What the recipes share: options out of a dataclass, files, numbered checkpoints, the journal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))

from harness.checkpoints import eager_state, existing, newest, prune, restore_eager_state
from harness.files import DataError, digest, read_json, writable, written
from harness.journal import Journal, read_rows
from harness.options import command, flag, within
from harness.terminal import ended
from typer.testing import CliRunner

from ontrain.errors import CheckpointError, NonFiniteLossError


@dataclass(frozen=True)
class Options:
    """Do something with a folder.

    And more that is not for the help.
    """

    folder: Annotated[Path, flag("Where.", argument=True)]
    size: Annotated[int, flag("How much.", min=1)] = 3
    warm: Annotated[bool, flag("Whether.", "--warm", "--hot")] = False
    inner: int = 7

    def __post_init__(self) -> None:
        within(self, ("size", 1, 10))


def run(main: Callable[[Options], Any], *words: str) -> Any:
    app = typer.Typer()
    app.command()(command(Options, main))
    return CliRunner().invoke(app, words)


def test_fields_are_flags_of_their_names_and_kinds() -> None:
    seen: list[Options] = []
    assert run(seen.append, "here", "--size", "4", "--hot").exit_code == 0
    assert seen == [Options(Path("here"), 4, True)]
    assert run(seen.append, "here", "--inner", "1").exit_code == 2  # no flag describes it
    assert run(seen.append, "here", "--size", "0").exit_code == 2
    said = run(seen.append, "--help").output
    assert "How much." in said and "Do something with a folder." in said and "not for the help" not in said


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (DataError("the data is bad"), 2, "error: the data is bad"),
        (CheckpointError("it is torn"), 2, "error: it is torn"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (NonFiniteLossError("the loss is nan"), 1, "error: the loss is nan"),
        (KeyboardInterrupt(), 130, "give the same command again"),
    ],
)
def test_what_goes_wrong_is_a_message_and_an_exit_code(raised: BaseException, code: int, said: str) -> None:
    def main(options: Options) -> None:
        raise raised

    done = run(main, "here")
    assert (done.exit_code, "Traceback" in done.output) == (code, False)
    assert said in done.output


def test_an_interrupted_run_says_the_flag_that_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end, ended(again="--resume goes on"):
        raise KeyboardInterrupt
    assert (end.value.exit_code, capsys.readouterr().err) == (130, "\ninterrupted; --resume goes on\n")


def test_a_number_out_of_range_is_named_by_its_flag() -> None:
    with pytest.raises(DataError, match="--size 11 is not between 1 and 10"):
        Options(Path(), size=11)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), written(tmp_path / "a" / "file") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert not list((tmp_path / "a").iterdir())
    with written(tmp_path / "file") as file:
        file.write(b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "it is empty"), (b"{", "is no JSON"), (b"\xff", "byte 0 cannot be decoded"), (None, "cannot be read")],
)
def test_a_file_that_is_no_json_is_named_as_it_was_called(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=said) as refused:
        read_json(tmp_path / "a.json", "--config a.json")
    assert str(refused.value).startswith("--config a.json")


def test_a_folder_is_tried_before_it_is_needed(tmp_path: Path) -> None:
    writable(tmp_path / "new" / "run")
    assert not list((tmp_path / "new" / "run").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="--output .*file/run cannot be written"):
        writable(tmp_path / "file" / "run", "--output")


def test_a_digest_keeps_the_borders_of_its_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", 1, b"x") == digest("a", 1, b"x")


def folders(folder: Path, *numbers: int) -> list[Path]:
    paths = [folder / f"ckpt_{number}" for number in numbers]
    for path in paths:
        path.mkdir()
    return paths


def test_checkpoints_are_ordered_by_number_and_the_one_just_written_stays(tmp_path: Path) -> None:
    paths = folders(tmp_path, 10, 9, 100)
    (tmp_path / "ckpt_7").touch()  # no folder
    (tmp_path / "ckpt_8.part").mkdir()
    assert list(existing(tmp_path, "ckpt_")) == [9, 10, 100]
    prune(tmp_path, "ckpt_", 2, paths[1])  # a run that went on before the damaged 100
    assert list(existing(tmp_path, "ckpt_")) == [9, 100]
    assert existing(tmp_path / "nowhere", "ckpt_") == {}


def test_the_newest_whole_checkpoint_is_taken_and_damaged_ones_are_told(tmp_path: Path) -> None:
    paths, told = folders(tmp_path, 3, 2, 1), []

    def load(path: Path) -> str:
        if path.name != "ckpt_2":
            raise CheckpointError(f"{path.name} is torn")
        return "state"

    assert newest(paths, load, lambda path, error: told.append(path.name)) == (paths[1], "state")
    assert told == ["ckpt_3"]
    with pytest.raises(CheckpointError, match="ckpt_1 is torn"):
        newest([paths[0], paths[2]], load, lambda path, error: None)


def test_an_eager_run_goes_on_where_its_state_was_taken() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.ones(4, 3)

    def step() -> list[torch.Tensor]:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    step()
    state = {
        kind: {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for kind, tensors in eager_state(model, optimizer).items()
    }
    expected = step()
    step()
    restore_eager_state(model, optimizer, state, "folder")
    assert all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))
    with pytest.raises(CheckpointError, match="folder holds no state of this model and engine"):
        restore_eager_state(torch.nn.Linear(2, 2), optimizer, state, "folder")


def test_a_journal_goes_on_behind_the_rows_that_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"step": n}) + "\n" for n in (1, 2, 3)) + '{"step": 4, "lo')
    journal = Journal(path, lambda row: row["step"] <= 2)
    journal.add({"step": 3, "loss": 0.5})
    assert journal.rows() == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 0.5}]
    journal.close()
    silent = Journal(path, lambda row: False, writes=False)
    silent.add({"step": 9})
    silent.close()
    assert len(read_rows(path)) == 3


SPECIAL: dict[str, Callable[[Path], None]] = {
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    SPECIAL[kind](path)
    readers: tuple[Callable[[Path], Any], ...] = (read_json, read_rows, lambda path: Journal(path, lambda row: True))
    for read in readers:
        with pytest.raises(DataError, match="is no regular file"):
            read(path)
