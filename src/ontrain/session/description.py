"""What a session is told: what to train, and how its plans are made and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import onnx_ir as ir

from ontrain.optim import OptimizerSpec
from ontrain.passes import Recomputation

__all__ = ["PlanOptions", "TrainingTask"]


@dataclass(frozen=True)
class TrainingTask:
    """What a session trains.

    Attributes:
        model: captured graph in training mode, roles on its inputs.
        loss: name of the scalar output to minimise.
        optimizer: algorithm, hyper-parameters and groups.
        trainable: names of the parameters to update; the others stay.
        max_norm: clip the gradient's global norm to this; None leaves it.
        accumulation_steps: micro-batches per update.
        precision: FLOAT16 or BFLOAT16 for steps in mixed precision, see `ontrain.passes.LowerPrecision`; parameters
            and moments stay as they are, and evaluation runs in their precision.
        seed: of the dropout stream.
    """

    model: ir.Model
    _: KW_ONLY
    loss: str
    optimizer: OptimizerSpec
    trainable: Sequence[str]
    max_norm: float | None = None
    accumulation_steps: int = 1
    precision: ir.DataType | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How a session's plans are made and run.

    Attributes:
        disabled_passes: graph passes to leave out, by name.
        dump: folder to write the graph to after each stage of each plan, see `ontrain.passes.Journal`.
        save_graphs: files for single stages of the first training plan, by onnxruntime's names.
        recomputation: activations that backward computes again instead of finding them in memory.
        memory_limit: bytes that state and working memory may take together; 0 for no limit.
        deterministic: run on kernels that repeat to the bit only; torch raises where a device has none.
    """

    disabled_passes: Sequence[str] = ()
    dump: str | None = None
    save_graphs: Mapping[str, str] = field(default_factory=dict)
    recomputation: Recomputation | None = None
    memory_limit: int = 0
    deterministic: bool = False
