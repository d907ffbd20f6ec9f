"""Writes docs/migration.md: each public name of onnxruntime's training packages, and what it is here.

Run `python -m tests.migration.table` after a name has come or gone. The names on the right are imported, the options
are read from their schema, and the environment names from the table that `ontrain env` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ontrain.training.environment import VARIABLES
from ontrain.training.options import SCHEMA
from tests.dropin.calls import DIFFERENT

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "migration.md"


@dataclass(frozen=True)
class Row:
    """A name of onnxruntime's, the name here, None if there is none, and what differs."""

    upstream: str
    here: str | None
    note: str = ""


def same(module: str, *names: str, here: str | None = None, note: str = "") -> list[Row]:
    """Rows of names that are called the same in a module."""
    target = here or module.replace("onnxruntime", "ontrain", 1)
    return [Row(f"{module}.{name}", f"{target}.{name}", note) for name in names]


T = "onnxruntime.training"
H = "ontrain.training.utils.hooks"

PROCESS = [
    Row("onnxruntime.set_seed", "ontrain.set_seed", "of dropout; a trainer's `utils.seed` goes before it"),
    Row("onnxruntime.InferenceSession", "ontrain.InferenceSession", "takes torch tensors, too"),
    Row("onnxruntime.get_available_providers", "ontrain.get_available_providers"),
]
TRAINER = [
    Row(f"{T}.ORTTrainer", "ontrain.training.ORTTrainer", "`loss_fn` may be left to the model; ONNX files, too"),
    *same(f"{T}.orttrainer", "ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"),
    Row(f"{T}.ORTTrainer.train_step", "ontrain.training.ORTTrainer.train_step",
        "also `fetches=[…]`; raises on a gradient that is not finite"),
    Row(f"{T}.ORTTrainer.eval_step", "ontrain.training.ORTTrainer.eval_step", "the label may be left out"),
    Row(f"{T}.ORTTrainer.save_as_onnx", "ontrain.training.ORTTrainer.save_as_onnx", "the opset, or the step's graph"),
    Row(f"{T}.ORTTrainer.state_dict", "ontrain.training.ORTTrainer.state_dict", "the same keys, and the counters"),
    Row(f"{T}.ORTTrainer.load_state_dict", "ontrain.training.ORTTrainer.load_state_dict"),
    Row(f"{T}.ORTTrainer.save_checkpoint", "ontrain.training.ORTTrainer.save_checkpoint",
        "a folder of safetensors and JSON, written beside and renamed; `keep=3` leaves older ones"),
    Row(f"{T}.ORTTrainer.load_checkpoint", "ontrain.training.ORTTrainer.load_checkpoint",
        "a folder, or onnxruntime's files of all processes; the one before it where a folder is damaged"),
    Row(f"{T}.ORTTrainerOptions", "ontrain.training.ORTTrainerOptions", "the keys are below"),
    *same(f"{T}.orttrainer_options", "ORTTrainerOptions"),
    Row(f"{T}.is_ortmodule_available", "ontrain.training.is_ortmodule_available", "on every system where torch is"),
    Row(f"{T}.TrainStepInfo", "ontrain.training.TrainStepInfo"),
]  # fmt: skip
OPTIM = [
    *same(f"{T}.optim", "SGDConfig", "AdamConfig"),
    Row(f"{T}.optim.LambConfig", "ontrain.training.optim.LambConfig",
        "`do_bias_correction` is off unless set, as in 1.19.2; versions without `max_norm_clip` had it on"),
    *same(f"{T}.optim", "lr_scheduler", "config"),
    Row(f"{T}.optim.AdamConfig.DecayMode", "ontrain.training.optim.AdamConfig.DecayMode"),
    *same(f"{T}.optim.lr_scheduler", "ConstantWarmupLRScheduler", "CosineWarmupLRScheduler",
          "LinearWarmupLRScheduler", "PolyWarmupLRScheduler"),
    Row(f"{T}.optim.lr_scheduler._LRScheduler", "ontrain.training.optim.lr_scheduler._LRScheduler",
        "subclass it and define `get_lr(train_step_info)`"),
    *same(f"{T}.optim", "FusedAdam", "FusedLamb", "FP16_Optimizer", note="for loops around an ORTModule, on CPUs too"),
    *same(f"{T}.amp", "LossScaler", "DynamicLossScaler", "loss_scaler"),
]  # fmt: skip
CHECKPOINT = [
    *same(f"{T}.checkpoint", "experimental_state_dict", "experimental_load_state_dict"),
    Row(f"{T}.checkpoint.experimental_save_checkpoint", "ontrain.training.checkpoint.experimental_save_checkpoint",
        "a folder `{checkpoint_prefix}`; nothing is pickled"),
    Row(f"{T}.checkpoint.experimental_load_checkpoint", "ontrain.training.checkpoint.experimental_load_checkpoint",
        "such a folder, or `.ort.pt` files, those of a ZeRO run too"),
    Row(f"{T}.checkpoint.aggregate_checkpoints", "ontrain.training.checkpoint.aggregate_checkpoints",
        "`.ort.pt` and HDF5 files, or a folder"),
]  # fmt: skip
ORTMODULE = [
    *same(f"{T}.ortmodule", "ORTModule"),
    Row(f"{T}.ortmodule.DebugOptions", "ontrain.training.ortmodule.DebugOptions", "`config` means nothing"),
    *same(f"{T}.ortmodule", "LogLevel"),
    Row(f"{T}.ortmodule.ORTModuleFallbackException", "ontrain.CaptureError",
        "what cannot be captured is an error that names the line, unless a `FallbackPolicy` says otherwise"),
    Row(f"{T}.ortmodule.ORTModuleInitException", "ontrain.OntrainError", "base of all errors"),
    Row(f"{T}.ortmodule.ORTModuleDeviceException", "ontrain.InputError"),
    Row(f"{T}.ortmodule.ORTModuleIOError", "ontrain.InputError"),
    Row(f"{T}.ortmodule.ORTModuleTorchModelException", "ontrain.CaptureError"),
    Row(f"{T}.ortmodule.ORTModuleONNXModelException", "ontrain.GraphError"),
    *same(f"{T}.utils.data", "LoadBalancingDistributedSampler", "LoadBalancingDistributedBatchSampler"),
    *same(f"{T}.utils.hooks", "GlobalSubscriberManager"),
    Row(f"{T}.utils.hooks.StatisticsSubscriber", f"{H}.StatisticsSubscriber",
        "an output folder that exists is a ValueError; it is deleted only if it holds an older run"),
    *same(f"{T}.utils.hooks", "inspect_activation", "merge_activation_summary",
          note="`ontrain compare` names the first value that differs"),
]  # fmt: skip
ON_DEVICE = [
    *same(f"{T}.artifacts", "generate_artifacts",
          note="files of standard operators, at the newest opset or the one in `opset`"),
    *same(f"{T}.artifacts", "LossType", "OptimType"),
    *same(f"{T}.onnxblock", "Block", "TrainingBlock", "ForwardBlock", "base", "empty_base", "custom_op_library",
          "save_checkpoint", "load_checkpoint_to_model"),
    *same(f"{T}.onnxblock.blocks", "Add", "Sub", "Mul", "Div", "Pow", "Constant", "PassThrough"),
    *same(f"{T}.onnxblock.loss", "MSELoss", "CrossEntropyLoss", "BCEWithLogitsLoss", "L1Loss"),
    *same(f"{T}.onnxblock.optim", "AdamW", "SGD", "ClipGradNorm"),
    *same(f"{T}.api", "CheckpointState", "Module", "Optimizer", "LinearLRScheduler"),
]  # fmt: skip
C = "onnxruntime.capi.ort_trainer"
FIRST = [
    *same(C, "IODescription", "ModelDescription", "LossScaler", "generate_sample"),
    Row(f"{C}.ORTTrainer", "ontrain.capi.ort_trainer.ORTTrainer", "warns where a description disagrees with the data"),
    *same(f"{C}.ORTTrainer", "train_step", "eval_step", "train", "eval", "state_dict", "load_state_dict",
          "save_as_onnx"),
    Row(f"{C}.LossScaler.update_loss_scale", "ontrain.capi.ort_trainer.LossScaler.update_loss_scale"),
    Row(f"{C}.LossScaler.reset", "ontrain.capi.ort_trainer.LossScaler.reset"),
    *same(C, "save_checkpoint", "load_checkpoint", note="a folder `{checkpoint_prefix}`; nothing is pickled"),
    *same("onnxruntime.capi._pybind_state", "set_seed", "set_cuda_device_id", "set_cuda_mem_limit",
          "set_arena_extend_strategy", "ArenaExtendStrategy", "is_ortmodule_available"),
]  # fmt: skip
SUPPLEMENT = [
    Row(f"ort_supplement.{name}", f"ontrain.ort_supplement.{name}", note)
    for name, note in {
        "setup_onnxruntime_with_mpi": "reads the launcher's environment; needs no mpi4py",
        "create_ort_trainer": "",
        "bert_model_description": "the batch size varies",
        "map_optimizer_attributes": "",
        "run_ort_training_step": "",
        "get_lr": "with all four schedules",
        "SCHEDULES": "",
        "set_environment_variables_for_nccl_backend": "",
        "get_local_rank": "",
        "get_local_size": "",
        "get_world_rank": "",
        "get_world_size": "",
        "get_global_size": "",
    }.items()
] + [Row("ort_supplement.postprocess_model", None, "the capture needs no repair; leave it out")]

SECTIONS = {
    "The process": PROCESS,
    "ORTTrainer": TRAINER,
    "Optimizers, schedules, loss scaling": OPTIM,
    "Checkpoints": CHECKPOINT,
    "ORTModule": ORTMODULE,
    "On-device training": ON_DEVICE,
    "The first ORTTrainer": FIRST,
    "The BERT recipe's ort_supplement": SUPPLEMENT,
}

HEAD = """\
# Coming from onnxruntime.training

Replace `onnxruntime` by `ontrain` in the imports, and run the program. This page lists every public name of
onnxruntime's training packages, which were discontinued after 1.19.2: its name in ontrain, and what differs.
`python -m tests.migration.table` writes the page.

Four things differ everywhere:

- Parameters have the names of `state_dict`, without a prefix.
- A setting that ontrain cannot honour is an error that says why. No setting is ignored silently.
- Nothing is pickled.
- With gradient accumulation, micro-batches of a mean loss weigh by how many labels they have
  ([Concepts](concepts.md)). onnxruntime weighs them alike.
"""

INFERENCE = """\
## Inference

A program that runs models runs as it is ([Inference](inference.md)). `python -m tests.dropin.probe` looks up every
public name of the installed onnxruntime, and compares what calls of it come to. These differences stay.
"""


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The options with their full names."""
    for name, key in schema.items():
        if isinstance(key, dict):
            yield from leaves(key, f"{path}{name}.")
        else:
            yield path + name, key


def table() -> str:
    """The document's text."""
    lines = [HEAD]
    for title, rows in SECTIONS.items():
        lines += [f"## {title}", "", "| onnxruntime | ontrain | notes |", "|---|---|---|"]
        lines += [f"| `{row.upstream}` | {f'`{row.here}`' if row.here else '—'} | {row.note} |" for row in rows]
        lines.append("")
    lines += [INFERENCE, "| name | onnxruntime | ontrain | where |", "|---|---|---|---|"]
    for differs in DIFFERENT:
        where = "everywhere" if differs.on_all else "ontrain's providers"
        lines.append(f"| `{differs.name}` | {differs.theirs} | {differs.ours} | {where} |")
    lines.append("")
    lines += ["## Keys of ORTTrainerOptions", "", "| key | default | |", "|---|---|---|"]
    for path, key in leaves(SCHEMA):
        says = "works" if key.reason is None else f"refused: {key.reason}"
        lines.append(f"| `{path}` | `{key.default!r}` | {says} |")
    lines += ["", "## Environment", "", "`ontrain env` prints these with their present values.", ""]
    lines += ["| name | |", "|---|---|"]
    for name in sorted(name for name in VARIABLES if name.startswith("ORTMODULE_")):
        variable = VARIABLES[name]
        lines.append(f"| `{name}` | {variable.meaning or f'means nothing here: {variable.instead}'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(table())
