"""What the jobs run: machines, and for each recipe its command, data and results. Nothing here knows Azure's SDK.

BERT's numbers are those that NVIDIA and ONNX Runtime's recipe published for BERT-large: 65,536 sequences of 128 tokens
a step in phase 1 and 32,768 of 512 in phase 2, spread over all GPUs. A GPU sees `train_batch_size` of them a step, in
`gradient_accumulation_steps` pieces:

    4 machines of 8 GPUs     65,536 / 32 = 2,048 a GPU and step;  2,048 / 256 at once = 8 pieces

How many fit at once was published for GPUs of 32 GB: 128 and 16, and 4 blocks of GPT-2 medium. For other sizes it is
scaled by the memory, down to a power of two, and not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MACHINES", "RECIPES", "Machine", "Recipe", "Task"]


@dataclass(frozen=True)
class Machine:
    """One of Azure's ND sizes: GPUs in it, and the memory of each in GB."""

    gpus: int
    memory: int


MACHINES = {
    "Standard_ND96amsr_A100_v4": Machine(8, 80),
    "Standard_ND96asr_v4": Machine(8, 40),
    "Standard_ND96isr_H100_v5": Machine(8, 80),
    "Standard_ND96isr_H200_v5": Machine(8, 141),
    "Standard_ND40rs_v2": Machine(8, 32),
}
"""NC24rs_v3 of the published recipe is no more; ND40rs_v2 needs the image built for CUDA 12.6 (docker/README.md)."""


@dataclass(frozen=True)
class Task:
    """What one job does.

    Attributes:
        title: a line for the studio.
        script: below recipes/.
        options: of the script, in its order; None stands for a switch without a value.
        inputs: data assets, by the name that the options use as ${{inputs.name}}.
        output: the asset that the folder ${{outputs.results}} becomes when the job is done.
    """

    title: str
    script: str
    options: dict[str, str | int | float | None]
    inputs: dict[str, str]
    output: str

    def command(self) -> str:
        """The line that each process runs; the launcher is the service's."""
        words = [f"python {self.script}"]
        words += [f"--{name}" if value is None else f"--{name} {value}" for name, value in self.options.items()]
        return " ".join(words)


def at_once(published: int, memory: int) -> int:
    """Sequences that a GPU takes at once: as many as published for 32 GB, scaled, down to a power of two."""
    return 1 << (published * memory // 32).bit_length() - 1


def pieces(batch: int, gpus: int, published: int, memory: int) -> tuple[int, int]:
    """A step's sequences a GPU, and in how many pieces it takes them.

    Raises:
        ValueError: the batch can't be divided among so many GPUs.
    """
    if batch % gpus:
        raise ValueError(f"{batch:,} sequences a step can't be divided among {gpus} GPUs; take 1, 2, 4, 8 … machines")
    mine = batch // gpus
    return mine, max(1, mine // at_once(published, memory))


def bert_phase1(gpus: int, memory: int) -> Task:
    batch, steps = pieces(65_536, gpus, 128, memory)
    return Task(
        title="BERT-large phase 1: 7,038 steps of 65,536 sequences of 128 tokens",
        script="bert/run_pretraining.py",
        options={
            "input_dir": "${{inputs.data}}",
            "output_dir": "${{outputs.results}}",
            "do_train": None,
            "fp16": None,
            "max_seq_length": 128,
            "max_predictions_per_seq": 20,
            "train_batch_size": batch,
            "gradient_accumulation_steps": steps,
            "learning_rate": 6e-3,
            "warmup_proportion": 0.2843,
            "max_steps": 7038,
            "num_steps_per_checkpoint": 200,
            "allreduce_post_accumulation": None,
            "gpu_memory_limit_gb": memory,
            "seed": 42,
        },
        inputs={"data": "bert-hdf5-128"},
        output="bert-phase1",
    )


def bert_phase2(gpus: int, memory: int) -> Task:
    batch, steps = pieces(32_768, gpus, 16, memory)
    return Task(
        title="BERT-large phase 2: 1,563 steps of 32,768 sequences of 512 tokens",
        script="bert/run_pretraining.py",
        options={
            "input_dir": "${{inputs.data}}",
            "output_dir": "${{outputs.results}}",
            "init_checkpoint": "${{inputs.phase1}}/ckpt_7038",
            "do_train": None,
            "phase2": None,
            "phase1_end_step": 7038,
            "fp16": None,
            "max_seq_length": 512,
            "max_predictions_per_seq": 80,
            "train_batch_size": batch,
            "gradient_accumulation_steps": steps,
            "learning_rate": 4e-3,
            "warmup_proportion": 0.128,
            "max_steps": 1563,
            "num_steps_per_checkpoint": 200,
            "allreduce_post_accumulation": None,
            "gpu_memory_limit_gb": memory,
            "seed": 42,
        },
        inputs={"data": "bert-hdf5-512", "phase1": "bert-phase1"},
        output="bert-phase2",
    )


def squad(gpus: int, memory: int) -> Task:
    windows, _ = pieces(32, gpus, 4, memory)
    return Task(
        title="BERT-large on SQuAD 1.1: 2 epochs, 32 windows of 384 tokens a step",
        script="bert/run_squad.py",
        options={
            "model_name_or_path": "${{inputs.model}}",
            "train_file": "${{inputs.data}}/train-v1.1.json",
            "predict_file": "${{inputs.data}}/dev-v1.1.json",
            "output_dir": "${{outputs.results}}",
            "do_train": None,
            "do_eval": None,
            "max_seq_length": 384,
            "doc_stride": 128,
            "per_gpu_train_batch_size": windows,
            "learning_rate": 3e-5,
            "num_train_epochs": 2,
            "seed": 1,
        },
        inputs={"data": "squad", "model": "bert-large"},
        output="bert-squad",
    )


def gpt2(gpus: int, memory: int) -> Task:
    blocks = min(16, at_once(4, memory))  # of 16 an update, as published
    return Task(
        title="GPT-2 medium on WikiText-103: blocks of 1,024 tokens, 5 epochs",
        script="gpt2/run_lm.py",
        options={
            "model_name_or_path": "${{inputs.model}}",
            "train_data_file": "${{inputs.data}}/wiki.train.tokens",
            "eval_data_file": "${{inputs.data}}/wiki.test.tokens",
            "output_dir": "${{outputs.results}}",
            "do_train": None,
            "do_eval": None,
            "block_size": 1024,
            "per_gpu_train_batch_size": blocks,
            "per_gpu_eval_batch_size": blocks,
            "gradient_accumulation_steps": 16 // blocks,
            "weight_decay": 0.01,
            "logging_steps": 100,
            "num_train_epochs": 5,
        },
        inputs={"data": "wikitext-103", "model": "gpt2-medium"},
        output="gpt2-wikitext-103",
    )


@dataclass(frozen=True)
class Recipe:
    """How a task follows from GPUs and their memory, and on how many machines it is published."""

    task: Callable[[int, int], Task]
    nodes: int
    experiment: str


RECIPES = {
    "bert-phase1": Recipe(bert_phase1, 4, "ontrain-bert"),
    "bert-phase2": Recipe(bert_phase2, 4, "ontrain-bert"),
    "squad": Recipe(squad, 1, "ontrain-squad"),
    "gpt2": Recipe(gpt2, 4, "ontrain-gpt2"),
}
