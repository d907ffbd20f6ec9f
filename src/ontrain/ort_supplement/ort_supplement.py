"""The four steps of the BERT recipe: set up, create a trainer, train a step; `save_as_onnx` is the trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ontrain.capi._pybind_state import set_cuda_device_id, set_cuda_mem_limit
from ontrain.capi.ort_trainer import IODescription, LossScaler, ModelDescription, ORTTrainer
from ontrain.errors import OptionError, nearest
from ontrain.ort_supplement.azureml_adapter import get_local_rank, get_local_size, get_world_rank, get_world_size
from ontrain.ort_supplement.lr_schedules import SCHEDULES
from ontrain.training import set_seed

__all__ = [
    "bert_model_description",
    "create_ort_trainer",
    "get_lr",
    "map_optimizer_attributes",
    "run_ort_training_step",
    "setup_onnxruntime_with_mpi",
]

_NO_DECAY = ("bias", "gamma", "beta", "LayerNorm")
_VOCABULARY = 30528  # 30522 words, padded to a multiple of 8


def setup_onnxruntime_with_mpi(args: Any) -> torch.device:
    """Learn from the launcher which process this is, choose its device, and seed it by `args.seed` where there is one.

    Args:
        args: gets `local_rank`, `local_size`, `world_rank`, `world_size` and `n_gpu`.

    Returns:
        The GPU of this process, or the CPU where there is none.
    """
    args.local_rank, args.local_size = get_local_rank(), get_local_size()
    args.world_rank, args.world_size = get_world_rank(), get_world_size()
    args.n_gpu = 1
    if getattr(args, "seed", None) is not None:
        set_seed(args.seed + args.world_rank)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    args.local_rank %= torch.cuda.device_count()
    set_cuda_device_id(args.local_rank)
    return torch.device("cuda", args.local_rank)


def bert_model_description(args: Any) -> ModelDescription:
    """Return the description of BERT with both losses inside, for batches of `args.max_seq_length` tokens."""

    def tokens(name: str, classes: int) -> IODescription:
        return IODescription(name, ["batch", args.max_seq_length], torch.int64, num_classes=classes)

    inputs = [
        tokens("input_ids", _VOCABULARY),
        tokens("segment_ids", 2),
        tokens("input_mask", 2),
        tokens("masked_lm_labels", _VOCABULARY),
        IODescription("next_sentence_labels", ["batch"], torch.int64, num_classes=2),
    ]
    return ModelDescription(inputs, [IODescription("loss", [], torch.float32)])


def map_optimizer_attributes(name: str) -> dict[str, float]:
    """Return LAMB's attributes for a parameter: decay 0.01, and none for biases and layer norms."""
    decay = 0.0 if any(part in name for part in _NO_DECAY) else 0.01
    return {"alpha": 0.9, "beta": 0.999, "lambda": decay, "epsilon": 1e-6}


def create_ort_trainer(args: Any, device: torch.device | str, model: torch.nn.Module) -> ORTTrainer:
    """Return a LAMB trainer for a BERT with its losses inside, as the recipe's arguments say.

    Args:
        args: `gradient_accumulation_steps`, `max_seq_length`, `world_rank`, `world_size`, `fp16`,
            `allreduce_post_accumulation`, and `gpu_memory_limit_gb` and `deepspeed_zero_stage` or
            `partition_optimizer` where there are such. With `fp16` it gets the loss scaler as `ort_loss_scale`.
        device: what `setup_onnxruntime_with_mpi` returned.
        model: its forward takes input ids, segment ids, mask, masked labels and next-sentence labels.

    Raises:
        OptionError: an argument cannot be honoured.
    """
    set_cuda_mem_limit(int(getattr(args, "gpu_memory_limit_gb", 0) * (1 << 30)))
    trainer = ORTTrainer(
        model,
        None,
        bert_model_description(args),
        "LambOptimizer",
        map_optimizer_attributes,
        IODescription("Learning_Rate", [1], torch.float32),
        device,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        world_rank=args.world_rank,
        world_size=args.world_size,
        use_mixed_precision=bool(args.fp16),
        allreduce_post_accumulation=bool(args.allreduce_post_accumulation),
        deepspeed_zero_stage=int(bool(getattr(args, "deepspeed_zero_stage", False))),
        partition_optimizer=bool(getattr(args, "partition_optimizer", False)),
        _opset_version=12,
    )
    if args.fp16:
        args.ort_loss_scale = LossScaler(trainer.loss_scale_input_name, True, up_scale_window=2000)
    return trainer


def get_lr(args: Any, training_steps: int, schedule: str = "warmup_poly") -> float:
    """Return the learning rate after `training_steps` of `args.max_steps` updates; `args.learning_rate` if that is −1.

    Raises:
        OptionError: there is no such schedule.
    """
    if args.max_steps == -1:
        return float(args.learning_rate)
    if schedule not in SCHEDULES:
        raise OptionError(f"there is no schedule {schedule!r}", way_out=f"nearest: {nearest(schedule, SCHEDULES)}")
    return float(args.learning_rate * SCHEDULES[schedule](training_steps / args.max_steps, args.warmup_proportion))


def run_ort_training_step(
    args: Any, global_step: int, training_steps: int, model: ORTTrainer, batch: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, int]:
    """Train on one micro-batch.

    Args:
        args: as for `create_ort_trainer`, and `learning_rate`, `max_steps`, `warmup_proportion`, `schedule`.
        global_step: updates made so far, by which the learning rate goes.
        training_steps: micro-batches trained on, this one included.
        model: what `create_ort_trainer` returned.
        batch: the five inputs in order.

    Returns:
        The loss, and `global_step`, one higher after an update.
    """
    rate = torch.tensor([get_lr(args, global_step, args.schedule)], device="cpu")
    scale = (torch.tensor([args.ort_loss_scale.loss_scale_], device="cpu"),) if args.fp16 else ()
    result = model.train_step(*batch, rate, *scale)
    loss = result[0] if isinstance(result, list) else result
    if training_steps % args.gradient_accumulation_steps == 0:
        if args.fp16:
            args.ort_loss_scale.update_loss_scale(result[-1])
        global_step += 1
    return loss, global_step
