"""A head and its loss as one, some rows at a time: as eager PyTorch and as the pass left out, in less memory."""

from __future__ import annotations

import copy

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain import OptionError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]

CLASSES, ROWS = 3001, 4 * 25
CHUNKED = 3 * 3008 * 4  # bytes of the scores of three rows: 34 chunks, the last of one row


class Network(nn.Module):
    """A language model in little; `scale` multiplies the scores."""

    def __init__(self, *, bias: bool = True, tied: bool = False, scale: float = 1.0, **loss) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(CLASSES, 24), nn.Linear(24, 24)
        self.head = nn.Linear(24, CLASSES, bias=bias)
        self.scale, self.loss = scale, nn.CrossEntropyLoss(**loss)
        if tied:
            self.head.weight = self.embedding.weight

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.scale * torch.tanh(self.layer(self.embedding(ids))))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss(self.logits(ids).flatten(0, 1), labels.flatten())


class WithLogits(Network):
    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.logits(ids)
        return self.loss(logits.flatten(0, 1), labels.flatten()), logits


class LossesOfRows(Network):
    """Long sequences weigh no more than short ones: the mean is taken by sequence first."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = super().forward(ids, labels).view(labels.shape)
        return (losses.sum(1) / (labels != -100).sum(1)).mean()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids, labels = torch.randint(0, CLASSES, (2, 4, ROWS // 4))
    labels[0, :7] = -100
    return ids, labels


def make_trainer(
    network, *, logits_bytes=CHUNKED, disabled=(), outputs=("loss",), steps=1, provider=None, device="cpu", mixed=None
) -> ORTTrainer:
    shapes = {"loss": ("loss", [], True), "logits": ("logits", ["batch", "length", CLASSES])}
    names = {"inputs": [(n, ["batch", "length"]) for n in ("ids", "labels")], "outputs": [shapes[n] for n in outputs]}
    options = {
        "provider": provider or ("TorchExecutionProvider", {"logits_bytes": logits_bytes}),
        "graph_transformer": {"disabled_passes": list(disabled)},
        "batch": {"gradient_accumulation_steps": steps},
        "device": {"id": device},
        "mixed_precision": mixed or {},
    }
    return ORTTrainer(copy.deepcopy(network), names, optim.SGDConfig(lr=0.5), options=options)


def losses(trainer: ORTTrainer, *batches: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    return [float(trainer.train_step(*batch)) for batch in batches]


def eager_losses(network: nn.Module, *batches: tuple[torch.Tensor, torch.Tensor]) -> tuple[list[float], nn.Module]:
    again = copy.deepcopy(network)
    optimizer, curve = torch.optim.SGD(again.parameters(), lr=0.5), []
    for batch in batches:
        optimizer.zero_grad()
        loss = again(*batch)
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    return curve, again


def head(trainer: ORTTrainer) -> list[ir.Node]:
    return [node for node in trainer.step_model().graph if node.op_type == "LinearCrossEntropy"]


def fused(trainer: ORTTrainer) -> bool:
    return bool(head(trainer))


def same_parameters(trainer: ORTTrainer, network: nn.Module) -> None:
    parameters = trainer.state_dict(pytorch_format=True)
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(torch.as_tensor(parameters[name]), tensor, rtol=1e-6, atol=1e-6, msg=name)


def in_half(network: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Loss and parameters after a step of eager PyTorch under autocast."""
    again = copy.deepcopy(network)
    with torch.autocast("cpu", torch.bfloat16):
        loss = again(*batch)
    loss.backward()
    torch.optim.SGD(again.parameters(), lr=0.5).step()
    return loss.detach(), *(p.detach() for p in again.parameters())


def no_worse(actual, half, exact) -> None:
    """As near to single precision as eager PyTorch under autocast; roundings differ, and few elements scatter more."""
    for ours, theirs, true in zip(actual, half, exact, strict=True):
        times = 1.4 if true.numel() > 500 else 2.0
        assert torch.dist(ours, true) <= times * torch.dist(theirs, true) + 1e-6 * true.norm()


FORMS = {
    "bias": {}, "no bias": {"bias": False}, "tied": {"tied": True}, "tied without bias": {"tied": True, "bias": False},
    "sum": {"reduction": "sum", "scale": 0.01}, "another ignored label": {"ignore_index": 5},
}  # fmt: skip


@pytest.mark.parametrize("form, logits_bytes", [*((form, CHUNKED) for form in FORMS), ("bias", 1), ("tied", 1 << 30)])
def test_training_equals_eager(form, logits_bytes, batch):
    if form == "another ignored label":
        batch = (batch[0], batch[1].clamp(min=5))
    network = Network(**FORMS[form])
    trainer = make_trainer(network, logits_bytes=logits_bytes)
    curve = losses(trainer, batch, batch)
    assert fused(trainer)
    wanted, eager = eager_losses(network, batch, batch)
    assert curve == pytest.approx(wanted, rel=1e-6)
    same_parameters(trainer, eager)


@pytest.mark.parametrize("form, logits_bytes", [*((form, CHUNKED) for form in FORMS), ("bias", 1 << 30)])
def test_training_in_bfloat16_is_as_exact_as_eagers(form, logits_bytes, batch):
    if form == "another ignored label":
        batch = (batch[0], batch[1].clamp(min=5))
    network = Network(**FORMS[form])
    trainer = make_trainer(network, logits_bytes=logits_bytes, mixed={"enabled": True, "dtype": "bfloat16"})
    tensors = [trainer.train_step(*batch)]
    assert tensors[0].dtype == torch.float32
    assert [heads.inputs[0].dtype for heads in head(trainer)] == [ir.DataType.BFLOAT16]
    state = trainer.state_dict(pytorch_format=True)
    tensors += [torch.as_tensor(state[name]) for name, _ in network.named_parameters()]
    wanted, eager = eager_losses(network, batch)
    no_worse(tensors, in_half(network, batch), [torch.tensor(wanted[0]), *(p.detach() for p in eager.parameters())])


def test_training_in_bfloat16_equals_training_without_the_pass(batch):
    network = Network()
    curves = []
    for disabled in ((), ("FuseHead",)):
        trainer = make_trainer(network, disabled=disabled, mixed={"enabled": True, "dtype": "bfloat16"})
        curves.append(losses(trainer, batch, batch))
    assert curves[0] == pytest.approx(curves[1], rel=2e-3)


def test_in_float16_the_head_stays_in_single_precision(batch):
    """Its gradient is made before the loss is scaled, and would be lost."""
    trainer = make_trainer(Network(), mixed={"enabled": True, "dtype": "float16"})
    losses(trainer, batch)
    assert [heads.inputs[0].dtype for heads in head(trainer)] == [ir.DataType.FLOAT]


def test_a_module_under_autocast_has_its_head_fused(batch, monkeypatch):
    monkeypatch.setenv("ONTRAIN_LOGITS_BYTES", str(CHUNKED))
    network = Network()
    module = ORTModule(copy.deepcopy(network))
    with torch.autocast("cpu", torch.bfloat16):
        loss = module(*batch)
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    tensors = [loss.detach(), *(p.detach() for p in module.parameters())]
    wanted, eager = eager_losses(network, batch)
    no_worse(tensors, in_half(network, batch), [torch.tensor(wanted[0]), *(p.detach() for p in eager.parameters())])
    (entry,) = module._engine.entries
    (plan,) = entry.session.plans.values()
    nodes = [
        instruction.node for instruction in plan.executable.current.forward_code.program if instruction.node is not None
    ]
    assert {node.inputs[0].dtype for node in nodes if node.op_type == "LinearCrossEntropy"} == {ir.DataType.BFLOAT16}


def test_training_equals_training_without_the_pass(batch):
    network = Network()
    on, off = make_trainer(network), make_trainer(network, disabled=["FuseHead"])
    assert losses(on, batch, batch, batch) == pytest.approx(losses(off, batch, batch, batch), rel=1e-6)
    assert fused(on) and not fused(off)


def test_onnxruntime_trains_on_the_body(batch):
    network = Network()
    trainer = make_trainer(network, provider=("OnnxRuntimeExecutionProvider", {}))
    assert losses(trainer, batch, batch) == pytest.approx(eager_losses(network, batch, batch)[0], rel=1e-6)
    assert fused(trainer)


@pytest.mark.gpu
def test_a_gpu_trains_like_the_cpu(batch):
    network = Network(tied=True)
    trainer = make_trainer(copy.deepcopy(network).cuda(), device="cuda")
    curve = losses(trainer, *[tuple(tensor.cuda() for tensor in batch)] * 2)
    assert fused(trainer) and curve == pytest.approx(eager_losses(network, batch, batch)[0], rel=1e-5)


def test_a_label_whose_probability_underflows_has_a_finite_loss(batch):
    network = Network(scale=2000.0, bias=False)
    logits = network.logits(batch[0]).flatten(0, 1)
    chosen = torch.softmax(logits, 1).gather(1, batch[1].flatten().clamp(min=0)[:, None])
    assert float((chosen == 0).float().mean()) > 0.5
    (loss,), (wanted,) = losses(make_trainer(network), batch), eager_losses(network, batch)[0]
    assert loss == pytest.approx(wanted, rel=1e-6)


def test_without_any_label_the_loss_is_undefined_and_nothing_is_learnt(batch):
    network = Network()
    trainer = make_trainer(network)
    with pytest.warns(UserWarning, match="has the batch a label"):
        (loss,) = losses(trainer, (batch[0], torch.full_like(batch[1], -100)))
    assert loss != loss
    same_parameters(trainer, network)


def test_a_label_out_of_range_is_named(batch):
    bad = batch[1].clone()
    bad[2, 3] = CLASSES
    with pytest.raises(ValueError, match=f"holds label {CLASSES}"):
        losses(make_trainer(Network()), (batch[0], bad))


def test_scores_never_exist_in_full(batch):
    network = Network()
    on, off = make_trainer(network), make_trainer(network, disabled=["FuseHead"])
    planned = []
    for trainer in (on, off):
        losses(trainer, batch)
        planned.append(next(iter(trainer._run.session.plans.values())).executable.planned_bytes)
    assert planned[0] < ROWS * CLASSES * 4 < planned[1] / 2


def test_accumulated_micro_batches_equal_one_batch(batch):
    network = Network(tied=True)
    trainer = make_trainer(network, steps=2)
    halves = [(batch[0][i : i + 2], batch[1][i : i + 2]) for i in (0, 2)]
    losses(trainer, *halves)
    same_parameters(trainer, eager_losses(network, batch)[1])


LEFT_ALONE = {
    "scores that are an output": (WithLogits(), ("loss", "logits")),
    "class weights": (Network(weight=torch.rand(CLASSES)), ("loss",)),
    "a loss of each row": (LossesOfRows(reduction="none"), ("loss",)),
}


@pytest.mark.parametrize("why", LEFT_ALONE)
def test_it_is_left_alone_for(why, batch):
    network, outputs = LEFT_ALONE[why]
    trainer = make_trainer(network, outputs=outputs)
    trainer.train_step(*batch)
    assert not fused(trainer)


_SCORED_FILE = f"""<ir_version: 10, opset_import: ["" : 23]>
scored (float[rows, 24] x, int64[rows] labels) => (float loss, float[rows, {CLASSES}] log_probs)
<float[{CLASSES}, 24] weight, float[{CLASSES}] bias> {{
    scores = Gemm <transB = 1> (x, weight, bias)
    loss, log_probs = SoftmaxCrossEntropyLoss <reduction = "mean", ignore_index = -100> (scores, labels)
}}"""


def test_it_is_left_alone_where_a_file_returns_the_log_probabilities():
    head, x, labels = nn.Linear(24, CLASSES), torch.randn(ROWS, 24), torch.randint(0, CLASSES, (ROWS,))
    proto = onnx.parser.parse_model(_SCORED_FILE)
    for name, tensor in head.state_dict().items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(tensor.numpy(), name))
    names = {
        "inputs": [("x", ["rows", 24]), ("labels", ["rows"])],
        "outputs": [("loss", [], True), ("log_probs", ["rows", CLASSES])],
    }
    options = {"provider": ("TorchExecutionProvider", {"logits_bytes": CHUNKED}), "device": {"id": "cpu"}}
    trainer = ORTTrainer(proto, names, optim.SGDConfig(lr=0.5), options=options)
    loss, log_probs = trainer.train_step(x, labels)
    torch.testing.assert_close(log_probs, torch.log_softmax(head(x), 1).detach())
    torch.testing.assert_close(loss, nn.functional.cross_entropy(head(x), labels).detach())
    assert not fused(trainer)


@pytest.mark.parametrize("frozen", ["", "head.weight", "embedding.weight layer.weight layer.bias"])
def test_gradients_of_a_module_equal_eagers(frozen, batch, monkeypatch):
    monkeypatch.setenv("ONTRAIN_LOGITS_BYTES", str(CHUNKED))
    eager = Network()
    for name in frozen.split():
        eager.get_parameter(name).requires_grad_(False)
    module = ORTModule(copy.deepcopy(eager))
    for variant in (eager, module):
        (3 * variant(*batch)).backward()
    for (name, wanted), parameter in zip(eager.named_parameters(), module.parameters(), strict=True):
        if wanted.grad is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, wanted.grad, rtol=1e-5, atol=1e-7, msg=name)


def test_a_memory_bound_that_is_none_is_refused():
    with pytest.raises(OptionError, match="whole number of bytes"):
        make_trainer(Network(), logits_bytes=0).train_step(*torch.zeros(2, 1, 4, dtype=torch.int64))
