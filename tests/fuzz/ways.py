"""Every way by which a stranger's file comes in, each as a function of a generator and a folder."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from ontrain import InferenceSession, NonFiniteLossError
from ontrain.capture import capture, load_onnx
from ontrain.providers.torch.tuning import Tuning
from ontrain.session.check import check_file
from ontrain.training import ORTTrainer, artifacts, checkpoint, optim
from ontrain.training.api import CheckpointState
from tests.capture.onnx_file.models import File
from tests.fuzz.damage import damaged, hostile_feeds
from tests.fuzz.files import make
from tests.fuzz.handmade import HANDMADE

__all__ = ["WAYS", "run"]

Rng = np.random.Generator
_CPU = {"device": {"id": "cpu"}, "utils": {"seed": 1}}
_MOST = 1 << 20
"""Elements of an input up to which one of the stated size is fed."""


class WrongError(Exception):
    """Two providers give different numbers."""


def run(way: str, number: int, seed: int, folder: Path) -> str:
    """Judge a case and return what it came to; raises what the user would meet."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng([seed, number])
    _special(folder)
    return WAYS[way](rng, folder)


def _special(folder: Path) -> None:
    """What external data may name: things that no file should be read from."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "outside").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "data.bin").write_bytes(bytes(4096))
    (folder / "short.bin").write_bytes(bytes(3))


def _case(rng: Rng, folder: Path) -> tuple[File, Path]:
    path = folder / "model.onnx"
    if rng.random() < 0.2:
        file = File(
            onnx.ModelProto(), {"inputs": [("x", [2])], "outputs": [("y", [], True)]}, {"x": np.ones(2, np.float32)}
        )
        kind = list(HANDMADE)[int(rng.integers(len(HANDMADE)))]
        content = HANDMADE[kind](folder)
        path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
        return file, path
    file = make(rng)
    path.write_bytes(damaged(file.proto, rng))
    return file, path


def _feeds(session: Any, file: File, rng: Rng) -> dict[str, np.ndarray]:
    """What the file's inputs ask for: the sample's where it fits, else numbers of that type and size."""
    feeds = {}
    for entry in session.get_inputs():
        if entry.name in file.batch and rng.random() < 0.9:
            feeds[entry.name] = file.batch[entry.name]
            continue
        dims = [d if isinstance(d, int) else 2 for d in entry.shape or []]
        kind = entry.type.removeprefix("tensor(").removesuffix(")")
        name = {"float": "float32", "double": "float64"}.get(kind, kind)
        size = np.prod(dims, dtype=float)
        dims = dims if 0 <= size <= _MOST and all(d >= 0 for d in dims) else [2] * min(len(dims), 4)
        try:
            feeds[entry.name] = rng.integers(0, 3, dims).astype(np.dtype(name))
        except TypeError:
            feeds[entry.name] = np.zeros(dims, np.float32)
    return hostile_feeds(feeds, rng) if rng.random() < 0.4 else feeds


def _infer(provider: str | None) -> Callable[[Rng, Path], str]:
    def way(rng: Rng, folder: Path) -> str:
        file, path = _case(rng, folder)
        if provider is None:
            options = onnxruntime.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            if rng.random() < 0.5:
                options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = InferenceSession(path, options)
        else:
            session = InferenceSession(path, providers=[provider])
        feeds = _feeds(session, file, rng)
        results = session.run(None, feeds)
        for array in results:
            np.asarray(array)
        return "right"

    return way


def _trainer(file: File, path: Path) -> ORTTrainer:
    return ORTTrainer(path, file.desc, optim.AdamConfig(lr=0.01), file.loss, _CPU)


def train(rng: Rng, folder: Path) -> str:
    file, path = _case(rng, folder)
    trainer = _trainer(file, path)
    batch = [hostile_feeds({"x": array}, rng)["x"] if rng.random() < 0.2 else array for array in file.batch.values()]
    try:
        trainer.train_step(*batch)
        trainer.eval_step(*batch)
    except NonFiniteLossError:
        pass
    return "right"


def load(rng: Rng, folder: Path) -> str:
    _, path = _case(rng, folder)
    load_onnx(path if rng.random() < 0.7 else path.read_bytes())
    return "right"


def artifact(rng: Rng, folder: Path) -> str:
    file, path = _case(rng, folder)
    out = folder / "artifacts"
    out.mkdir()
    kind = None if "MSE" not in str(file.loss) else artifacts.LossType.MSELoss
    if "Cross" in str(file.loss):
        kind = artifacts.LossType.CrossEntropyLoss
    artifacts.generate_artifacts(
        str(path), loss=kind, optimizer=artifacts.OptimType.AdamW, artifact_directory=out,
        nominal_checkpoint=bool(rng.random() < 0.3),
    )  # fmt: skip
    return "right"


def check(rng: Rng, folder: Path) -> str:
    _, path = _case(rng, folder)
    provider = ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"][
        int(rng.integers(3))
    ]
    report = check_file(path, provider=provider)
    return "refused in its report" if report.problems else "right"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


_DESC = {"inputs": [("x", ["n", 4]), ("label", ["n"])], "outputs": [("loss", [], True), ("y", ["n", 3])]}
_kept: list[ORTTrainer] = []


def _stepped() -> ORTTrainer:
    if not _kept:
        torch.manual_seed(0)
        trainer = ORTTrainer(Net(), _DESC, optim.AdamConfig(lr=0.01), nn.functional.cross_entropy, _CPU)
        trainer.train_step(torch.ones(2, 4), torch.tensor([0, 1]))
        _kept.append(trainer)
    return _kept[0]


def flipped(content: bytes, rng: Rng) -> bytes:
    """The bytes with some of them changed, cut off, or doubled."""
    data, kind = bytearray(content), int(rng.integers(6))
    if not data:
        return b"\0"
    if kind < 3:
        for at in rng.integers(len(data), size=int(rng.integers(1, 12))):
            data[int(at)] ^= 1 << int(rng.integers(8))
    elif kind == 3:
        del data[int(rng.integers(len(data))) :]
    elif kind == 4:
        at = int(rng.integers(min(len(data), 512)))
        data[at : at + 8] = int(rng.choice([2**63 - 1, 2**40, 2**31, 0, 100])).to_bytes(8, "little")
    else:
        data[int(rng.integers(len(data))) :] = bytes(data[: int(rng.integers(1, 300))])
    return bytes(data)


def _replaced(path: Path, rng: Rng) -> None:
    """Something stands at the place of a file that is no file, or a giant one."""
    kind = int(rng.integers(6))
    path.unlink()
    if kind == 0:
        path.symlink_to("/dev/zero")
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        os.mkfifo(path.parent / "pipe")
        path.symlink_to("pipe")
    elif kind == 4:
        path.symlink_to(path.name)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)  # sparse


def folder_checkpoint(rng: Rng, folder: Path) -> str:
    trainer, place = _stepped(), folder / "run"
    trainer.save_checkpoint(place, {"position": 3})
    path = sorted(place.iterdir())[int(rng.integers(3))] if rng.random() < 0.8 else place / "manifest.json"
    if rng.random() < 0.3:
        _replaced(path, rng)
    else:
        path.write_bytes(
            _json_changed(path.read_bytes(), rng) if path.suffix == ".json" else flipped(path.read_bytes(), rng)
        )
    if rng.random() < 0.7 and path.name != "manifest.json" and path.is_file():
        _manifest(place)  # who writes a hostile checkpoint writes its hashes, too
    trainer.load_checkpoint(place)
    trainer.train_step(torch.ones(2, 4), torch.tensor([0, 1]))
    return "right"


def _manifest(place: Path) -> None:
    from ontrain.checkpoint.manifest import manifest_of

    files = [path for path in sorted(place.iterdir()) if path.name != "manifest.json" and path.stat().st_size < 1 << 30]
    (place / "manifest.json").write_text(manifest_of(files))


def _json_changed(content: bytes, rng: Rng) -> bytes:
    """A value somewhere in a JSON text is another, or the bytes are."""
    if rng.random() < 0.3:
        return flipped(content, rng)
    document = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])

    walk(document)
    where, key = places[int(rng.integers(len(places)))]
    odd = [None, -1, 2**70, "x", [], {}, [[]], 1e400, True, {"a": 1}, "../../etc/passwd", "\0", [1, "a"], -0.0]
    where[key] = odd[int(rng.integers(len(odd)))]
    return ("[" * 100_000).encode() if rng.random() < 0.05 else json.dumps(document).encode()


def device_checkpoint(rng: Rng, folder: Path) -> str:
    path, state = folder / "checkpoint", _device_state()
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=bool(rng.random() < 0.5))
    if rng.random() < 0.2:
        _replaced(path, rng)
    elif rng.random() < 0.5:
        path.write_bytes(flipped(path.read_bytes(), rng))
    else:
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        inner = json.loads(header["__metadata__"]["state"])
        inner["nominal"] = bool(rng.random() < 0.5)
        changed = _json_changed(json.dumps(inner).encode(), rng).decode(errors="replace")
        header["__metadata__"] = {"format": "ontrain.checkpoint/1", "state": changed}
        if rng.random() < 0.3 and inner["nominal"]:
            inner["parameters"] = {"w": ["float32", [2**40]]}
            header["__metadata__"]["state"] = json.dumps(inner)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
    state = CheckpointState.load_checkpoint(path)
    for _, parameter in state.parameters:
        np.asarray(parameter.data)
    return "right"


def _device_state() -> CheckpointState:
    from ontrain.training.api.checkpoint_file import Content

    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    return CheckpointState(Content({"w": w, "b": w[0].copy()}, ["w"], {"w.exp_avg": w * 0}, 3, 0.01, {"epoch": 1}))


def upstream_checkpoint(rng: Rng, folder: Path) -> str:
    trainer, path = _stepped(), folder / "ORT_checkpoint.ort.pt"
    state = checkpoint.experimental_state_dict(trainer)
    names = ("up.weight", "up.bias", "down.weight", "down.bias")
    plain = {n: state[n] for n in names} | {f"Moment_1_{n}": state[f"Moment_1_{n}"] for n in names}
    plain |= {f"Moment_2_{n}": state[f"Moment_2_{n}"] for n in names} | {"Step": torch.tensor([1])}
    kind = int(rng.integers(4))
    if kind == 0:
        moments = {n: {k: plain[f"{k}_{n}"].numpy() for k in ("Moment_1", "Moment_2")} for n in names}
        weights = {"full_precision": {n: plain[n].numpy() for n in names}}
        nested = {"model": weights, "trainer_options": {"world_rank": 0}, "optimizer": moments}
        with h5py.File(path, "w") as file:
            _groups(file, nested)
    elif kind == 1:
        torch.save(plain, path, _use_new_zipfile_serialization=False)
    else:
        torch.save({"model": plain, "epoch": 3} if kind == 2 else plain, path)
    if rng.random() < 0.15:
        _replaced(path, rng)
    else:
        path.write_bytes(flipped(path.read_bytes(), rng))
    checkpoint.aggregate_checkpoints([path])
    checkpoint.experimental_load_checkpoint(trainer, folder)
    return "right"


def _groups(group: Any, content: dict[str, Any]) -> None:
    for key, value in content.items():
        if isinstance(value, dict):
            _groups(group.create_group(key), value)
        else:
            group[key] = value


def cache_entry(rng: Rng, folder: Path) -> str:
    os.environ["ONTRAIN_CACHE_DIR"] = str(folder / "cache")
    module, x = Net(), torch.ones(2, 4)
    capture(module, (x,))
    entries = list((folder / "cache" / "captures").glob("*.capture"))
    for path in entries:
        if rng.random() < 0.4:
            _replaced(path, rng)
            continue
        data = path.read_bytes()
        magic, content = data.partition(b"\n")[0] + b"\n", data.partition(b"\n")[2][32:]
        length = int.from_bytes(content[:8], "little")
        kind = int(rng.integers(3))
        if kind == 0:
            content = flipped(content, rng)
        elif kind == 1:
            head = _json_changed(content[8 : 8 + length], rng)
            content = len(head).to_bytes(8, "little") + head + content[8 + length :]
        else:
            proto = onnx.ModelProto()
            proto.ParseFromString(content[8 + length :])
            content = content[: 8 + length] + damaged(proto, rng)
        path.write_bytes(magic + hashlib.sha256(content).digest() + content)
    del os.environ["ONTRAIN_CACHE_DIR"]
    os.environ["ONTRAIN_CACHE_DIR"] = str(folder / "cache")
    captured = capture(module, (x,))
    del os.environ["ONTRAIN_CACHE_DIR"]
    assert captured.model.graph.outputs
    return "right" if entries else "no entry"


def products(rng: Rng, folder: Path) -> str:
    path = folder / "products.json"
    times = {"aten": 0.1, "linear": 0.2}
    tuning = Tuning(path)
    tuning.fastest("64x64x64 NN", times, lambda: times)
    if rng.random() < 0.4:
        _replaced(path, rng)
    else:
        path.write_bytes(_json_changed(path.read_bytes(), rng))
    again = Tuning(path)
    assert again.fastest("64x64x64 NN", times, lambda: times) in times
    return "right"


WAYS: dict[str, Callable[[Rng, Path], str]] = {
    "infer on onnxruntime": _infer(None),
    "infer on torch": _infer("TorchExecutionProvider"),
    "infer on reference": _infer("ReferenceExecutionProvider"),
    "train a file": train,
    "load_onnx": load,
    "generate_artifacts": artifact,
    "ontrain check": check,
    "checkpoint folder": folder_checkpoint,
    "CheckpointState": device_checkpoint,
    ".ort.pt": upstream_checkpoint,
    "capture cache": cache_entry,
    "products file": products,
}
