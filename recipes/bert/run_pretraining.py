"""Pre-train BERT on masked words and next sentences; the flags of onnxruntime's run_pretraining_ort.py, each working.

    $ python run_pretraining.py --do_train --input_dir PHASE1_HDF5 --output_dir RUN --config_file bert_config.json \\
          --max_seq_length 128 --max_predictions_per_seq 20 --train_batch_size 8192 --gradient_accumulation_steps 64 \\
          --learning_rate 6e-3 --warmup_proportion 0.2843 --max_steps 7038 --fp16
    $ python run_pretraining.py --do_train --input_dir PHASE2_HDF5 --output_dir RUN --config_file bert_config.json \\
          --max_seq_length 512 --max_predictions_per_seq 80 --train_batch_size 4096 --gradient_accumulation_steps 256 \\
          --learning_rate 4e-3 --warmup_proportion 0.128 --max_steps 1563 --fp16 \\
          --phase2 --resume_from_checkpoint --phase1_end_step 7038

or both by run_pretraining.sh. Data are HDF5 files of prepare.py with "training" in their names. With several processes:
torchrun --nproc_per_node 8 run_pretraining.py … (or mpirun, srun).

What a run leaves in --output_dir:

    ckpt_100 …            weights, moments, counters, random state, position in the data; the newest three
    phase1_bert.onnx      the model after phase 1, final_bert.onnx after phase 2: inputs input_ids, segment_ids,
                          input_mask, outputs prediction_scores, seq_relationship_score
    dllogger.json         a JSON line every --log_freq steps, with upstream's keys (--json-summary names another file)
    events.out.*          for tensorboard --logdir RUN
    report.html           curves, time per operator, memory, the searchable graph of a step; needs no network

Ctrl-C or SIGTERM finishes the step, writes a checkpoint and says how to go on. A run that goes on equals one that was
never stopped, to the bit, wherever in a data file it was.

Loss is that of masked words, a mean over the labels of a whole update in all processes, plus that of next sentences.
LAMB: averages 0.9 and 0.999, ε 1e-6, weight decay 0.01 but for biases and layer norms.

Exit codes: 0 done; 1 the loss became NaN or infinite; 2 a flag, the data, a checkpoint or the disk is at fault;
130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers")

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from corpus.workspace import DataError
from pretraining.options import Engine, Options, Schedule


def _flag(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=text)


def main(
    input_dir: Annotated[Path, _flag("input_dir", "HDF5 files with training in their names.")],
    output_dir: Annotated[Path, _flag("output_dir", "For everything that the run writes.")],
    config_file: Annotated[Path | None, _flag("config_file", "The model's sizes, bert_config.json.")] = None,
    bert_model: Annotated[
        str, _flag("bert_model", "A published model's sizes, without --config_file.")
    ] = "bert-large-uncased",
    init_checkpoint: Annotated[
        Path | None, _flag("init_checkpoint", "Weights to begin with: a checkpoint, Hugging Face's folder, a .pt.")
    ] = None,
    max_seq_length: Annotated[int, _flag("max_seq_length", "Tokens a sequence, as in the files.")] = 512,
    max_predictions_per_seq: Annotated[int, _flag("max_predictions_per_seq", "Masked words a sequence.")] = 80,
    train_batch_size: Annotated[int, _flag("train_batch_size", "Sequences an update and process.")] = 32,
    learning_rate: Annotated[float, _flag("learning_rate", "LAMB's, at the end of the warmup.")] = 5e-5,
    num_train_epochs: Annotated[
        float | None, _flag("num_train_epochs", "End when the data were gone through so often, before --max_steps.")
    ] = None,
    max_steps: Annotated[float, _flag("max_steps", "Updates of this phase.")] = 1000,
    warmup_proportion: Annotated[float, _flag("warmup_proportion", "Share of them with a rising rate.")] = 0.01,
    schedule: Annotated[Schedule, _flag("schedule", "How the rate goes on.")] = Schedule.warmup_poly,
    max_grad_norm: Annotated[float, _flag("max_grad_norm", "Clip the gradient to this norm; 0: do not.")] = 1.0,
    local_rank: Annotated[int, _flag("local_rank", "Which GPU, as old launchers pass it.")] = -1,
    use_env: Annotated[bool, _flag("use_env", "Ask the launcher's environment instead.")] = False,
    seed: Annotated[int, _flag("seed", "Of initial weights, dropout and the order of the data.")] = 42,
    gradient_accumulation_steps: Annotated[
        int, _flag("gradient_accumulation_steps", "Parts that the batch is cut into, to need less memory.")
    ] = 1,
    fp16: Annotated[bool, _flag("fp16", "Mixed precision with float16.")] = False,
    bf16: Annotated[bool, _flag("bf16", "Mixed precision with bfloat16.")] = False,
    loss_scale: Annotated[float, _flag("loss_scale", "With --fp16; 0: found as it goes.")] = 0.0,
    log_freq: Annotated[float, _flag("log_freq", "Steps from row to row of the log.")] = 1.0,
    checkpoint_activations: Annotated[
        bool, _flag("checkpoint_activations", "Compute the layers again going backward.")
    ] = False,
    resume_from_checkpoint: Annotated[
        bool, _flag("resume_from_checkpoint", "Go on from --output_dir's newest checkpoint.")
    ] = False,
    resume_step: Annotated[int, _flag("resume_step", "Go on from ckpt_N instead; -1: the newest.")] = -1,
    num_steps_per_checkpoint: Annotated[int, _flag("num_steps_per_checkpoint", "Steps between checkpoints.")] = 100,
    keep_checkpoints: Annotated[int, _flag("keep_checkpoints", "How many stay.")] = 3,
    skip_checkpoint: Annotated[bool, _flag("skip_checkpoint", "Write no checkpoint.")] = False,
    phase2: Annotated[bool, _flag("phase2", "Go on behind phase 1, with longer sequences.")] = False,
    phase1_end_step: Annotated[int, _flag("phase1_end_step", "Updates that phase 1 had.")] = 7038,
    allreduce_post_accumulation: Annotated[
        bool, _flag("allreduce_post_accumulation", "Add up gradients over processes once an update.")
    ] = False,
    allreduce_post_accumulation_fp16: Annotated[
        bool, _flag("allreduce_post_accumulation_fp16", "In float16: refused, it is done in float32.")
    ] = False,
    deepspeed_zero_stage: Annotated[
        bool,
        typer.Option("--deepspeed_zero_stage", "--partition_optimizer", help="Share out the moments (ZeRO stage 1)."),
    ] = False,
    gpu_memory_limit_gb: Annotated[
        float | None, _flag("gpu_memory_limit_gb", "Refuse a step that needs more memory, in GiB.")
    ] = None,
    do_train: Annotated[bool, _flag("do_train", "Train; there is nothing else to do.")] = False,
    json_summary: Annotated[
        Path | None,
        typer.Option("--json-summary", "--json_summary", help="The log; by default dllogger.json in --output_dir."),
    ] = None,
    disable_progress_bar: Annotated[bool, _flag("disable_progress_bar", "Lines only.")] = False,
    use_ib: Annotated[bool, _flag("use_ib", "Have NCCL use InfiniBand even where it is switched off.")] = False,
    engine: Annotated[Engine, _flag("engine", "What runs the steps.")] = Engine.ontrain,
    device: Annotated[str | None, _flag("device", "cpu, cuda:1 …; by default a GPU if there is one.")] = None,
) -> None:
    """Pre-train BERT; see the top of run_pretraining.py."""
    began = time.perf_counter()
    arguments = dict(locals())
    del arguments["began"]
    try:
        options = Options(**arguments)
    except DataError as error:
        _fail(str(error), 2)
    # Here, so that a wrong flag need not wait for them.
    from pretraining.run import pretrain

    from ontrain.errors import NonFiniteLossError, OntrainError

    try:
        complete = pretrain(options, began)
    except NonFiniteLossError as error:
        _fail(f"{error}\nthe last checkpoint stays; a lower --learning_rate or a longer warmup may help", 1)
    except (DataError, OntrainError, OSError) as error:
        _fail(str(error), 2)
    if not complete:
        again = [one for one in sys.argv if one != "--resume_from_checkpoint"]
        command = shlex.join(["python", *again, "--resume_from_checkpoint"])
        print(f"interrupted; go on with\n  {command}", file=sys.stderr)
        raise typer.Exit(130)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
