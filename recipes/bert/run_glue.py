"""Fine-tune BERT on a task of GLUE, and score its predictions in two engines.

    $ python run_glue.py --task_name CoLA --data_dir ~/glue/CoLA --model_name_or_path ~/bert-base-uncased \\
          --do_train --do_eval --output_dir runs/cola

Tasks: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI. --data_dir holds train.tsv and dev.tsv as the benchmark's
archives have them (MNLI: dev_matched.tsv and dev_mismatched.tsv; CoLA without header). The flags are those of Hugging
Face's run_glue.py. Training is a plain PyTorch loop around `ORTModule(model)` (finetuning/training.py); `--engine
pytorch` runs the same loop without it. Predictions come twice, from logits of PyTorch and of the exported model.onnx in
onnxruntime, and both are scored: Matthews' correlation for CoLA, Pearson's and Spearman's for STS-B, accuracy and F1
for MRPC and QQP, accuracy for the others.

On several GPUs: `torchrun --nproc_per_node 8 run_glue.py …`, or mpirun, or srun. Each takes
--per_gpu_train_batch_size examples at a time; the first evaluates and writes.

Weights out of a pre-training of your own: `--init_checkpoint FOLDER`, which convert_checkpoint.py makes;
`--random_init` takes none, to compare with.

What a run leaves in --output_dir:

    config.json, model.safetensors, vocab.txt   the model; give the folder as --model_name_or_path to evaluate alone
    model.onnx                                  inputs input_ids, attention_mask, token_type_ids; output logits
    predictions_{set}.tsv                       index, the prediction of each engine, the label
    eval_results.json                           scores, agreement of the engines, command, versions
    train_log.jsonl                             a row an update: step, loss, learning_rate, examples
    checkpoint/, checkpoint~1/                  what the same command goes on from, whatever stopped it

Exit codes: 0 done; 1 the loss became NaN or infinite, or the two engines' logits differ by more than 1e-3; 2 an option,
the data, the model or the disk is at fault, said in one message; 130 Ctrl-C or SIGTERM: the update was finished
and a checkpoint written.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "tokenizers", "transformers")

from pathlib import Path
from typing import Annotated

import typer
from finetuning import options


@options.shared
def main(
    task_name: Annotated[str, typer.Option("--task_name", help="CoLA, SST-2, MRPC, STS-B, QQP, MNLI, …")],
    data_dir: Annotated[Path, typer.Option("--data_dir", help="Folder of train.tsv and dev.tsv.")],
    flags: options.Flags,
    max_seq_length: Annotated[int, typer.Option("--max_seq_length", min=5, help="Tokens; more are cut off.")] = 128,
    max_train_samples: Annotated[
        int | None, typer.Option("--max_train_samples", min=1, help="Train on so many only, drawn by the seed.")
    ] = None,
) -> None:
    """Fine-tune BERT on a task of GLUE; the top of run_glue.py is the manual."""
    from finetuning.glue import fine_tune  # torch and the rest, which --help need not wait for

    fine_tune(flags, task_name, data_dir, max_seq_length, max_train_samples)


if __name__ == "__main__":
    typer.run(main)
