"""Fine-tune BERT to answer questions about paragraphs (SQuAD 1.1 and 2.0), and score its answers in two engines.

    $ python run_squad.py --model_name_or_path ~/bert-base-uncased --do_train --do_eval \\
          --train_file train-v1.1.json --predict_file dev-v1.1.json --output_dir runs/squad

The flags are those of Hugging Face's run_squad.py. Training is a plain PyTorch loop around `ORTModule(model)`
(finetuning/training.py); `--engine pytorch` runs the same loop without it. The answers are chosen twice, from logits of
PyTorch and of the exported model.onnx in onnxruntime, and both are scored.

On several GPUs: `torchrun --nproc_per_node 8 run_squad.py …`, or mpirun, or srun. Each takes
--per_gpu_train_batch_size windows at a time; the first evaluates and writes.

SQuAD 2.0, with questions that have no answer: `--version_2_with_negative`. One file without a second to evaluate on:
`--holdout_articles 0.2` keeps the last fifth of its articles from training. Weights out of a pre-training of your own:
`--init_checkpoint FOLDER`, which convert_checkpoint.py makes; `--random_init` takes none, to compare with.

What a run leaves in --output_dir:

    config.json, model.safetensors, vocab.txt   the model; give the folder as --model_name_or_path to evaluate alone
    model.onnx                                  input_ids, attention_mask, token_type_ids to start_logits, end_logits
    predictions.json, nbest_predictions.json    answers, the n best with probabilities; null_odds.json in version 2.0
    predictions_onnx.json                       the answers out of onnxruntime
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
    flags: options.Flags,
    train_file: Annotated[Path | None, typer.Option("--train_file", help="train-v1.1.json, or one like it.")] = None,
    predict_file: Annotated[Path | None, typer.Option("--predict_file", help="dev-v1.1.json.")] = None,
    holdout_articles: Annotated[
        float, typer.Option("--holdout_articles", help="Without --predict_file: share of --train_file's articles.")
    ] = 0.0,
    version_2_with_negative: Annotated[
        bool, typer.Option("--version_2_with_negative", help="Questions may have no answer.")
    ] = False,
    null_score_diff_threshold: Annotated[
        float, typer.Option("--null_score_diff_threshold", help="No answer where null scores so much more.")
    ] = 0.0,
    max_seq_length: Annotated[int, typer.Option("--max_seq_length", help="Tokens of a window.")] = 384,
    doc_stride: Annotated[int, typer.Option("--doc_stride", help="Tokens from window to window.")] = 128,
    max_query_length: Annotated[int, typer.Option("--max_query_length", help="Tokens of a question.")] = 64,
    n_best_size: Annotated[int, typer.Option("--n_best_size", min=1, help="Answers kept a question.")] = 20,
    max_answer_length: Annotated[int, typer.Option("--max_answer_length", min=1, help="In tokens.")] = 30,
) -> None:
    """Fine-tune BERT on SQuAD; the top of run_squad.py is the manual."""
    from finetuning.squad import fine_tune  # torch and the rest, which --help need not wait for

    fine_tune(
        flags,
        train_file=train_file,
        predict_file=predict_file,
        holdout_articles=holdout_articles,
        version_2_with_negative=version_2_with_negative,
        null_score_diff_threshold=null_score_diff_threshold,
        max_seq_length=max_seq_length,
        doc_stride=doc_stride,
        max_query_length=max_query_length,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
    )


if __name__ == "__main__":
    typer.run(main)
