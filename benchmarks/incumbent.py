"""The incumbent, onnxruntime-training 1.19.2, beside ontrain: the same model from the same weights on both.

    python -m benchmarks.peers                      once: makes its environment
    python -m benchmarks.incumbent [--steps 20]     losses of 20 AdamW steps and the gradients of the first, compared

A BERT of 4 layers, 256 wide, without dropout, on 8 × 64 tokens of which 15 % are labelled. The forward graph is
exported by torch's TorchScript exporter at opset 17, which is what the incumbent reads; ontrain trains the module
itself. Speed is measured by `benchmarks.step --engine incumbent`. The row goes to benchmarks/results/incumbent.jsonl.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.commands import Command
from benchmarks.peers import incumbent_python
from benchmarks.rows import append_row

if TYPE_CHECKING:
    import torch


def compare(steps: int) -> dict[str, float]:
    """Train on both and return the largest differences."""
    from benchmarks.incumbent_files import export
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
    import torch
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
    figures = compare(arguments.steps)
    print(
        f"{arguments.steps} steps: losses differ by {figures['loss_difference']:.1e} at most "
        f"({figures['first_loss']:.4f} to {figures['last_loss']:.4f}); gradients of the first step by "
        f"{figures['gradient_difference']:.1e} of their largest element"
    )
    append_row("incumbent", {"benchmark": "incumbent", **figures})


if __name__ == "__main__":
    main()
