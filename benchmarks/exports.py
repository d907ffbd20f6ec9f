"""Files that ontrain writes of BERT, GPT-2, ViT and ResNet beside those of torch's exporter: nodes, bytes, differences.

    pip install onnxscript  # which torch's exporter asks for
    python -m benchmarks.exports [--opset 20]

For each model with random weights: how many nodes and bytes the files of `ORTTrainer.save_as_onnx` and of
`torch.onnx.export(dynamo=True)` have at one opset, by default 20, torch's own; how the axes of the output are called;
and the largest difference between what stock onnxruntime makes of either file and what the module gives.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from torch import nn

from benchmarks.commands import Command
from ontrain.training import ORTTrainer, optim

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


class Sentences(nn.Module):
    """A model of sentences as a function of tensors to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids, attention_mask, token_type_ids).logits
        return logits


class Text(Sentences):
    """The same of a model of running text."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits: torch.Tensor = self.model(input_ids).logits
        return logits


class Pictures(Sentences):
    """The same of a model of pictures."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits: torch.Tensor = self.model(pixel_values).logits
        return logits


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss, as a trainer asks for one."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


@dataclass(frozen=True)
class Case:
    """A model, sample inputs, and what their axes are called."""

    model: Callable[[], nn.Module]
    inputs: dict[str, torch.Tensor]
    axes: dict[int, str]


def cases() -> dict[str, Case]:
    """The four models."""
    ids = torch.randint(1, 200, (3, 12))
    mask = (torch.arange(12) < torch.tensor([[12], [7], [4]])).long()
    text, picture = {0: "batch", 1: "length"}, {0: "batch"}
    bert = transformers.BertConfig(vocab_size=200, intermediate_size=128, **SMALL)
    gpt2 = transformers.GPT2Config(
        vocab_size=200, n_embd=64, n_layer=2, n_head=4, n_positions=64, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    vit = transformers.ViTConfig(intermediate_size=128, image_size=32, patch_size=8, **SMALL)
    resnet = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[2, 2, 2, 2], layer_type="basic"
    )
    return {
        "BERT": Case(
            lambda: Sentences(transformers.BertForSequenceClassification(bert)),
            {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}, text,
        ),
        "GPT-2": Case(lambda: Text(transformers.GPT2LMHeadModel(gpt2)), {"input_ids": ids}, text),
        "ViT": Case(
            lambda: Pictures(transformers.ViTForImageClassification(vit)),
            {"pixel_values": torch.randn(3, 3, 32, 32)}, picture,
        ),
        "ResNet": Case(
            lambda: Pictures(transformers.ResNetForImageClassification(resnet)),
            {"pixel_values": torch.randn(3, 3, 64, 64)}, picture,
        ),
    }  # fmt: skip


def by_torch(case: Case, model: nn.Module, path: Path, opset: int) -> None:
    """Write a file by torch's exporter."""
    dims = {axis: torch.export.Dim(name) for axis, name in case.axes.items()}
    # Its report goes to the output of the program.
    with contextlib.redirect_stdout(io.StringIO()):
        program: Any = torch.onnx.export(
            model, tuple(case.inputs.values()), dynamo=True, opset_version=opset, output_names=["logits"],
            input_names=[*case.inputs], dynamic_shapes=dict.fromkeys(case.inputs, dims),
        )  # fmt: skip
    program.save(path)


def by_ontrain(case: Case, model: nn.Module, path: Path, opset: int) -> None:
    """Write a file by a trainer that has made no step."""
    logits = model(**case.inputs)
    shape = [case.axes.get(axis, size) for axis, size in enumerate(logits.shape)]
    described = [
        (name, [case.axes.get(axis, size) for axis, size in enumerate(tensor.shape)])
        for name, tensor in case.inputs.items()
    ]
    labels = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    desc = {
        "inputs": [*described, ("labels", shape[:-1])],
        "outputs": [("loss", [], True), ("logits", shape)],
    }
    options = {"device": {"id": "cpu"}}
    trainer = ORTTrainer(model, desc, optim.SGDConfig(lr=0.0), token_loss, options)
    trainer.eval_step(*case.inputs.values(), labels)
    trainer.save_as_onnx(path, opset)


def main() -> None:
    """Print a line for each model and exporter."""
    parser = Command(__doc__)
    parser.add_argument("--opset", type=int, default=20, help="operator set of the files")
    opset = parser.parse_args().opset
    torch.manual_seed(0)
    print(f"{'model':8}{'exporter':10}{'nodes':>6}{'bytes':>10}  {'axes of the output':26}{'difference':>10}")
    for name, case in cases().items():
        model = case.model().eval()
        with torch.no_grad():
            wanted = model(**case.inputs).numpy()
        for exporter, write in (("torch", by_torch), ("ontrain", by_ontrain)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                write(case, model, path, opset)
                graph, size = onnx.load(path).graph, path.stat().st_size
                session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
                (logits,) = session.run(None, {key: tensor.numpy() for key, tensor in case.inputs.items()})
            axes = [dim.dim_param or dim.dim_value for dim in graph.output[0].type.tensor_type.shape.dim]
            difference = np.abs(logits - wanted).max()
            print(f"{name:8}{exporter:10}{len(graph.node):6}{size:10}  {axes!s:26}{difference:10.1e}")


if __name__ == "__main__":
    main()
