"""The incumbent, onnxruntime-training 1.19.2, beside ontrain: the same model from the same weights on both.

    python -m benchmarks.peers                      once: makes its environment
    python -m benchmarks.incumbent [--steps 20]     losses of 20 AdamW steps and the gradients of the first, compared

A BERT of 4 layers, 256 wide, without dropout, on 8 × 64 tokens of which 15 % are labelled. The forward graph is
exported by torch's TorchScript exporter at opset 17, which is what the incumbent reads; ontrain trains the module
itself. Speed is measured by `benchmarks.step --engine incumbent`. The row goes to benchmarks/results/incumbent.jsonl.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import Command
from benchmarks.peers import incumbent_python
from benchmarks.rows import append_row

__all__ = ["export"]

OPSET = 17


class _LossOf(torch.nn.Module):
    """A Hugging Face model as a function from positional tensors to its loss."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(**dict(zip(self.names, tensors, strict=True))).loss
        return loss


def export(model: Any, batches: Sequence[Mapping[str, torch.Tensor]], folder: Path, lr: float) -> None:
    """Write the forward graph in training mode, the batches and the trainable parameters' names to a folder.

    Attention is exported as the products and softmax that it consists of, its dropout included: the exporter of that
    opset has no rule for the fused operator in training.
    """
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    names = list(batches[0])
    # Sizes are named only where they vary: the incumbent dies of dynamic sizes in a model without dropout.
    vary = [n for n in names if len({batch[n].shape for batch in batches}) > 1]
    axes = {name: dict(enumerate(("batch", "sequence")[: batches[0][name].dim()])) for name in vary}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.register_custom_op_symbolic("aten::layer_norm", _layer_norm, OPSET)
        torch.onnx.export(
            _LossOf(model, names), tuple(batches[0].values()), str(folder / "forward.onnx"), dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=OPSET,
            input_names=names, output_names=["loss"], dynamic_axes=axes,
        )  # fmt: skip
    trainable = [f"model.{name}" for name, p in model.named_parameters() if p.requires_grad]
    (folder / "trainable.json").write_text(json.dumps(trainable))
    (folder / "lr").write_text(str(lr))
    arrays = {f"{i}.{name}": tensor.numpy() for i, batch in enumerate(batches) for name, tensor in batch.items()}
    np.savez(folder / "batches.npz", **arrays)


def _layer_norm(g: Any, x: Any, shape: Any, weight: Any, bias: Any, epsilon: Any, cudnn: Any) -> Any:
    """The whole operator with the three outputs that the incumbent's gradient of it reads."""
    from torch.onnx import symbolic_helper

    axis = -len(symbolic_helper._maybe_get_const(shape, "is"))
    value = symbolic_helper._maybe_get_const(epsilon, "f")
    y, *_ = g.op("LayerNormalization", x, weight, bias, epsilon_f=value, axis_i=axis, stash_type_i=1, outputs=3)
    y.setType(x.type())
    return y


def compare(steps: int) -> dict[str, float]:
    """Train on both and return the largest differences."""
    from ontrain.training import ORTTrainer, optim

    model, batches = _small_bert(steps)
    lr = 1e-4
    gradients = _first_gradients(model, batches[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(model, batches, folder, lr)
        command = [str(incumbent_python()), "-m", "benchmarks.incumbent_worker", str(folder), str(steps)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        theirs = np.load(folder / "incumbent.npz")
        desc = {"inputs": [(n, ["batch", "sequence"]) for n in batches[0]], "outputs": [("loss", [], True)]}
        trainer = ORTTrainer(
            model, desc, optim.AdamConfig(lr=lr, lambda_coef=0.01), options={"utils": {"grad_norm_clip": False}}
        )
        losses = [float(trainer.train_step(**batch)) for batch in batches]
        difference = float(np.abs(np.array(losses) - theirs["losses"]).max())
        worst = 0.0
        for parameter, mine in gradients.items():
            other = theirs[f"model.{parameter}"].reshape(mine.shape)
            worst = max(worst, float(np.abs(mine - other).max() / max(np.abs(mine).max(), 1e-6)))
    return {
        "loss_difference": difference,
        "gradient_difference": worst,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def _small_bert(count: int) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForMaskedLM(config).train()
    batches = []
    for _ in range(count):
        ids = torch.randint(5, 1000, (8, 64))
        labelled = torch.rand(ids.shape) < 0.15
        batches.append(
            {
                "input_ids": torch.where(labelled, 3, ids),
                "attention_mask": torch.ones_like(ids),
                "token_type_ids": torch.zeros_like(ids),
                "labels": torch.where(labelled, ids, -100),
            }
        )
    return model, batches


def _first_gradients(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """Gradients of the first step by the same session that trains: ORTModule's, which users can read."""
    import copy

    from ontrain.training.ortmodule import ORTModule

    wrapped = ORTModule(copy.deepcopy(model))
    wrapped(**batch).loss.backward()
    return {name: p.grad.numpy() for name, p in wrapped.named_parameters() if p.grad is not None}


def main() -> None:
    """Print the differences and append a row."""
    parser = Command(__doc__)
    parser.add_argument("--steps", type=int, default=20, help="of training")
    arguments = parser.parse_args()
    found = compare(arguments.steps)
    print(
        f"{arguments.steps} steps: losses differ by {found['loss_difference']:.1e} at most "
        f"({found['first_loss']:.4f} to {found['last_loss']:.4f}); gradients of the first step by "
        f"{found['gradient_difference']:.1e} of their largest element"
    )
    append_row("incumbent", {"benchmark": "incumbent", **found})


if __name__ == "__main__":
    main()
