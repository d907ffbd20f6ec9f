#!/usr/bin/env bash
# GPT-2 fine-tuned with the options of ONNX Runtime Training's example. Set what follows here, or in the environment:
#
#   TRAIN_FILE=wiki.train.tokens TEST_FILE=wiki.test.tokens bash recipes/gpt2/run_lm.sh
#
# Options behind the script's name come last and so override those below:
#
#   num_gpus=1 use_ort=false bash recipes/gpt2/run_lm.sh --per_gpu_train_batch_size=1 --max_steps=100
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

num_gpus=${num_gpus:-1}
use_ort=${use_ort:-true}
MODEL=${MODEL-gpt2-medium}         # a folder, a name of Hugging Face's hub, or empty: from scratch
TOKENIZER=${TOKENIZER-gpt2-medium} # a folder with vocab.json and merges.txt, or a hub's name
RESULT_DIR=${RESULT_DIR:-runs/gpt2}
PYTHON=${PYTHON:-python}
: "${TRAIN_FILE:?names the text to train on}" "${TEST_FILE:?names the text to evaluate on}"

run_file=$(dirname "${BASH_SOURCE[0]}")/run_lm.py
if [ "$use_ort" = true ]; then
  echo "Launching ontrain on ${num_gpus} processes:"
  output=$RESULT_DIR/output-ort
else
  echo "Launching PyTorch on ${num_gpus} processes:"
  output=$RESULT_DIR/output-pytorch
fi
launch=("$PYTHON")
if [ "$num_gpus" -gt 1 ]; then
  launch=("$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$num_gpus")
fi
model=()
if [ -n "$MODEL" ]; then
  model=(--model_name_or_path="$MODEL")
fi

# 8 batches of 4 · 1,024 tokens on each of the processes: 32,768 tokens an update and process
"${launch[@]}" "$run_file" \
  --use_ort="$use_ort" \
  --output_dir="$output" \
  --model_type=gpt2-medium \
  "${model[@]}" \
  --tokenizer_name="$TOKENIZER" \
  --do_train \
  --do_eval \
  --train_data_file="$TRAIN_FILE" \
  --eval_data_file="$TEST_FILE" \
  --per_gpu_train_batch_size=4 \
  --per_gpu_eval_batch_size=4 \
  --gradient_accumulation_steps=8 \
  --block_size=1024 \
  --weight_decay=0.01 \
  --overwrite_output_dir \
  --logging_steps=100 \
  --num_train_epochs=5 \
  "$@"
