"""What a trainer was made with, and the session that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ontrain.distributed import Reduction
from ontrain.optim import OptimizerSpec
from ontrain.passes import HALF
from ontrain.providers import ExecutionProvider
from ontrain.session import PlanOptions, TrainingSession, TrainingTask
from ontrain.training import processes
from ontrain.training.half import warn_of_slow_bfloat16
from ontrain.training.model_desc import ModelDescription
from ontrain.training.optim.config import _OptimizerConfig
from ontrain.training.options import ORTTrainerOptions
from ontrain.training.source import Form, ModelSource

__all__ = ["Setup"]


@dataclass
class Setup:
    """What a trainer was made with.

    Attributes:
        source: gives the graphs and the first values of the parameters.
        description: of the model's inputs and outputs.
        labels: inputs without which the model can be captured but not its loss.
        optimizer: the configuration; its hyper-parameters may change between two steps.
        options: of the trainer.
        provider: what runs the graphs.
        device: where.
        seed: of the dropout stream.
        reduction: with the other processes of the run; None where this is the only one.
    """

    source: ModelSource
    description: ModelDescription
    labels: tuple[str, ...]
    optimizer: _OptimizerConfig
    options: ORTTrainerOptions
    provider: ExecutionProvider
    device: str
    seed: int
    reduction: Reduction | None

    def session(self, form: Form) -> TrainingSession:
        """Make the session that trains this graph, in agreement with the other processes."""
        options, precision = self.options, self.options.mixed_precision
        if precision.enabled and precision.dtype == "bfloat16":
            warn_of_slow_bfloat16(self.provider, stacklevel=4)
        task = TrainingTask(
            form.model,
            loss=self.description.loss.name,
            optimizer=self.optimizer_spec(form.model),
            trainable=form.trainable,
            max_norm=self.max_norm(),
            accumulation_steps=options.batch.gradient_accumulation_steps,
            precision=HALF[precision.dtype] if precision.enabled else None,
            seed=self.seed,
        )
        planning = PlanOptions(
            disabled_passes=options.graph_transformer.disabled_passes,
            dump=options.debug.dump or None,
            save_graphs=vars(options.debug.graph_save_paths),
            recomputation=options.recomputation(),
            memory_limit=options.device.mem_limit,
            deterministic=options.debug.deterministic_compute,
        )
        session = TrainingSession(
            task, self.source.tensors(), self.provider, self.device, planning=planning, exchange=self.reduction
        )
        if self.reduction is not None:
            processes.start_together(
                self.reduction, session, options, self.description, self.source.loss_tensors(), self.optimizer.lr
            )
        return session

    def optimizer_spec(self, model: ir.Model) -> OptimizerSpec:
        """Return the optimizer's groups without parameters that the graph does not use."""
        used, spec = {value.name for value in model.graph.inputs}, self.optimizer.spec()
        groups = [({name for name in names if name in used}, overrides) for names, overrides in spec.groups]
        return OptimizerSpec(spec.algorithm, spec.defaults, groups)

    def max_norm(self) -> float | None:
        """Return what the gradient's global norm is clipped to; None for no clipping."""
        asked = self.options.utils
        if not asked.grad_norm_clip or self.optimizer.spec().algorithm == "SGD":
            return None
        return float(self.optimizer.max_norm_clip if asked.max_grad_norm is None else asked.max_grad_norm)

    def hyper_parameters(self) -> list[dict[str, object]]:
        """Return what may change and is part of the step's graph: hyper-parameters of all, then of each group."""
        common = {name: value for name, value in self.optimizer.defaults.items() if name != "lr"}
        common |= {"optimizer": self.optimizer.name, "norm": self.max_norm()}
        return [common, *(group.set_here() for group in self.optimizer.params)]
