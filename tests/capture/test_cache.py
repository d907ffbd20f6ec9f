"""A captured graph is found again by another process if nothing has changed, and never otherwise."""

import copy
import functools
import os
import shutil
import subprocess
import sys
import textwrap
import types
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from ontrain import OptionError
from ontrain.capture import capture, module_capture as capturing
from ontrain.capture.cache import cache as caching, folder as folders, open_cache
from ontrain.capture.export import quiet
from ontrain.graph import to_text
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients

pytestmark = pytest.mark.sampled(4)

SCALE = 2.0


def times(x):
    return x * SCALE


class Net(nn.Module):
    """A little of everything that a graph's file has to hold: ties, buffers that change, floats, dropout, a branch."""

    def __init__(self, width=8, eps=1e-12):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.norm = nn.BatchNorm1d(width, eps=eps)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(width, 11)
        self.head.weight = self.embed.weight
        self.limit, self.options = 6, {"scales": [1, 2.5]}
        self.shift = functools.partial(torch.add, other=1.5)

    def forward(self, ids, labels, bias=None):
        x = self.norm(self.embed(ids).transpose(1, 2)).transpose(1, 2)
        if ids.shape[1] > self.limit:
            x = x[:, : self.limit]
        x = times(self.shift(self.dropout(x))) * self.options["scales"][0]
        logits = self.head(x).mean(1)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits, "name": "net", "none": None}


IDS = torch.tensor([[1, 5, 3, 9], [7, 7, 4, 10], [0, 2, 2, 6]])
LABELS = torch.tensor([1, 0, 10])


@pytest.fixture(autouse=True)
def where(tmp_path, monkeypatch):
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "captures"


@pytest.fixture
def exports(monkeypatch):
    """How often torch.export was run."""
    seen = []
    real = capturing.export

    def counted(*args, **options):
        seen.append(1)
        return real(*args, **options)

    monkeypatch.setattr(capturing, "export", counted)
    return seen


def ask(module, *tensors, **kwargs):
    tensors = tensors or (IDS, LABELS)
    dynamic = [{0: "batch", 1: "length"} if t.ndim == 2 else {0: "batch"} for t in tensors]
    return capture(module, tensors, kwargs, dynamic=dynamic)


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """A folder with the entry of a Net."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONTRAIN_CACHE_DIR", str(folder))
        ask(Net())
    return folder / "captures"


@pytest.fixture
def filled(answer, where, exports):
    """Fill the cache, and see that it answers."""
    shutil.copytree(answer, where)
    ask(Net())
    assert not exports


def test_a_graph_comes_back_as_it_was(exports):
    torch.manual_seed(1)
    first, again = ask(Net()), ask(Net())
    assert len(exports) == 1 and again.seconds["export"] == 0.0
    assert to_text(again.model) == to_text(first.model)
    for name in ("input_names", "output_names", "names", "unused", "training", "specialised", "output_spec", "aliases"):
        assert getattr(again, name) == getattr(first, name), name
    assert list(again.parameters) == list(first.parameters) and list(again.buffers) == list(first.buffers)
    floats = [a.value for node in again.model.graph for a in node.attributes.values() if a.name == "epsilon"]
    assert floats == [1e-12], "not rounded to single precision"
    for shapes in ({"ids": (3, 4), "labels": (3,)}, {"ids": (3, 7), "labels": (3,)}, {"ids": (3, 4), "labels": (2,)}):
        assert again.guards.violated(shapes) == first.guards.violated(shapes)


def test_a_trained_module_is_the_same_with_and_without(exports, monkeypatch):
    model = Net()
    runs = []
    for cached in (False, True, True):
        monkeypatch.setenv("ONTRAIN_CACHE", str(int(cached)))
        torch.manual_seed(2)
        module = ORTModule(copy.deepcopy(model))
        out = module(IDS, LABELS)
        out["loss"].backward()
        runs.append((module, out["loss"]))
    assert len(exports) == 2, "the third was found"
    for module, loss in runs[1:]:
        assert torch.equal(loss, runs[0][1])
        assert_same_gradients(module, runs[0][0], rtol=0, atol=0)
        for mine, want in zip(module.buffers(), runs[0][0].buffers(), strict=True):
            assert torch.equal(mine, want)


def test_each_branch_on_a_size_has_an_entry(exports, where):
    long = IDS.repeat(1, 2)
    for _ in range(2):
        for ids in (IDS, long):
            assert ask(Net(), ids, LABELS).guards.violated({"ids": tuple(ids.shape), "labels": (3,)}) is None
    assert len(exports) == 2 and len(list(where.iterdir())) == 2


def test_other_sizes_are_answered_by_the_same_entry(exports):
    ask(Net())
    ask(Net(), IDS[:2, :3], LABELS[:2])
    assert len(exports) == 1


class Other(Net):
    pass


def _set(name, value):
    def change(module):
        target = module
        *path, last = name.split(".")
        for part in path:
            target = getattr(target, part)
        setattr(target, last, value)

    return change


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        _set("limit", 5), _set("options", {"scales": [1.0, 2.5]}), _set("norm.eps", 1e-11), _set("dropout.p", 0.5),
        _set("head.weight", nn.Parameter(torch.zeros(11, 8))), _set("norm.training", False),
        _set("shift", functools.partial(torch.add, other=1.25)), _set("shift", torch.neg),
        _set("dropout", nn.Dropout1d(0.25)), lambda m: m.head.weight.requires_grad_(False), lambda m: m.eval(),
        lambda m: m.double(), lambda m: m.register_buffer("extra", torch.zeros(1)),
        lambda m: m.register_buffer("embed_scale", None), lambda m: setattr(m, "__class__", Other),
    ],
)  # fmt: skip
def test_a_changed_module_is_captured_anew(change, filled, exports):
    model = Net()
    change(model)
    ask(model)
    assert len(exports) == 1


@pytest.mark.parametrize(
    "changed",
    [
        ("tests.capture.test_cache.SCALE", 3.0), ("tests.capture.test_cache.times", lambda x: x + x + x),
        ("torch.nn.functional.cross_entropy", lambda x, y: nn.functional.nll_loss(x.log_softmax(-1), y) + 1),
        ("tests.capture.test_cache.Net.forward", lambda self, ids, labels, bias=None: {"loss": self.head.weight.sum()}),
        ("torch.__version__", "2.0.0"), ("sys.version", "4.0"),
    ],
)  # fmt: skip
def test_what_was_replaced_in_memory_is_noticed(changed, filled, exports, monkeypatch):
    monkeypatch.setattr(*changed)
    ask(Net())
    assert len(exports) == 1


@dataclass(frozen=True, slots=True)
class Limits:
    longest: int
    scales: tuple[float, ...] = (1.0,)


class Limited(nn.Linear):
    def __init__(self, limits):
        super().__init__(4, 4)
        self.limits = limits

    def forward(self, x):
        return super().forward(x)[:, : self.limits.longest] * self.limits.scales[0]


def test_an_object_with_slots_is_compared_by_what_they_hold(exports):
    x = torch.randn(3, 4)
    for count, limits in enumerate((Limits(2), Limits(3), Limits(3, (2.0,))), 1):
        for _ in range(2):
            ask(Limited(limits), x)
            assert len(exports) == count


def test_a_trainer_of_a_described_module_finds_the_graph_of_the_one_before(exports):
    described = {"inputs": [("x", ["n", 4]), ("y", ["n", 4])], "outputs": [("loss", [], True), ("output", ["n", 4])]}
    x, y = torch.randn(2, 3, 4)
    losses = []
    for _ in range(2):
        torch.manual_seed(3)
        trainer = ORTTrainer(
            nn.Linear(4, 4), described, optim.SGDConfig(lr=0.1), nn.functional.mse_loss, {"device": {"id": "cpu"}}
        )
        losses.append([trainer.train_step(x, y)[0] for _ in range(2)])
        assert len(exports) == 1
    assert losses[0] == losses[1]


def test_another_call_is_captured_anew(filled, exports):
    calls = [
        lambda: ask(Net(), IDS.int(), LABELS), lambda: ask(Net(), bias=True), lambda: capture(Net(), (IDS, LABELS)),
        lambda: capture(Net(), (IDS, LABELS), output_names=["loss"], dynamic=[{0: "batch", 1: "length"}, {0: "batch"}]),
    ]  # fmt: skip
    for count, call in enumerate(calls, 1):
        call()
        assert len(exports) == count
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ask(Net())
    assert len(exports) == len(calls) + 1


class Strided(nn.Module):
    def forward(self, x):
        return x * (2 if x.is_contiguous() else 3) + x.stride(0)


def test_an_input_that_lies_otherwise_in_memory_has_an_entry_of_its_own(exports):
    for count, x in enumerate((torch.randn(6, 6), torch.randn(6, 6).T), 1):
        for _ in range(2):
            torch.testing.assert_close(ORTModule(Strided())(x), Strided()(x))
            assert len(exports) == count


def made_here():
    class Local(Net):
        pass

    return Local()


def with_tensor():
    model = Net()
    model.mask = torch.ones(3)
    return model


def with_hook():
    model = Net()
    model.head.register_forward_hook(lambda *_: None)
    return model


def with_object():
    model = Net()
    model.lock = __import__("threading").Lock()
    return model


@pytest.mark.parametrize("make", [made_here, with_tensor, with_hook, with_object])
def test_what_cannot_be_compared_is_not_cached(make, exports, where):
    for _ in range(2):
        ask(make())
    assert len(exports) == 2 and not where.exists()


def _cut(file):
    file.write_bytes(file.read_bytes()[:-20])


def _flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [_cut, _flip, lambda file: file.write_bytes(b"")])
def test_a_torn_or_altered_entry_is_written_anew(harm, exports, where):
    ask(Net())
    (file,) = where.iterdir()
    harm(file)
    ask(Net())
    assert len(exports) == 2
    ask(Net())
    assert len(exports) == 2


def test_a_file_written_after_it_was_loaded_is_not_trusted(filled, exports, monkeypatch):
    monkeypatch.setattr(caching, "_LOADED", 0.0)
    ask(Net())
    assert len(exports) == 1


def test_another_users_entry_is_not_used(filled, exports, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    ask(Net())
    assert len(exports) == 1


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, exports):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path / "file"))
    ask(Net())
    ask(Net())
    assert len(exports) == 2


def test_the_entries_unused_for_longest_go_first(where):
    folder = folders.Folder(where, 3000)
    for i in range(4):
        folder.write(f"key{i}", "a", bytes(900))
        file = where / f"key{i}.a.capture"
        if file.exists():
            os.utime(file, (1000 + i, 1000 + i))
        if i == 1:
            folder.used(where / "key0.a.capture")
    assert sorted(file.name for file in where.iterdir()) == ["key0.a.capture", "key2.a.capture", "key3.a.capture"]


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("ONTRAIN_CACHE_DIR")
    assert open_cache() is None, "off unless asked for"
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "upstream"))
    assert open_cache().path == tmp_path / "upstream" / "captures"
    monkeypatch.setenv("ONTRAIN_CACHE", "0")
    assert open_cache() is None
    monkeypatch.delenv("ORTMODULE_CACHE_DIR")
    monkeypatch.setenv("ONTRAIN_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_cache().path == tmp_path / "xdg" / "ontrain" / "captures"
    monkeypatch.setenv("ONTRAIN_CACHE", "yes")
    with pytest.raises(OptionError, match="ONTRAIN_CACHE is 'yes'"):
        open_cache()


_SCRIPT = """
    import sys, torch
    from torch import nn
    from ontrain.capture import module_capture as capturing
    from ontrain.training.ortmodule import ORTModule
    import layers

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = layers.Layer()
        def forward(self, x):
            return self.inner(x).square().mean()

    real = capturing.export
    capturing.export = lambda *a, **k: (print("exported"), real(*a, **k))[1]
    torch.manual_seed(0)
    model = ORTModule(Model())
    loss = model(torch.ones(3, 4))
    loss.backward()
    print("loss", loss.item(), "dynamo" if "torch._dynamo" in sys.modules else "no dynamo")
"""


def test_another_process_finds_it_and_an_edited_file_is_noticed(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(_SCRIPT))
    layer = """
        import torch
        from torch import nn
        import {other}
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)
            def forward(self, x):
                return self.linear(x) if x.shape[0] < 100 else {other}.wide(x)
    """
    (tmp_path / "layers.py").write_text(textwrap.dedent(layer.format(other="other")))
    (tmp_path / "other.py").write_text("def wide(x):\n    return x\n")
    root = Path(__file__).parents[2]

    def run():
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.split()

    first, second = run(), run()
    assert first[0] == "exported" and second[0] == "loss"
    assert first[2] == second[1]
    # The branch is not taken at these sizes: only its file tells.
    (tmp_path / "other.py").write_text("def wide(x):\n    return x + 1\n")
    assert run()[0] == "exported"


class _Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda h: h * 2, lambda h: h - 1, (x,))


def test_looking_for_a_branch_leaves_eagers_own_alone():
    """What dynamo once skips it skips for good: eager's torch.cond would fail from then on."""
    x = torch.ones(3)
    assert torch.equal(ORTModule(_Branches())(x), x * 2)
    assert torch.equal(_Branches()(-x), -x - 1)


def test_a_module_that_imports_a_package_when_it_is_looked_at_is_left_alone(exports, monkeypatch):
    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            asks = sys._getframe(1).f_code.co_filename
            raise AttributeError(name) if asks.endswith("inspect.py") else ImportError("Lazy import failed")

    monkeypatch.setitem(sys.modules, "not_yet_imported", Lazy("not_yet_imported"))
    module = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    torch.testing.assert_close(ORTModule(copy.deepcopy(module))(x), module(x))


@pytest.mark.parametrize("own", [False, True])
def test_the_hook_of_a_failed_export_is_taken_back_and_the_users_stays(own):
    """Up to torch 2.12 an export that fails leaves it, and nothing would come from the cache from then on."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    handle = register_module_buffer_registration_hook(lambda module, name, buffer: None) if own else None
    before = dict(hooks)
    with suppress(ZeroDivisionError), quiet():
        register_module_buffer_registration_hook(lambda module, name, buffer: None)
        raise ZeroDivisionError
    assert dict(hooks) == before
    if handle is not None:
        handle.remove()
