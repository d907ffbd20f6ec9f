"""The migration table cannot lie: what it names exists, and what onnxruntime had is in it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.migration.table import SECTIONS, TARGET, table

ROWS = [row for rows in SECTIONS.values() for row in rows]

# Names of onnxruntime-training 1.19.2 and of the trainers before it, from its documentation.
UPSTREAM = """
ORTTrainer ORTTrainerOptions TrainStepInfo
ORTTrainer.train_step ORTTrainer.eval_step ORTTrainer.save_as_onnx ORTTrainer.state_dict ORTTrainer.load_state_dict
ORTTrainer.save_checkpoint ORTTrainer.load_checkpoint
orttrainer.ORTTrainer orttrainer.ORTTrainerOptions orttrainer.TrainStepInfo
optim.SGDConfig optim.AdamConfig optim.LambConfig optim.AdamConfig.DecayMode optim.FusedAdam optim.FP16_Optimizer
optim.lr_scheduler.ConstantWarmupLRScheduler optim.lr_scheduler.CosineWarmupLRScheduler
optim.lr_scheduler.LinearWarmupLRScheduler optim.lr_scheduler.PolyWarmupLRScheduler optim.lr_scheduler._LRScheduler
amp.LossScaler amp.DynamicLossScaler
checkpoint.experimental_state_dict checkpoint.experimental_load_state_dict checkpoint.experimental_save_checkpoint
checkpoint.experimental_load_checkpoint checkpoint.aggregate_checkpoints
ortmodule.ORTModule ortmodule.DebugOptions ortmodule.LogLevel ortmodule.ORTModuleFallbackException
ortmodule.ORTModuleInitException ortmodule.ORTModuleDeviceException ortmodule.ORTModuleIOError
ortmodule.ORTModuleTorchModelException ortmodule.ORTModuleONNXModelException
utils.data.LoadBalancingDistributedSampler utils.data.LoadBalancingDistributedBatchSampler
utils.hooks.GlobalSubscriberManager utils.hooks.StatisticsSubscriber utils.hooks.inspect_activation
artifacts.generate_artifacts artifacts.LossType artifacts.OptimType
onnxblock.Block onnxblock.TrainingBlock onnxblock.ForwardBlock onnxblock.base onnxblock.empty_base
onnxblock.custom_op_library onnxblock.save_checkpoint
onnxblock.blocks.Add onnxblock.blocks.Sub onnxblock.blocks.Mul onnxblock.blocks.Div onnxblock.blocks.Pow
onnxblock.blocks.Constant onnxblock.blocks.PassThrough
onnxblock.loss.MSELoss onnxblock.loss.CrossEntropyLoss onnxblock.loss.BCEWithLogitsLoss onnxblock.loss.L1Loss
onnxblock.optim.AdamW onnxblock.optim.SGD onnxblock.optim.ClipGradNorm
api.CheckpointState api.Module api.Optimizer api.LinearLRScheduler
""".split()  # noqa: SIM905
FIRST = """
IODescription ModelDescription ORTTrainer LossScaler ORTTrainer.train_step ORTTrainer.eval_step ORTTrainer.train
ORTTrainer.eval ORTTrainer.state_dict ORTTrainer.load_state_dict ORTTrainer.save_as_onnx save_checkpoint load_checkpoint
""".split()  # noqa: SIM905
SUPPLEMENT = """
setup_onnxruntime_with_mpi bert_model_description map_optimizer_attributes postprocess_model create_ort_trainer get_lr
run_ort_training_step set_environment_variables_for_nccl_backend get_local_rank get_local_size get_global_size
get_world_size get_world_rank
""".split()  # noqa: SIM905


def resolved(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", sorted({row.here for row in ROWS if row.here is not None}))
def test_the_name_here_exists(name):
    assert resolved(name) is not None


def test_every_name_of_upstream_is_listed_once():
    listed = [row.upstream for row in ROWS]
    wanted = [f"onnxruntime.training.{name}" for name in UPSTREAM]
    wanted += [f"onnxruntime.capi.ort_trainer.{name}" for name in FIRST]
    wanted += [f"ort_supplement.{name}" for name in SUPPLEMENT]
    assert set(wanted) <= set(listed) and len(listed) == len(set(listed))


def test_a_name_that_is_not_here_says_what_to_do():
    assert not [row.upstream for row in ROWS if row.here is None and not row.note]


def test_the_document_is_up_to_date():
    assert TARGET.read_text() == table(), "run python -m tests.migration.table"
