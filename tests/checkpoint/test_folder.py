"""A checkpoint is whole or refused, never half; what stood there before is used then; nothing else is ever replaced."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ontrain import CheckpointError, OptionError
from ontrain.checkpoint import FORMAT, begin_checkpoint, has_checkpoint, read_checkpoint, write_checkpoint

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")


def write(folder: Path, number: int, keep: int = 1, **meta: Any) -> None:
    tensors = {"model": {"weight": torch.full((3, 4), float(number))}, "optimizer": {"m": torch.full((5,), -number)}}
    write_checkpoint(folder, tensors, {"number": number, **meta}, keep)


def number_in(folder: Path) -> int:
    return int(read_checkpoint(folder)[1]["number"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE = {
    "a flipped bit": flip,
    "the last byte lost": lambda content: content[:-1],
    "half of it": lambda content: content[: len(content) // 2],
    "nothing in it": lambda content: b"",
    "something behind it": lambda content: content + b"\0",
    "zeros": lambda content: bytes(len(content)),
    "no file": None,
}


def damage(path: Path, how: str) -> None:
    change = DAMAGE[how]
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))


def test_tensors_and_plain_values_come_back_as_they_were(tmp_path):
    tensors = {
        "a": {"x": torch.randn(3, 4), "half": torch.randn(2).half(), "scalar": torch.tensor(7), "none": torch.empty(0)},
        "b": {"turned": torch.randn(3, 4).t(), "part": torch.randn(10)[2:5], "brain": torch.randn(2).bfloat16()},
    }
    meta = {"n": 1, "list": [1, "two", None, 2.5], "deep": {"x": {"y": True}}}
    write_checkpoint(tmp_path / "new" / "ck", tensors, meta)
    groups, said = read_checkpoint(tmp_path / "new" / "ck")
    assert said == meta and {name: set(group) for name, group in groups.items()} == {
        name: set(group) for name, group in tensors.items()
    }
    for name, group in tensors.items():
        for key, tensor in group.items():
            assert groups[name][key].dtype == tensor.dtype and torch.equal(groups[name][key], tensor)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_are_kept_in_the_order_of_writing(tmp_path, keep):
    for number in (50, 60, 10, 20, 30):
        write(tmp_path / "ck", number, keep)
    wanted = [30, 20, 10, 60][:keep]
    assert names(tmp_path) == sorted(["ck", *(f"ck~{age}" for age in range(1, keep))])
    assert [number_in(tmp_path / ("ck" if not age else f"ck~{age}")) for age in range(keep)] == wanted
    write(tmp_path / "ck", 70)
    assert names(tmp_path) == ["ck"]


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(tmp_path, name, how):
    folder = tmp_path / "ck"
    for number in (1, 2):
        write(folder, number, keep=2)
    damage(folder / name, how)
    with pytest.warns(UserWarning, match=name.replace(".", r"\.") + r"(.|\n)*ck~1"):
        tensors, meta = read_checkpoint(folder)
    assert meta["number"] == 1 and torch.equal(tensors["model"]["weight"], torch.ones(3, 4))
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        shutil.rmtree(tmp_path / "ck~1")
        read_checkpoint(folder)


def test_no_bit_of_the_manifest_may_change(tmp_path):
    folder = tmp_path / "ck"
    write(folder, 1)
    path = folder / "manifest.json"
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in (0, 5):  # 5 turns letters from small to large
            changed = content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
            path.write_bytes(changed)
            with pytest.raises(CheckpointError, match="manifest"):
                read_checkpoint(folder)
    path.write_bytes(content)
    assert number_in(folder) == 1


def test_a_manifest_that_goes_on_for_ever_is_not_read(tmp_path):
    write(tmp_path / "ck", 1)
    os.truncate(tmp_path / "ck" / "manifest.json", (256 << 20) + 1)  # with a hole: it takes no room on the disk
    with pytest.raises(CheckpointError, match=rf"it has {(256 << 20) + 1} bytes, at most {256 << 20} are read"):
        read_checkpoint(tmp_path / "ck")


def test_where_none_is_whole_all_are_named(tmp_path):
    for number in (1, 2):
        write(tmp_path / "ck", number, keep=2)
    damage(tmp_path / "ck" / "state.json", "a flipped bit")
    damage(tmp_path / "ck~1" / "model.safetensors", "half of it")
    with pytest.raises(CheckpointError, match=r"ck/state.json(.|\n)*ck~1/model.safetensors"):
        read_checkpoint(tmp_path / "ck")
    # The damaged ones are no obstacle to the next.
    write(tmp_path / "ck", 3, keep=2)
    assert number_in(tmp_path / "ck") == 3 and names(tmp_path) == ["ck", "ck~1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is forked for each moment")
def test_a_write_that_dies_at_any_moment_leaves_the_old_or_the_new_one(tmp_path):
    command = [sys.executable, "-m", "tests.checkpoint.crashes", str(tmp_path), "1", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    # A folder made, two texts, two renames, four files and a folder removed; and two renames more with older ones.
    few, more = map(int, done.stdout.split())
    assert few >= 10 and more >= few + 2


def test_all_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    write(tmp_path / "ck", 1)
    order: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        order.append(f"{Path(source).name} -> {Path(target).name}")
        replace(source, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not tell which file a descriptor is of")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write(tmp_path / "ck", 2)
    renames = order.index("ck -> ck~1"), order.index(".ck.partial -> ck")
    assert set(order[: renames[0]]) == {*FILES, ".ck.partial"} and order[renames[0] - 1] == ".ck.partial"
    assert renames[0] < renames[1] < len(order) - 1 and order[-1] == tmp_path.name


@pytest.mark.parametrize(
    "meta", [{"x": torch.ones(1)}, {1: "one"}, {"x": {2.0: 1}}, {"x": [{None: 1}]}, {"x": {1, 2}}, {"x": b"y"}]
)
def test_what_json_would_lose_or_change_is_refused_and_the_old_one_stays(tmp_path, meta):
    write(tmp_path / "ck", 1)
    with pytest.raises(CheckpointError, match="plain JSON"):
        write_checkpoint(tmp_path / "ck", {}, meta)
    assert number_in(tmp_path / "ck") == 1 and names(tmp_path) == ["ck"]


@pytest.mark.parametrize("keep", [0, -1, True, 2.0, "3"])
def test_keep_is_a_number_from_one(tmp_path, keep):
    with pytest.raises(OptionError, match="keep is"):
        write(tmp_path / "ck", 1, keep)
    assert names(tmp_path) == []


def test_nothing_but_a_checkpoint_is_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "mine.safetensors").write_bytes(b"")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    write(tmp_path / "older", 1)
    (tmp_path / "link to a checkpoint").symlink_to(tmp_path / "older")  # it would take the place of the link alone
    (tmp_path / "older~1").mkdir()
    (tmp_path / "older~1" / "chapter.txt").write_text("years")
    for place in ("thesis", "weights", "file", "link", "link to a checkpoint", "older", "thesis/.."):
        with pytest.raises(CheckpointError, match="is no checkpoint"):
            write(tmp_path / place, 2, keep=3)
    with pytest.raises(CheckpointError, match="cannot be a checkpoint"):
        write(Path("/"), 1)
    with pytest.raises(CheckpointError, match="is a file(.|\n)*aggregate_checkpoints"):
        read_checkpoint(tmp_path / "file")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years" and number_in(tmp_path / "older") == 1
    # An empty folder is nobody's, and a note in a checkpoint does not make it another thing.
    (tmp_path / "empty").mkdir()
    for number in (1, 2):
        write(tmp_path / "empty", number, keep=2)
        (tmp_path / "empty" / "note.txt").write_text("the good one")
    assert number_in(tmp_path / "empty") == 2 and number_in(tmp_path / "empty~1") == 1


def test_a_disk_that_is_full_leaves_the_old_one_and_nothing_else(tmp_path):
    resource = pytest.importorskip("resource")
    write(tmp_path / "ck", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
            write_checkpoint(tmp_path / "ck", {"model": {"w": torch.zeros(10_000)}}, {"number": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert number_in(tmp_path / "ck") == 1 and names(tmp_path) == ["ck"]


def test_what_a_dead_run_left_beside_is_cleared_away(tmp_path):
    begin_checkpoint(tmp_path / "ck")
    (tmp_path / ".ck.partial" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "ck")
    assert not has_checkpoint(tmp_path / "ck")
    write(tmp_path / "ck", 1)
    assert names(tmp_path) == ["ck"] and set(names(tmp_path / "ck")) == set(FILES)
    (tmp_path / "ck").rename(tmp_path / "ck~1")  # a run that died between two renames
    assert has_checkpoint(tmp_path / "ck") and number_in(tmp_path / "ck") == 1


def signed(content: dict[str, Any]) -> str:
    """A manifest that has its own hash, as anybody can make one."""
    body = json.dumps(content, indent=1, sort_keys=True)
    return json.dumps({**content, "sha256": hashlib.sha256(body.encode()).hexdigest()}, indent=1, sort_keys=True)


def listed(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_a_manifest_that_points_elsewhere_reaches_nothing(tmp_path):
    write(tmp_path / "ck", 1)
    outside = tmp_path / "secret.safetensors"
    shutil.copy(tmp_path / "ck" / "model.safetensors", outside)
    for name in (str(outside), "../secret.safetensors"):
        files = {name: listed(outside), "state.json": listed(tmp_path / "ck" / "state.json")}
        (tmp_path / "ck" / "manifest.json").write_text(signed({"format": FORMAT, "files": files}))
        with pytest.raises(CheckpointError, match="lacks the file"):
            read_checkpoint(tmp_path / "ck")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"format": FORMAT + 1, "files": {}}, "has layout"),
        ({"format": FORMAT}, "lists no files"),
        ({"format": FORMAT, "files": {"x": 3}}, "lists no files"),
        ({"format": FORMAT, "files": {}}, "no JSON object"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(tmp_path, content, says):
    write(tmp_path / "ck", 1)
    (tmp_path / "ck" / "manifest.json").write_text(signed(content))
    with pytest.raises(CheckpointError, match=says):
        read_checkpoint(tmp_path / "ck")


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_file_with_the_right_hash_and_nonsense_in_it_is_refused_by_name(tmp_path, name):
    write(tmp_path / "ck", 1)
    path = tmp_path / "ck" / name
    path.write_bytes(b"\xff" * 64)
    files = {name: listed(tmp_path / "ck" / name) for name in FILES if name != "manifest.json"}
    (tmp_path / "ck" / "manifest.json").write_text(signed({"format": FORMAT, "files": files}))
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(tmp_path / "ck")
