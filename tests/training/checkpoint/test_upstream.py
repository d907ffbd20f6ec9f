"""onnxruntime.training's files, written here as its sources lay them out, are read; what is hostile in them is not."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ontrain import CheckpointError, OptionError
from ontrain.training import checkpoint, optim
from tests.training.conftest import Net, batches, make_trainer

WORLD = 3
COUNTERS = ("Step", "Micro_Step", "Pending", "Seed", "Run_State")


def trained(steps: int, seed: int = 0, config: Any = None) -> Any:
    torch.manual_seed(seed)
    trainer = make_trainer(Net(), config or optim.AdamConfig(lr=0.01))
    trainer.prepare(*batches(1)[0])
    for batch in batches(steps):
        trainer.train_step(*batch)
    return trainer


@pytest.fixture(scope="module")
def first() -> Any:
    return trained(3)


@pytest.fixture(scope="module")
def expected(first) -> float:
    """The next loss of the run that is saved; asked of a twin, so that the run itself stays."""
    twin = trained(0, seed=1)
    twin.load_state_dict(first.state_dict())
    return float(twin.train_step(*batches(6)[5])[0])


def goes_on(trainer: Any) -> float:
    return float(trainer.train_step(*batches(6)[5])[0])


def elements(state: dict[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    """Where the elements of each parameter start and stop when all lie behind each other, as ZeRO cuts them."""
    spans, start = {}, 0
    for name, tensor in state.items():
        if not name.startswith("Moment_") and name not in COUNTERS:
            spans[name] = (start, start + tensor.numel())
            start += tensor.numel()
    return spans


def flat_parts(state: dict[str, torch.Tensor], mixed: bool) -> list[dict[str, torch.Tensor]]:
    """What each process of a ZeRO run saved: experimental_state_dict after zero_optimizer_graph_builder's views."""
    places = elements(state)
    share = -(-max(stop for _, stop in places.values()) // WORLD)
    parts: list[dict[str, torch.Tensor]] = []
    for rank in range(WORLD):
        part: dict[str, torch.Tensor] = {}
        for number, (name, (start, stop)) in enumerate(places.items()):
            low, high = (min(max(edge - start, 0), stop - start) for edge in (rank * share, (rank + 1) * share))
            whole = (low, high) == (0, stop - start)
            for kind in ("", "Moment_1_", "Moment_2_"):
                tensor, full = state[kind + name], f"{kind}model_.{name}"
                if whole or not (kind or mixed):
                    part[full] = tensor
                elif low < high:
                    part[f"{full}_view_{number + rank}"] = tensor.flatten()[low:high]
            if low < high:
                part[f"Update_Count_model_.{name}" + ("" if whole else f"_view_{number}")] = state["Step"] + 1
            if mixed:
                part[f"model_.{name}_fp16"] = state[name].half()
        parts.append(part)
    assert any("_view_" in key for part in parts for key in part)
    return parts


@pytest.mark.parametrize("mixed", [False, True])
def test_the_files_of_all_processes_are_one_run(first, expected, mixed, tmp_path):
    for rank, part in enumerate(flat_parts(checkpoint.experimental_state_dict(first), mixed)):
        beside = {"model": part, "epoch": 7, f"rank{rank}": rank}
        torch.save(beside, tmp_path / f"ORT_checkpoint.ZeRO.{rank}.{WORLD - 1}.ort.pt")
    # Another checkpoint, whose name begins alike, is another.
    torch.save({}, tmp_path / "ORT_checkpoint.ZeRO.x.ort.pt")
    second = trained(0, seed=1)
    beside = checkpoint.experimental_load_checkpoint(second, tmp_path, strict=True)
    assert beside == {"epoch": 7, "rank0": 0, "rank1": 1, "rank2": 2}
    assert goes_on(second) == expected
    files = sorted(tmp_path.glob("*.[0-9].ort.pt"))
    third = trained(0, seed=2)
    assert third.load_checkpoint(*files, strict=True) == beside
    assert goes_on(third) == expected
    weights = checkpoint.aggregate_checkpoints([str(path) for path in files])
    module = Net()
    module.load_state_dict(weights, strict=False)  # the tied weight is there once
    for name, tensor in first.state_dict()["model"]["full_precision"].items():
        assert torch.equal(module.state_dict()[name], tensor)


def test_a_missing_file_a_torn_set_and_a_mixture_are_refused(first, tmp_path):
    parts = flat_parts(checkpoint.experimental_state_dict(first), False)
    files = [tmp_path / f"ck.ZeRO.{rank}.{WORLD - 1}.ort.pt" for rank in range(WORLD)]
    for part, path in zip(parts, files, strict=True):
        torch.save({"model": part}, path)
    second = trained(0, seed=1)
    before = checkpoint.experimental_state_dict(second)
    content = files[1].read_bytes()
    files[1].unlink()
    with pytest.raises(CheckpointError, match=r"of 3 processes, there are files of ranks \[0, 2\]"):
        checkpoint.experimental_load_checkpoint(second, tmp_path, "ck")
    with pytest.raises(CheckpointError, match="elements together"):
        checkpoint.aggregate_checkpoints([files[0], files[2]])
    files[1].write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match=re.escape(files[1].name)):
        checkpoint.experimental_load_checkpoint(second, tmp_path, "ck")
    other = dict(parts[1])
    other["model_.mix.bias"] = other["model_.mix.bias"] + 1
    torch.save({"model": other}, files[1])
    with pytest.raises(CheckpointError, match=r"'model_.mix.bias' in .*ZeRO.1(.|\n)*another process"):
        checkpoint.experimental_load_checkpoint(second, tmp_path, "ck")
    after = checkpoint.experimental_state_dict(second)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def nested_parts(trainer: Any, mixed: bool) -> list[dict[str, Any]]:
    """What ORTTrainer.state_dict returned on each process from 1.8 on."""
    flat = checkpoint.experimental_state_dict(trainer)
    name = {"AdamW": "AdamOptimizer", "Lamb": "LambOptimizer"}[trainer.optim_config.spec().algorithm]
    states = []
    for rank, part in enumerate(flat_parts(flat, mixed)):
        state: dict[str, Any] = {
            "model": {"full_precision": {}},
            "optimizer": {},
            "partition_info": {},
            "trainer_options": {
                "mixed_precision": mixed, "zero_stage": 1, "world_rank": rank, "world_size": WORLD,
                "optimizer_name": name, "data_parallel_size": WORLD, "horizontal_parallel_size": 1,
            },
            "train_step_info": {"optimization_step": 3, "step": 3},
        }  # fmt: skip
        for key, tensor in part.items():
            kind = next((k for k in ("Moment_1_", "Moment_2_", "Update_Count_") if key.startswith(k)), "")
            parameter = re.sub(r"_view_\d+$", "", key.removeprefix(kind).removeprefix("model_."))
            if "_view_" in key and kind != "Update_Count_":
                shape = list(flat[parameter].shape)
                state["partition_info"][parameter] = {"original_dim": np.array(shape), "megatron_row_partition": -1}
            if kind == "Update_Count_" and name == "LambOptimizer":
                state["optimizer"]["shared_optimizer_state"] = {"Step": tensor}
            elif kind:
                state["optimizer"].setdefault(parameter, {})[kind[:-1]] = tensor
            elif not key.endswith("_fp16"):
                state["model"]["full_precision"][parameter] = tensor
        states.append(state)
    return states


def arrays(state: Any) -> Any:
    """With numpy's arrays in place of tensors, as upstream's own."""
    if isinstance(state, dict):
        return {key: arrays(value) for key, value in state.items()}
    return state.numpy() if isinstance(state, torch.Tensor) else state


def save_hdf5(group: Any, content: dict[str, Any]) -> None:
    for key, value in content.items():
        if isinstance(value, dict):
            save_hdf5(group.create_group(key), value)
        else:
            group[key] = value


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("layout", ["hdf5", "pickled"])
def test_the_later_layout_is_joined_from_files_in_any_order(first, expected, mixed, layout, tmp_path):
    files = []
    for rank, state in enumerate(nested_parts(first, mixed)):
        files.insert(0, tmp_path / f"{rank}.ort.pt")
        if layout == "hdf5":
            with h5py.File(files[0], "w-") as file:
                save_hdf5(file, state)
        else:
            torch.save({"model": arrays(state), "files": [1, 2]}, files[0])
    second = trained(0, seed=1)
    state = checkpoint.aggregate_checkpoints(files, pytorch_format=False)
    assert state["trainer_options"]["optimizer_name"] == "AdamW"
    assert state["user_dict"] == ({} if layout == "hdf5" else {"files": [1, 2]})
    second.load_state_dict(state)
    assert goes_on(second) == expected
    with pytest.raises(CheckpointError, match=r"ranks \[0, 0\]"):
        checkpoint.aggregate_checkpoints([files[2], files[2]])


def test_lambs_shared_count_is_read(tmp_path):
    first, second = trained(3, config=optim.LambConfig()), trained(0, seed=1, config=optim.LambConfig())
    files = [tmp_path / str(rank) for rank in range(WORLD)]
    for path, state in zip(files, nested_parts(first, True), strict=True):
        torch.save(state, path)
    second.load_state_dict(checkpoint.aggregate_checkpoints(files, pytorch_format=False))
    assert goes_on(second) == goes_on(first) and second.train_step_info.optimization_step == 4


def test_a_folder_of_our_own_is_aggregated_too(first, expected, tmp_path):
    first.save_checkpoint(tmp_path / "ck", {"epoch": 1})
    assert set(checkpoint.aggregate_checkpoints([tmp_path / "ck"])) == set(
        first.state_dict()["model"]["full_precision"]
    )
    second = trained(0, seed=1)
    state = checkpoint.aggregate_checkpoints([tmp_path / "ck"], pytorch_format=False)
    second.load_state_dict(state)
    assert goes_on(second) == expected and state["user_dict"] == {"epoch": 1}


@pytest.mark.parametrize("paths", [[], ["nowhere"], ["nowhere", "nothing"]])
def test_nothing_to_aggregate_says_so(paths, tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing to aggregate|no checkpoint at|cannot read"):
        checkpoint.aggregate_checkpoints([tmp_path / path for path in paths])


def hostile(path: Path, kind: str) -> None:
    with h5py.File(path, "w") as file:
        weights = file.create_group("model/full_precision")
        if kind == "another file":
            with h5py.File(path.with_name("secret"), "w") as secret:
                secret["mix.weight"] = np.ones((8, 8), np.float32)
            weights["mix.weight"] = h5py.ExternalLink("secret", "mix.weight")
        elif kind == "a loop":
            weights["mix"] = file["model"]
        elif kind == "outside":
            path.with_name("raw").write_bytes(bytes(256))
            weights.create_dataset("mix.weight", (8, 8), "f4", external=[(str(path.with_name("raw")), 0, 256)])
        elif kind == "endless":
            weights.create_dataset("mix.weight", (1 << 20, 1 << 20), "f4", chunks=(64, 64))
        elif kind == "cut":
            weights["mix.weight"] = np.ones((8, 8), np.float32)
            file["trainer_options/horizontal_parallel_size"] = 2
    if kind == "torn":
        path.write_bytes(path.read_bytes()[:300])


@pytest.mark.parametrize("kind", ["another file", "a loop", "outside", "endless", "cut", "torn"])
def test_hdf5_that_reaches_elsewhere_is_refused(kind, tmp_path):
    hostile(tmp_path / "file", kind)
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "file"))):
        checkpoint.aggregate_checkpoints([tmp_path / "file"])


@pytest.mark.parametrize("how", ["code", "objects", "an array of code"])
def test_a_pickle_that_wants_to_run_code_is_refused_by_what_it_wants(how, tmp_path):
    content: Any = Evil(tmp_path / "ran")
    if how != "code":
        content = np.array([None, 1] if how == "objects" else [content], dtype=object)
    torch.save({"model": {"w": content}}, tmp_path / "file")
    with pytest.raises(CheckpointError) as error:
        checkpoint.aggregate_checkpoints([tmp_path / "file"])
    assert not (tmp_path / "ran").exists() and str(tmp_path / "file") in str(error.value)
    assert "can still be loaded" not in str(error.value) and "\x1b" not in str(error.value)
    assert how != "code" or "it wants to call posix.mkdir" in str(error.value)


class Evil:
    """Unpickling it creates a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_what_was_pickled_into_hdf5_is_left_out_and_said(tmp_path):
    # The protocol of upstream's user_dict: pickled, as hexadecimal digits.
    pickled = torch.serialization.pickle.dumps({"evil": Evil(tmp_path / "ran")}).hex()
    with h5py.File(tmp_path / "file", "w") as file:
        save_hdf5(file, {"model": {"full_precision": {"w": np.ones(3, np.float32)}}, "user_dict": pickled})
    with pytest.warns(UserWarning, match="user_dict in .* is pickled, and was left out"):
        weights = checkpoint.aggregate_checkpoints([tmp_path / "file"])
    assert torch.equal(weights["w"], torch.ones(3)) and not (tmp_path / "ran").exists()


def test_one_file_of_upstreams_is_a_checkpoint_and_several_folders_are_none(first, expected, tmp_path):
    state = checkpoint.experimental_state_dict(first)
    counts = {f"Update_Count_{name}": state["Step"] + 1 for name in elements(state)}
    tensors = {name: value for name, value in state.items() if name not in COUNTERS}
    torch.save({"model": tensors | counts, "epoch": 3}, tmp_path / "ck.ort.pt")
    second = trained(0, seed=1)
    assert second.load_checkpoint(tmp_path / "ck.ort.pt") == {"epoch": 3}
    assert goes_on(second) == expected
    first.save_checkpoint(tmp_path / "ours", {"epoch": 4})
    for paths in ((), (tmp_path / "ours", tmp_path / "ours"), (tmp_path / "ours", tmp_path / "ck.ort.pt")):
        with pytest.raises(OptionError, match=f"{len(paths)} paths"):
            second.load_checkpoint(*paths)
