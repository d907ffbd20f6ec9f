"""What the BERT recipe of onnxruntime's training examples calls, under its names.

`import ort_supplement.ort_supplement as ort_supplement` becomes `from ontrain import ort_supplement`.
"""

from ontrain.ort_supplement.azureml_adapter import (
    get_global_size,
    get_local_rank,
    get_local_size,
    get_world_rank,
    get_world_size,
    set_environment_variables_for_nccl_backend,
)
from ontrain.ort_supplement.lr_schedules import SCHEDULES
from ontrain.ort_supplement.ort_supplement import (
    bert_model_description,
    create_ort_trainer,
    get_lr,
    map_optimizer_attributes,
    run_ort_training_step,
    setup_onnxruntime_with_mpi,
)

__all__ = [
    "SCHEDULES",
    "bert_model_description",
    "create_ort_trainer",
    "get_global_size",
    "get_local_rank",
    "get_local_size",
    "get_lr",
    "get_world_rank",
    "get_world_size",
    "map_optimizer_attributes",
    "run_ort_training_step",
    "set_environment_variables_for_nccl_backend",
    "setup_onnxruntime_with_mpi",
]
