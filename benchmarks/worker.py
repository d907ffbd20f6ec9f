"""One engine in one process, driven as `benchmarks.serving` says.

Every engine gets the same model, batches, AdamW (lr 1e-4, weight decay 0.01, no clipping) and number of threads.
Batches are taken in turns.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import serving
from benchmarks.models import Batch, Reader, make, reader

LR, DECAY = 1e-4, 0.01
BUDGET = 0.55
"""Share of its working memory that "ontrain-budget" may take."""

Step = Callable[[Batch], float]


def eager_step(model: torch.nn.Module, forward: torch.nn.Module, *, read: Reader | None = None) -> Step:
    """PyTorch's own training loop at its strongest: fused AdamW, gradients set to None.

    Args:
        model: whose parameters are trained.
        forward: what is called: the model, compiled or wrapped.
        read: what is computed from the logits of each step; None leaves them alone.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)

    def step(batch: Batch) -> float:
        outputs = forward(**batch)
        loss = outputs.loss
        loss.backward()
        if read is not None:
            read(outputs.logits, batch)
        del outputs
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def make_trainer(
    model: torch.nn.Module, batches: Sequence[Batch], budget: float | None = None, provider: str = "Torch",
    *, read: Reader | None = None,
) -> Any:  # fmt: skip
    """The same training as `eager_step` by ORTTrainer; batch and sequence may vary; with a reader it returns logits."""
    from ontrain.training import ORTTrainer, optim

    logits = [("logits", ["batch", "sequence", model.config.vocab_size])] if read is not None else []
    desc = {
        "inputs": [(name, ["batch", "sequence"][: tensor.dim()]) for name, tensor in batches[0].items()],
        "outputs": [("loss", [], True), *logits],
    }
    options = {
        "utils": {"grad_norm_clip": False}, "graph_transformer": {"memory_budget": budget},
        "provider": f"{provider}ExecutionProvider",
    }  # fmt: skip
    return ORTTrainer(model, desc, optim.AdamConfig(lr=LR, lambda_coef=DECAY), options=options)


def make_step(engine: str, model: torch.nn.Module, batches: Sequence[Batch], *, read: Reader | None = None) -> Step:
    """Return one training step of an engine, which ends in what `read` computes from the logits."""
    if engine == "ontrain-hidden":
        from ontrain.passes import HidePaddedCandidates, register_pass

        register_pass(HidePaddedCandidates(), stage="forward", after="ShareCommonSubexpressions")
    if engine == "ontrain-aten":
        os.environ["ONTRAIN_TUNE"] = "0"
    if engine.startswith("ontrain"):
        provider = "OnnxRuntime" if engine == "ontrain-onnxruntime" else "Torch"
        budget = BUDGET if engine == "ontrain-budget" else None
        trainer = make_trainer(model, batches, budget, provider, read=read)
        return trainer_step(trainer, read=read)
    if engine == "ortmodule":
        from ontrain.training.ortmodule import ORTModule

        wrapped = ORTModule(model)
        return eager_step(wrapped, wrapped, read=read)
    if engine == "compile":
        return eager_step(model, torch.compile(model), read=read)  # type: ignore[arg-type]
    return eager_step(model, model, read=read)


def trainer_step(trainer: Any, *, read: Reader | None = None) -> Step:
    """One step of an ORTTrainer, whose second output is the logits if there is a reader of them."""
    if read is None:
        return lambda batch: float(trainer.train_step(**batch))

    def step(batch: Batch) -> float:
        loss, logits = trainer.train_step(**batch)
        read(logits, batch)
        return float(loss)

    return step


def serve(engine: str, name: str, layers: int) -> None:
    """Answer until standard input ends."""
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1)))
    model, batches = make(name, layers)
    turns = itertools.cycle(batches)

    def start() -> Callable[[], float]:
        step = make_step(engine, model, batches, read=reader(name))
        return lambda: step(next(turns))

    serving.serve(start, len(batches))


def export(name: str, layers: int, folder: Path) -> None:
    """Write what the incumbent's worker reads."""
    from benchmarks.incumbent_files import export as write

    model, batches = make(name, layers)
    write(model, batches, folder, LR)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
