#!/usr/bin/env bash
# Both phases of BERT's pre-training, one after the other. Positions are upstream's; an empty one has its default:
#
#   bash run_pretraining.sh [1 … 27] [-- further flags of run_pretraining.py, for both phases]
#   bash run_pretraining.sh "" "" bf16 4            # four GPUs, bfloat16, the table's batches
#
# Whatever stopped it: start it again with resume_training (8) true, and it goes on where it was, in either phase.
#
# Batch and accumulation follow from the number of GPUs and their memory: about 65,536 sequences an update in phase 1 and
# 32,768 in phase 2 over all GPUs, in micro-batches of 128 and 16 from 32 GB on, of 48 and 8 below.
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

given=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do given+=("$1"); shift; done
[ $# -eq 0 ] || shift
value() { local found=${given[$(($1 - 1))]:-}; printf '%s' "${found:-$2}"; }
fail() { echo "error: $1" >&2; exit 2; }
[ ${#given[@]} -le 27 ] || fail "${#given[@]} positions, there are 27; flags of run_pretraining.py go behind --"

num_gpus=$(value 4 8)
gpu_memory_limit_gb=$(value 26 32)
[[ $num_gpus =~ ^[1-9][0-9]*$ ]] || fail "num_gpus (4) is $num_gpus"
[[ $gpu_memory_limit_gb =~ ^[1-9][0-9]*$ ]] || fail "gpu_memory_limit_gb (26) is $gpu_memory_limit_gb"
micro=128 micro_phase2=16 sequences=65536
if [ "$gpu_memory_limit_gb" -lt 32 ]; then
  micro=48 micro_phase2=8 sequences=65280 # the next multiple of 48 that sixteen GPUs share
fi
# Down to whole micro-batches: 65,280 / 32 GPUs / 48 = 42, times 48 = 2,016.
parts=$((sequences / num_gpus / micro)) parts_phase2=$((32768 / num_gpus / micro_phase2))

train_batch_size=$(value 1 $((parts * micro)))
learning_rate=$(value 2 6e-3)
precision=$(value 3 fp16)
warmup_proportion=$(value 5 0.2843)
train_steps=$(value 6 7038)
save_checkpoint_steps=$(value 7 200)
resume_training=$(value 8 false)
create_logfile=$(value 9 true)
accumulate_gradients=$(value 10 true)
gradient_accumulation_steps=$(value 11 "$parts")
seed=$(value 12 42)
job_name=$(value 13 bert_lamb_pretraining)
allreduce_post_accumulation=$(value 14 true)
allreduce_post_accumulation_fp16=$(value 15 false)
train_batch_size_phase2=$(value 17 $((parts_phase2 * micro_phase2)))
learning_rate_phase2=$(value 18 4e-3)
warmup_proportion_phase2=$(value 19 0.128)
train_steps_phase2=$(value 20 1563)
gradient_accumulation_steps_phase2=$(value 21 "$parts_phase2")
data_dir_phase1=$(value 22 /data/128)
data_dir_phase2=$(value 23 /data/512)
codedir=$(value 24 "$here")
init_checkpoint=$(value 25 None)
deepspeed_zero_stage=$(value 27 false)

results_dir=$codedir/results checkpoints_dir=${CHECKPOINTS_DIR:-$codedir/results/checkpoints}
config=${BERT_CONFIG:-$codedir/bert_config.json}
mkdir -p "$checkpoints_dir" || fail "$checkpoints_dir cannot be made"
case $precision in
  fp16 | bf16) half=(--"$precision") ;;
  fp32) half=() ;;
  *) fail "precision (3) is $precision: fp16, bf16 or fp32" ;;
esac
if [ "$accumulate_gradients" != true ]; then
  gradient_accumulation_steps=1 gradient_accumulation_steps_phase2=1
fi
common=(--do_train --output_dir "$checkpoints_dir" --seed "$seed" --num_steps_per_checkpoint "$save_checkpoint_steps"
  --json-summary "$checkpoints_dir/dllogger.json" "${half[@]}")
# Without position 26 the table is that of 32 GB, and a larger card may be used up.
[ -z "$(value 26 "")" ] || common+=(--gpu_memory_limit_gb "$gpu_memory_limit_gb")
[ ! -f "$config" ] || common+=(--config_file "$config")
[ "$allreduce_post_accumulation" != true ] || common+=(--allreduce_post_accumulation)
[ "$allreduce_post_accumulation_fp16" != true ] || common+=(--allreduce_post_accumulation_fp16)
[ "$deepspeed_zero_stage" != true ] || common+=(--deepspeed_zero_stage)

launch() { # number of the phase, sequences an update of one GPU, flags
  local phase=$1 batch=$2 log=/dev/null
  shift 2
  if [ "$create_logfile" = true ]; then
    log=$results_dir/$job_name.pyt_bert_pretraining_phase${phase}_${precision}_gbs$((batch * num_gpus)).$(date +%y%m%d%H%M%S).log
    mkdir -p "$results_dir"
  fi
  local start=(python)
  [ "$num_gpus" -eq 1 ] || start=(torchrun --standalone --nproc_per_node "$num_gpus")
  "${start[@]}" "$codedir/run_pretraining.py" "${common[@]}" --train_batch_size "$batch" "$@" 2>&1 | tee "$log"
}

newest=$(find "$checkpoints_dir" -maxdepth 1 -type d -name 'ckpt_*' | sed 's/.*ckpt_//' | sort -n | tail -n 1)
if [ -n "$newest" ] && [ "$resume_training" != true ]; then
  fail "$checkpoints_dir holds ckpt_$newest: resume_training (8) true goes on, CHECKPOINTS_DIR names another folder"
fi

exported=$([ -f "$checkpoints_dir/phase1_bert.onnx" ] && echo 1 || echo 0)
newest=${newest:--1}
if [ "$newest" -lt "$train_steps" ] || [ "$newest" -eq "$train_steps" ] && [ "$exported" -eq 0 ]; then
  resume=()
  [ "$newest" -lt 0 ] || resume=(--resume_from_checkpoint)
  [ "$init_checkpoint" = None ] || resume+=(--init_checkpoint "$init_checkpoint")
  launch 1 "$train_batch_size" --input_dir "$data_dir_phase1" --max_seq_length 128 --max_predictions_per_seq 20 \
    --learning_rate "$learning_rate" --warmup_proportion "$warmup_proportion" --max_steps "$train_steps" \
    --gradient_accumulation_steps "$gradient_accumulation_steps" "${resume[@]}" "$@"
fi
launch 2 "$train_batch_size_phase2" --input_dir "$data_dir_phase2" --max_seq_length 512 --max_predictions_per_seq 80 \
  --learning_rate "$learning_rate_phase2" --warmup_proportion "$warmup_proportion_phase2" \
  --max_steps "$train_steps_phase2" --gradient_accumulation_steps "$gradient_accumulation_steps_phase2" \
  --phase2 --resume_from_checkpoint --phase1_end_step "$train_steps" "$@"
