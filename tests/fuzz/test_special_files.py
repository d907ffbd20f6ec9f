"""What is no file, or has no end, is refused by name wherever a stranger chose what stands at a path."""

from __future__ import annotations

import os
import struct
import zipfile

import h5py
import numpy as np
import pytest
import torch

from ontrain import CheckpointError, GraphError, InputError, OntrainError, OptionError
from ontrain.capture import load_onnx
from ontrain.capture.cache.folder import Folder
from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.disk import read_file
from ontrain.passes.recompute.request import parse_clusters
from ontrain.providers.torch.tuning import Tuning
from ontrain.training import checkpoint
from ontrain.training.inspection.folder import ORDER, read_order, read_statistics


def _zero(path):
    path.symlink_to("/dev/zero")


def _fifo(path):
    os.mkfifo(path)


def _linked_fifo(path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _folder(path):
    path.mkdir()


def _circle(path):
    path.symlink_to(path.name)


def _giant(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room


ODD = pytest.mark.parametrize("place", [_zero, _fifo, _linked_fifo, _folder, _circle, _giant])


@ODD
def test_read_file_reads_files_only(tmp_path, place):
    place(tmp_path / "it")
    with pytest.raises(OSError, match=r"regular|directory|symbolic|at most 9"):
        read_file(tmp_path / "it", 9)


def test_read_file_reads_up_to_its_limit(tmp_path):
    (tmp_path / "it").write_bytes(b"123456789")
    assert read_file(tmp_path / "it", 9) == b"123456789"
    with pytest.raises(OSError, match="it has 9 bytes, at most 8 are read"):
        read_file(tmp_path / "it", 8)


@ODD
@pytest.mark.parametrize("name", ["manifest.json", "state.json", "model.safetensors"])
def test_a_checkpoint_with_something_else_in_it_is_damaged(tmp_path, place, name):
    write_checkpoint(tmp_path / "run", {"model": {"w": torch.ones(3)}}, {"step": 1})
    (tmp_path / "run" / name).unlink()
    place(tmp_path / "run" / name)
    with pytest.raises(CheckpointError, match=name.partition(".")[0]):
        read_checkpoint(tmp_path / "run")


@ODD
def test_a_cache_entry_that_is_none_is_passed_over(tmp_path, place):
    folder = Folder(tmp_path, 1 << 20)
    folder.write("key", "sound", b"content")
    place(tmp_path / "key.odd.capture")
    assert [data for _, data in folder.entries("key")] == [b"content"]


@ODD
def test_a_products_file_that_is_none_is_as_if_it_were_not_there(tmp_path, place):
    place(tmp_path / "products.json")
    times = {"aten": 0.2, "linear": 0.1}
    assert Tuning(tmp_path / "products.json").fastest("64x64x64 NN", times, lambda: times) in times


@ODD
def test_a_file_of_clusters_that_is_none_is_refused(tmp_path, place):
    place(tmp_path / "clusters.json")
    with pytest.raises(OptionError, match="cannot be read"):
        parse_clusters(str(tmp_path / "clusters.json"), "memory_optimizer_config")


@ODD
def test_a_model_that_is_no_file_is_refused(tmp_path, place):
    place(tmp_path / "m.onnx")
    with pytest.raises(OntrainError, match=r"no model file|cannot be read"):
        load_onnx(tmp_path / "m.onnx")


@ODD
def test_an_upstream_checkpoint_that_is_no_file_is_refused(tmp_path, place):
    place(tmp_path / "run.ort.pt")
    with pytest.raises(CheckpointError):
        checkpoint.aggregate_checkpoints([tmp_path / "run.ort.pt"])


@pytest.mark.parametrize("old", [False, True])
def test_every_flipped_byte_of_an_upstream_checkpoint_is_right_or_refused(tmp_path, old, rng):
    path = tmp_path / "run.ort.pt"
    torch.save({"w": torch.ones(3), "Step": torch.tensor([1])}, path, _use_new_zipfile_serialization=not old)
    content = path.read_bytes()
    refused = 0
    for at in range(0, min(len(content), 1200), 2):
        data = bytearray(content)
        data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            checkpoint.aggregate_checkpoints([path])
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_an_archive_that_grows_when_it_is_unpacked_is_refused(tmp_path):
    path = tmp_path / "run.ort.pt"
    torch.save({"w": torch.zeros(1 << 20)}, tmp_path / "plain")
    with zipfile.ZipFile(tmp_path / "plain") as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    with pytest.raises(CheckpointError, match="larger than the file"):
        checkpoint.aggregate_checkpoints([path])


def test_a_tensor_that_is_larger_than_its_file_is_refused(tmp_path):
    path = tmp_path / "run.ort.pt"
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, path)
    with pytest.raises(CheckpointError, match="'w'.*has the shape"):
        checkpoint.aggregate_checkpoints([path])


def test_damaged_hdf5_is_refused(tmp_path, rng):
    path = tmp_path / "run.ort.pt"
    with h5py.File(path, "w") as file:
        file["model/full_precision/w"] = np.ones(3, np.float32)
    content = path.read_bytes()
    for at in rng.integers(8, len(content), 60):
        path.write_bytes(content[: int(at)] + struct.pack("<q", 2**62) + content[int(at) + 8 :])
        try:
            checkpoint.aggregate_checkpoints([path])
        except CheckpointError:
            continue


def test_external_data_larger_than_memory_is_not_read(tmp_path):
    from tests.fuzz.handmade import HANDMADE

    _giant(tmp_path / "data.bin")
    proto = HANDMADE["external_data.bin"](tmp_path)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(GraphError, match="needs 8"):
        load_onnx(tmp_path / "m.onnx")


@ODD
def test_a_list_of_statistics_that_is_no_file_is_refused(tmp_path, place):
    place(tmp_path / ORDER)
    with pytest.raises(InputError, match=ORDER):
        read_order(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "missing"])
def test_statistics_are_read_from_their_folder_only(tmp_path, name):
    (tmp_path / "secret").write_text("words")
    (tmp_path / "step_1").mkdir()
    with pytest.raises(InputError, match="no file there"):
        read_statistics(tmp_path / "step_1", name)
