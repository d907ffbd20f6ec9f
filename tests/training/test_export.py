"""Exported files in stock onnxruntime: at old and new opsets, with and without the step, in one file or two."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from torch import nn

from ontrain import GraphError, OptionError
from ontrain.training import ORTTrainer, optim
from tests.training.conftest import DESC, Net, batches, make_trainer

pytestmark = pytest.mark.sampled(4)

OPSETS = (12, 13, 15, 18, 21, 25)


class Varied(nn.Module):
    """Operators that changed between opsets: each line below is written otherwise in an old file."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.group, self.each, self.layer = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.LayerNorm(6)
        self.recurrent, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.norm(self.conv(x)))
        x = nn.functional.hardswish(self.group(x)) + nn.functional.mish(self.each(x))
        x = nn.functional.pad(nn.functional.avg_pool2d(x, 2), (0, 2))
        x = self.drop(self.layer(x)).softmax(1).sum(1) + x.amax(1)
        a, b = x.chunk(2, -2)
        x = torch.cat([a.unsqueeze(1), b.unsqueeze(1)], 1).mean(1, keepdim=True).squeeze(1)
        scores = torch.tril(x @ x.transpose(1, 2)) / x.shape[-1] ** 0.5
        x = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True) + scores.log_softmax(1) @ x
        return self.head(self.recurrent(x)[0].mean(1))


VARIED = {
    "inputs": [("x", ["n", 3, 8, 8]), ("y", ["n"])],
    "outputs": [("loss", [], True), ("scores", ["n", 4])],
}


@pytest.fixture(scope="module")
def trained() -> ORTTrainer:
    torch.manual_seed(0)
    trainer = make_trainer(Varied(), desc=VARIED, loss_fn=nn.functional.cross_entropy)
    for _ in range(2):
        trainer.train_step(torch.randn(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0]))
    return trainer


def run(path: Any, feeds: dict[str, torch.Tensor]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})


@pytest.mark.parametrize("opset", OPSETS)
def test_a_file_of_any_opset_gives_the_eval_outputs_in_stock_onnxruntime(trained, opset, tmp_path):
    trained.save_as_onnx(tmp_path / "model.onnx", opset=opset)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
    assert [entry.name for entry in model.graph.input] == ["x"] and [entry.name for entry in model.graph.output] == [
        "scores"
    ]
    assert not [node for node in model.graph.node if node.op_type == "Dropout"]
    assert {"conv.weight", "head.bias"} <= {entry.name for entry in model.graph.initializer}
    for count in (5, 2):  # the described dimension varies
        x = torch.randn(count, 3, 8, 8)
        (scores,) = run(tmp_path / "model.onnx", {"x": x})
        wanted = trained.eval_step(x, torch.zeros(count, dtype=torch.int64), fetches=["scores"])
        np.testing.assert_allclose(scores, wanted, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["Bert", "GPT2", "Llama"])
def test_transformers_go_into_files_of_the_oldest_opset(family, tmp_path):
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = {
        "Bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**small, intermediate_size=32)),
        "GPT2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**small, bos_token_id=0, eos_token_id=0, use_cache=False)
        ),
        "Llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**small, intermediate_size=32, num_key_value_heads=1, use_cache=False)
        ),
    }[family]
    names = ("input_ids", "attention_mask", "labels")
    desc = {
        "inputs": [(name, ["batch", "length"]) for name in names],
        "outputs": [("loss", [], True), ("logits", ["batch", "length", 50])],
    }
    ids = torch.randint(0, 50, (3, 8))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    trainer = make_trainer(model(), desc=desc, loss_fn=None, debug={})
    trainer.train_step(ids, mask, ids)
    trainer.save_as_onnx(tmp_path / "model.onnx", opset=12)
    for rows, length in ((3, 8), (2, 5)):
        feeds = {"input_ids": ids[:rows, :length], "attention_mask": mask[:rows, :length]}
        (logits,) = run(tmp_path / "model.onnx", feeds)
        np.testing.assert_allclose(logits, trainer.eval_step(**feeds, fetches=["logits"]), atol=1e-5)


@pytest.mark.parametrize("opset", [18, 23])
def test_the_file_of_the_training_graph_trains_in_stock_onnxruntime(opset, tmp_path):
    torch.manual_seed(0)
    trainer = make_trainer(Net(), optim.AdamConfig(lr=0.01))
    ((ids, label),) = batches(1)
    trainer.train_step(ids, label)
    trainer.save_as_onnx(tmp_path / "step.onnx", opset=opset, training=True)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3  # it warns of each initializer that may be fed
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx", quiet, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_outputs()]
    feeds = {"ids": ids.numpy(), "label": label.numpy(), "learning_rate": np.array(0.01, np.float32),
             "loss_scale": np.ones((), np.float32)}  # fmt: skip
    for number in (2, 3, 4):
        # What is not fed at first, parameters and moments, has the values of the file.
        feeds["step"] = np.array(number, np.float32)
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        feeds |= {name.removesuffix(".next"): value for name, value in outputs.items() if name.endswith(".next")}
        np.testing.assert_allclose(outputs["loss"], trainer.train_step(ids, label)[0], rtol=1e-5)
    np.testing.assert_allclose(feeds["mix.weight"], trainer.parameter("mix.weight"), atol=1e-5)


def test_parameters_above_the_threshold_go_to_a_file_beside(tmp_path):
    trainer = make_trainer(Net())
    ((ids, label),) = batches(1)
    trainer.train_step(ids, label)
    trainer.save_as_onnx(tmp_path / "model.onnx", external_data_threshold=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert len(onnx.load(tmp_path / "model.onnx", load_external_data=False).SerializeToString()) < 4000
    (scores,) = run(tmp_path / "model.onnx", {"ids": ids})
    np.testing.assert_allclose(scores, trainer.eval_step(ids, label)[1], atol=1e-5)


def test_an_operator_that_no_old_file_can_hold_is_named(tmp_path):
    class Bits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x * (x.long() & 3))

    desc = {"inputs": [("x", ["n", 4]), ("y", ["n"])], "outputs": [("loss", [], True), ("scores", ["n", 3])]}
    trainer = make_trainer(Bits(), desc=desc, loss_fn=nn.functional.cross_entropy)
    trainer.train_step(torch.randn(2, 4), torch.tensor([0, 1]))
    with pytest.raises(GraphError, match="BitwiseAnd cannot be written") as error:
        trainer.save_as_onnx(tmp_path / "model.onnx", opset=17)
    assert "came with opset 18" in error.value.reason and "x.long() & 3" in error.value.source
    trainer.save_as_onnx(tmp_path / "model.onnx", opset=18)


class Residual(nn.Module):
    """The block that residual networks consist of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.body, self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(self.stem(x)))
        x = torch.relu(self.second(self.body(x)) + x)
        return self.head(x.mean((2, 3)))


def test_batch_normalisation_is_folded_into_the_convolutions_of_a_file(tmp_path):
    torch.manual_seed(0)
    trainer = make_trainer(Residual(), desc=VARIED, loss_fn=nn.functional.cross_entropy)
    for _ in range(3):  # running statistics move away from zero and one
        trainer.train_step(torch.randn(6, 3, 8, 8) * 2 + 1, torch.randint(0, 4, (6,)))
    trainer.save_as_onnx(tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [node.op_type for node in graph.node] == ["Conv", "Relu", "Conv", "Add", "Relu", "ReduceMean", "Gemm"]
    assert {t.name for t in graph.initializer} >= {"stem.weight", "stem.bias", "body.weight", "head.weight"}
    x = torch.randn(5, 3, 8, 8)
    wanted = trainer.eval_step(x, torch.zeros(5, dtype=torch.int64), fetches=["scores"])
    np.testing.assert_allclose(run(tmp_path / "model.onnx", {"x": x})[0], wanted, atol=1e-5)
    trainer.save_as_onnx(tmp_path / "whole.onnx", optimize=False)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "whole.onnx").graph.initializer}
    for name in trainer.parameter_names:
        np.testing.assert_array_equal(weights[name], trainer.parameter(name))
    np.testing.assert_allclose(run(tmp_path / "whole.onnx", {"x": x})[0], wanted, atol=1e-5)


class Pairs(nn.Module):
    """Sizes of the result follow from products that inference of shapes does not see through."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1])[None, :, None]
        return self.linear(x + positions.expand(x.shape[0], -1, 4)).flatten(0, 1).view(x.shape[0], -1, 3)


def test_axes_of_outputs_keep_the_names_that_were_described(tmp_path):
    desc = {
        "inputs": [("x", ["n", "length", 4]), ("y", ["n", "length"])],
        "outputs": [("loss", [], True), ("scores", ["n", "length", 3])],
    }
    trainer = make_trainer(
        Pairs(), desc=desc, loss_fn=lambda scores, y: nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())
    )
    trainer.train_step(torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.int64))
    trainer.save_as_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [value.shape for value in session.get_inputs()] == [["n", "length", 4]]
    assert [value.shape for value in session.get_outputs()] == [["n", "length", 3]]


class Attending(nn.Module):
    """Attention under a mask of some form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.project, self.head = form, nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        seen = mask[:, None, None, :]
        if self.form == "each query and key":
            seen = seen & mask[:, None, :, None]
        causal = self.form == "causal"
        y = nn.functional.scaled_dot_product_attention(q, k, v, None if causal else seen, is_causal=causal)
        return self.head(y.transpose(1, 2).flatten(2).mean(1)) + 0 * mask.sum()


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize(("form", "operator"), [("causal", True), ("each query and key", True), ("each key", False)])
def test_attention_is_one_operator_where_opset_and_mask_allow(form, operator, opset, tmp_path):
    desc = {
        "inputs": [("x", ["n", "length", 8]), ("mask", ["n", "length"]), ("y", ["n"])],
        "outputs": [("loss", [], True), ("scores", ["n", 3])],
    }
    module = Attending(form)
    trainer = make_trainer(module, desc=desc, loss_fn=nn.functional.cross_entropy)
    mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    trainer.train_step(torch.randn(2, 5, 8), mask, torch.tensor([0, 2]))
    trainer.save_as_onnx(tmp_path / "model.onnx", opset)
    operators = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert ("Attention" in operators) == (operator and opset >= 23)
    for shape in ((2, 5), (3, 7), (1, 1)):
        feeds = {"x": torch.randn(*shape, 8), "mask": torch.arange(shape[1]).expand(shape) < shape[1] - shape[1] // 3}
        with torch.no_grad():
            wanted = trainer.eval_step(feeds["x"], feeds["mask"], torch.zeros(shape[0], dtype=torch.int64))[1]
        (scores,) = run(tmp_path / "model.onnx", feeds)
        np.testing.assert_allclose(scores, wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("asked", "written"), [(None, 17), (21, 21)], ids=["kept", "asked for"])
def test_a_file_that_was_trained_keeps_its_opset(asked, written, tmp_path):
    first = make_trainer(Net())
    first.train_step(*batches(1)[0])
    first.save_as_onnx(tmp_path / "first.onnx", opset=17)
    trainer = make_trainer(tmp_path / "first.onnx", debug={})
    trainer.train_step(*batches(1)[0])
    trainer.save_as_onnx(tmp_path / "second.onnx", opset=asked)
    assert [entry.version for entry in onnx.load(tmp_path / "second.onnx").opset_import] == [written]


def test_a_file_whose_opset_is_older_than_any_that_is_written_gets_the_oldest(tmp_path):
    numbers = ", ".join(f"{number / 10}" for number in range(12))
    model = onnx.parser.parse_model(f"""
        <ir_version: 4, opset_import: ["" : 9]>
        linear (float[n, 4] x) => (float[n, 3] scores) <float[4, 3] w = {{{numbers}}}> {{ scores = MatMul(x, w) }}
    """)
    desc = {"inputs": [("x", ["n", 4]), ("y", ["n"])], "outputs": [("loss", [], True), ("scores", ["n", 3])]}
    trainer = make_trainer(model, desc=desc, loss_fn="CrossEntropyLoss", debug={})
    trainer.train_step(torch.randn(2, 4), torch.tensor([0, 1]))
    trainer.save_as_onnx(tmp_path / "second.onnx")
    assert [entry.version for entry in onnx.load(tmp_path / "second.onnx").opset_import] == [12]


@pytest.mark.parametrize("opset", [11, 99, "12", True])
def test_an_opset_that_does_not_exist_is_told_the_range(opset, tmp_path):
    trainer = ORTTrainer(Net(), DESC, optim.AdamConfig(), lambda o, y: o.sum(), {"device": {"id": "cpu"}})
    trainer.prepare(*batches(1)[0])
    with pytest.raises(OptionError, match="choose one from 12 to"):
        trainer.save_as_onnx(tmp_path / "model.onnx", opset=opset)
    assert not list(tmp_path.iterdir())


class Transmitted(nn.Module):
    """What is left of light behind each of a number of samples that varies."""

    def __init__(self) -> None:
        super().__init__()
        self.density = nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cumprod(x * self.density, 1)
        return y.square().mean(), y


def test_running_products_over_a_length_that_varies_are_exported(tmp_path):
    desc = {"inputs": [("x", ["n", "samples", 4])], "outputs": [("loss", [], True), ("y", ["n", "samples", 4])]}
    trainer = ORTTrainer(Transmitted(), desc, optim.SGDConfig(lr=0.01))
    for samples in (7, 9):
        trainer.train_step(torch.rand(3, samples, 4))
    trainer.save_as_onnx(tmp_path / "model.onnx")
    for samples in (1, 6, 11):
        x = torch.rand(2, samples, 4)
        (y,) = run(tmp_path / "model.onnx", {"x": x})[-1:]
        np.testing.assert_allclose(y, trainer.eval_step(x, fetches=["y"]), atol=1e-6)


class Layers(nn.Module):
    """Layers that are an operator each, of images whose number varies."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bag, self.head = nn.Conv2d(3, 4, 3), nn.EmbeddingBag(5, 3, mode="mean"), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        f, x = nn.functional, self.conv(x)
        pooled = f.adaptive_avg_pool2d(x, 5) + f.adaptive_max_pool2d(x, 5)
        folded = f.fold(f.unfold(pooled, 2), (5, 5), 2).max(1)[0].logcumsumexp(2)
        loss = f.mse_loss(folded, folded.flip(1), reduction="none").mean((1, 2))
        loss = loss + f.smooth_l1_loss(folded, -folded, reduction="none").mean((1, 2))
        ids = (folded.flatten(1) > 0.5).long()
        return self.head(self.bag(ids) + torch.cdist(folded, folded.flip(1)).mean((1, 2))[:, None]) + loss[:, None]


@pytest.mark.parametrize("opset", [16, 18, 25])
def test_layers_with_operators_of_their_own_are_exported_with_batches_of_any_size(opset, tmp_path):
    description = {"inputs": [("x", ["n", 3, 9, 10])], "outputs": [("scores", ["n", 2])]}
    model = Layers()
    trainer = make_trainer(
        model, desc={**description, "inputs": [*description["inputs"], ("y", ["n"])],
                     "outputs": [("loss", [], True), *description["outputs"]]}, loss_fn=nn.functional.cross_entropy,
    )  # fmt: skip
    trainer.eval_step(torch.randn(2, 3, 9, 10), torch.tensor([0, 1]))
    trainer.save_as_onnx(str(tmp_path / "layers.onnx"), opset=opset)
    session = onnxruntime.InferenceSession(str(tmp_path / "layers.onnx"))
    x = torch.randn(5, 3, 9, 10)
    scores = session.run(["scores"], {"x": x.numpy()})[0]
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(scores), model(x), rtol=1e-4, atol=1e-5)
