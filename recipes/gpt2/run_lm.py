"""Train GPT-2 as one ONNX graph a step; measure perplexity and write text with the exported file in onnxruntime.

The options are those of Hugging Face's run_language_modeling.py as the GPT-2 example of ONNX Runtime Training patched
it; run_lm.sh has the example's own. A small GPT-2 from scratch, on two files of text:

    $ python recipes/gpt2/run_lm.py --output_dir runs/gpt2 --do_train --do_eval --do_eval_in_torch \\
          --train_data_file wiki.train.tokens --eval_data_file wiki.test.tokens \\
          --vocab_file vocab.json --merges_file merges.txt \\
          --config_overrides n_layer=4,n_embd=128,n_head=4,n_positions=128 \\
          --per_gpu_train_batch_size 16 --learning_rate 1e-3 --weight_decay 0.01 --warmup_steps 50 \\
          --num_train_epochs 3 --logging_steps 50 --evaluate_during_training

gpt2-medium fine-tuned, with the weights and the vocabulary of a folder (or of Hugging Face's hub):

    $ python recipes/gpt2/run_lm.py --model_name_or_path gpt2-medium --output_dir runs/gpt2-medium \\
          --do_train --do_eval --train_data_file wiki.train.tokens --eval_data_file wiki.test.tokens \\
          --block_size 1024 --per_gpu_train_batch_size 1 --gradient_accumulation_steps 16

`--engine pytorch` (or `--use_ort false`) makes the same updates in eager PyTorch: same initial weights, batches,
accumulation, clipping, AdamW and schedule. Without dropout (`--config_overrides
resid_pdrop=0,embd_pdrop=0,attn_pdrop=0`), whose random generators differ, the two draw one curve.

    tokens an update    per_gpu_train_batch_size · block_size · gradient_accumulation_steps · processes
    updates an epoch    text's tokens // tokens an update; the blocks that are left over wait for another epoch's order
    learning rate       from 0 over --warmup_steps to --learning_rate, then linearly to 0 at the last update

What a run leaves in --output_dir:

    checkpoint-N/         after N updates: weights, moments, counters; the newest --save_total_limit of them
    config.json, model.safetensors, vocab.json, merges.txt      what --model_name_or_path reads
    model.onnx            scores and key-value cache: input_ids, past_key_values.* -> logits, present.*
    metrics.jsonl         a row an interval of training, a row an evaluation with what the model wrote
    results.json          options, versions, perplexities, speed, texts
    eval_results_lm.txt   `perplexity = …`, as the example wrote it
    events.out.*          for `tensorboard --logdir runs`

Ctrl-C finishes the update, writes a checkpoint and says how to go on. A run that goes on (--resume_from_checkpoint)
makes the updates that the uninterrupted one would have made, to the last bit.

Exit codes: 0 done; 1 the loss became NaN or infinite (the last checkpoint stays), or onnxruntime's perplexity differs
from PyTorch's by more than a thousandth; 2 an option, a file or the output folder is at fault; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from needs import need

need("ontrain", "torch", "numpy", "rich", "tokenizers", "transformers")

from lm.arguments import parse

from ontrain.errors import NonFiniteLossError, OntrainError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        arguments = parse(given)  # an option that is wrong, or --help, waits for no library

        from lm.run import Run
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        return Run(arguments, ["recipes/gpt2/run_lm.py", *given])()
    except NonFiniteLossError as error:
        print(f"error: {error}\n  the last checkpoint stays; try a lower --learning_rate", file=sys.stderr)
        return 1
    except OntrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
