"""Operators and whole steps planned for a GPU and run on fake tensors: calls find their operands there, none waits."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ontrain.autodiff import ADJOINT, build_backward
from ontrain.graph import rebuild
from ontrain.optim import StepKind
from ontrain.passes.rows import bucket
from ontrain.session import TrainingSession, TrainingTask
from ontrain.session.plans import make_plan
from ontrain.training import ORTTrainer, optim
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES
from tests.providers.bodies import with_outputs
from tests.providers.torch.fake_cuda import fake_device


def _are_made() -> bool:
    try:
        with FakeTensorMode():
            torch.empty(1, device="cuda")
    except RuntimeError:  # builds with CUDA up to torch 2.12 ask for a driver first
        return False
    return True


pytestmark = [
    pytest.mark.sampled(4),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
    pytest.mark.skipif(not _are_made(), reason="this build of torch makes no fake CUDA tensors without a driver"),
]

Batch = dict[str, torch.Tensor]


def bert() -> tuple[nn.Module, Batch]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=2, intermediate_size=128, vocab_size=5000
    )
    ids = torch.randint(0, 5000, (4, 64))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    types, mask = torch.zeros_like(ids), torch.ones_like(ids)
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "labels": labels}
    return transformers.BertForMaskedLM(config), batch


def gpt2() -> tuple[nn.Module, Batch]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=5000, n_positions=64, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    ids = torch.randint(0, 5000, (4, 64))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids.clone()}


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(8, 5)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.layers(pixels)), labels, label_smoothing=0.1)


def images() -> tuple[nn.Module, Batch]:
    return Images(), {"pixels": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, 5, (4,))}


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {"bert": bert, "gpt2": gpt2, "images": images}
PRECISIONS = {"float32": None, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


@cache
def captured(name: str) -> tuple[TrainingSession, Batch]:
    torch.manual_seed(0)
    network, batch = NETWORKS[name]()
    varying = ["batch", "sequence"] if name != "images" else ["batch", 3, 16, 16]
    description = {
        "inputs": [(key, varying[: tensor.dim()]) for key, tensor in batch.items()], "outputs": [("loss", [], True)]
    }  # fmt: skip
    trainer = ORTTrainer(copy.deepcopy(network).train(), description, optim.AdamConfig(lr=1e-3))
    return trainer.prepare(**batch)[0], batch


@pytest.fixture
def _counted(monkeypatch):
    """Fake tensors cannot be counted: a fifth of the rows have labels or are no padding."""

    def choose(counter, feeds):
        few = {name: bucket(max(1, rows // 5), rows) for name, rows in counter.rows.items()}
        return few | {name: rows for name, rows in counter.rows.items() if name.startswith("masks")}

    monkeypatch.setattr("ontrain.session.row_counts._Counter.choose", choose)


def run(name: str, precision: str, kinds: tuple[StepKind, ...], optimizer=None) -> Counter[str]:
    """Make steps of these kinds on a device that is not there; return the operators called."""
    session, batch = captured(name)
    called: Counter[str] = Counter()
    with fake_device() as device:
        state = {name: device.move(torch.as_tensor(session.state[name])) for name in session.model_tensors}
        feeds = {name: device.move(tensor) for name, tensor in batch.items()}
        with device.compiling():
            task = TrainingTask(
                session.model, loss=session.loss, optimizer=optimizer or session.optimizer,
                trainable=session.trainable, max_norm=1.0, precision=PRECISIONS[precision],
                accumulation_steps=1 if kinds == (StepKind.UPDATE,) else 2,
            )  # fmt: skip
            fake = TrainingSession(task, state, device.provider, "cuda")
            plans = [fake.plan(kind, feeds) for kind in kinds]
        hyper = {"learning_rate": 1e-3, "step": 1.0, "loss_scale": 1.0}
        for plan in plans:
            with device.running() as strict:
                outputs = plan.executable.run({**feeds, **hyper}, rng=(1, 2))
            assert {tensor.device.type for tensor in outputs.values()} == {"cuda"}
            called.update(strict.called)
    return called


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_an_operator_and_its_gradient_stay_on_the_device(sample, rng):
    if sample.op_type in ("LRN", "GridSample"):
        pytest.skip("torch's shape function indexes tensors, which asks a build of torch without CUDA for the device")
    if sample.op_type in ("CTC", "GroupedMatMul", "GroupedOuter"):
        pytest.skip("its kernel reads lengths, which a tensor that is not there has not")
    graph = SampleGraph(sample, sample.draw(rng))
    grads = graph.gradient(graph.y, graph.seeds(graph.y, rng, "dy"), graph.wrt)
    outputs = dict.fromkeys(v for v in (*graph.y, *grads) if v is not None and v.producer() is not None)
    model = with_outputs(graph, outputs) if outputs else rebuild(graph.model)
    with fake_device() as device:
        feeds = {name: device.move(torch.as_tensor(array)) for name, array in graph.feeds.items()}
        with device.compiling():
            executable = device.provider.compile(model, device.provider.create_state([]))
        with device.running():
            results = executable.run(feeds)
    assert all(result.is_cuda for result in results.values() if isinstance(result, torch.Tensor))


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_stays_on_the_device(name, precision):
    called = run(name, precision, (StepKind.UPDATE,))
    assert called["_fused_adamw_"] and not called["_local_scalar_dense"]
    assert "_scaled_dot_product_flash_attention_for_cpu" not in called


@pytest.mark.thorough
@pytest.mark.usefixtures("_counted")
def test_accumulating_steps_stay_on_the_device():
    run("gpt2", "bfloat16", (StepKind.ACCUMULATE, StepKind.ACCUMULATE_UPDATE))


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("config", [optim.LambConfig(), optim.SGDConfig(momentum=0.9)], ids=["lamb", "momentum"])
def test_other_optimizers_stay_on_the_device(config):
    network, batch = images()
    names = {"inputs": [(n, list(t.shape)) for n, t in batch.items()], "outputs": [("loss", [], True)]}
    spec = ORTTrainer(network, names, config).prepare(**batch)[0].optimizer
    run("images", "float32", (StepKind.UPDATE,), spec)


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize(
    ("name", "precision", "kernel"),
    [("gpt2", "bfloat16", "flash"), ("gpt2", "float16", "flash"), ("gpt2", "float32", "efficient")],
)
def test_attention_runs_on_a_fused_kernel(name, precision, kernel):
    called = run(name, precision, (StepKind.UPDATE,))
    assert called[f"_scaled_dot_product_{kernel}_attention"] == 2
    assert called[f"_scaled_dot_product_{kernel}_attention_backward"] == 2
    assert not called["bmm"] and not called["baddbmm"]


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_attention_of_a_padded_batch_runs_sequence_by_sequence(precision):
    called = run("bert", precision, (StepKind.UPDATE,))
    assert called["_flash_attention_forward"] == called["_flash_attention_backward"] == 2
    assert not any(called[name] for name in called if name.startswith("_scaled_dot_product")) and not called["bmm"]


@pytest.mark.usefixtures("_counted")
def test_dropout_in_single_precision_keeps_a_padded_batch_whole():
    """The kernel draws other masks of packed sequences going backward than forward."""
    called = run("bert", "float32", (StepKind.UPDATE,))
    assert called["_scaled_dot_product_efficient_attention"] == 2 and not called["bmm"]


@pytest.mark.parametrize(("precision", "kernel"), [("bfloat16", "flash"), ("float32", "efficient")])
def test_attention_of_a_batch_without_padding_takes_no_mask(precision, kernel, monkeypatch):
    def choose(counter, feeds):
        return {name: 1 if name.startswith("masks") else rows for name, rows in counter.rows.items()}

    monkeypatch.setattr("ontrain.session.row_counts._Counter.choose", choose)
    called = run("bert", precision, (StepKind.UPDATE,))
    assert called[f"_scaled_dot_product_{kernel}_attention"] == 2 and not called["bmm"]


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_attention_with_a_mask_that_is_no_padding_takes_it_along(precision, monkeypatch):
    def choose(counter, feeds):
        return {name: rows if rows == 2 else bucket(max(1, rows // 5), rows) for name, rows in counter.rows.items()}

    monkeypatch.setattr("ontrain.session.row_counts._Counter.choose", choose)
    called = run("bert", precision, (StepKind.UPDATE,))
    assert called["_scaled_dot_product_efficient_attention"] == 2
    assert called["_scaled_dot_product_efficient_attention_backward"] == 2 and not called["bmm"]


@pytest.mark.parametrize("name", ["gpt2", "images"])
def test_both_halves_of_a_module_stay_on_the_device(name):
    session, batch = captured(name)
    parameters = session.trainable
    with fake_device() as device:
        tensors = {name: device.move(torch.as_tensor(session.state[name])) for name in session.model_tensors}
        feeds = {name: device.move(tensor) for name, tensor in batch.items()}
        signature = tuple((name, tuple(tensor.shape)) for name, tensor in batch.items())
        with device.compiling():
            memory = device.provider.capabilities.module_memory(tensors)
            plan = make_plan(
                session.model, signature, memory.compile,
                build=lambda model: build_backward(model, ["loss"], parameters),
            )  # fmt: skip
        with device.running() as strict, torch.no_grad():
            outputs, tape = plan.executable.forward(feeds, seed=3)
            gradients = plan.executable.backward(tape, {f"loss{ADJOINT}": outputs["loss"]})
        assert set(gradients) == set(parameters) and {tensor.device.type for tensor in gradients.values()} == {"cuda"}
        assert strict.called


def test_an_operand_that_was_left_on_the_cpu_is_found():
    """The oracle itself: what a GPU would refuse fails here."""
    with fake_device() as device, device.running():
        x = torch.empty(3, device="cuda")
        torch.add(x, torch.tensor(2.0))
        for wrong in (
            lambda: torch.add(x, torch.ones(3)),
            lambda: torch.clamp(x, torch.tensor(0.0)),
            lambda: torch.where(x > 0, x, torch.tensor(0.0)),
            lambda: torch.index_select(x, 0, torch.zeros(1, dtype=torch.int64)),
            lambda: x.copy_(torch.tensor(1.0)),
            lambda: x.sum().item(),
        ):
            with pytest.raises((AssertionError, RuntimeError)):
                wrong()
