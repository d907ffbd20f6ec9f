#!/usr/bin/env bash
# Run a recipe in the image ontrain:cpu or ontrain:cuda.
#
#   docker/launch.sh getting-started
#   DATA=~/bert docker/launch.sh bert-data --action download --dataset wikicorpus_en
#   GPUS=all DATA_PHASE1=~/hdf5/128 DATA_PHASE2=~/hdf5/512 docker/launch.sh bert-pretraining "" "" fp16 4
#   GPUS=all DATA=~/squad num_gpus=8 docker/launch.sh squad --output_dir runs/squad ...
#   GPUS=all DATA=~/wikitext-103 num_gpus=4 use_ort=true docker/launch.sh gpt2 --max_steps=1000
#   DRY_RUN=1 docker/launch.sh getting-started
#
# The first word is the recipe; what follows goes to it. Settings are variables:
#
#   GPUS          all, a number, or device=0,2: the CUDA image with these GPUs. Without it the CPU image.
#   DATA          a folder of this machine, in the container /data; read-only, but for bert-data, which fills it
#   DATA_PHASE1, DATA_PHASE2   bert-pretraining: the folders of HDF5 files, in the container /data/128 and /data/512
#   RUNS          where results go; by default ./runs
#   num_gpus      gpt2, squad, glue: how many processes train; by default 1
#   TRAIN_FILE, TEST_FILE, use_ort, MODEL, TOKENIZER   gpt2: as recipes/gpt2/run_lm.sh explains them; the files are by
#                 default WikiText's, in /data
#   IMAGE         another image
#   DOCKER        another engine: podman
#   DRY_RUN       anything: print the command and do nothing
#
# The container runs as the caller, so that results belong to them; it has no rights that the caller lacks.
# Exit codes: 2 for a wrong word or setting, else the recipe's.
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

die() {
  echo "launch.sh: $1" >&2
  exit 2
}

recipe=${1:-}
[ $# -gt 0 ] && shift
access=ro
results=/workspace/runs
variables=()
case $recipe in
  getting-started) run=(python recipes/getting_started/train.py --output runs/getting-started) ;;
  bert-data) run=(python recipes/bert/prepare.py --working_dir /data) access=rw ;;
  bert-pretraining)
    run=(bash recipes/bert/run_pretraining.sh)
    results=/workspace/recipes/bert/results # where the script writes
    ;;
  squad | glue)
    run=(python)
    if [ "${num_gpus:-1}" != 1 ]; then run=(torchrun --standalone --nproc_per_node "$num_gpus"); fi
    run+=("recipes/bert/run_$recipe.py")
    ;;
  gpt2)
    run=(bash recipes/gpt2/run_lm.sh)
    # A name without a value stands for the caller's, if there is one.
    variables=(
      --env "TRAIN_FILE=${TRAIN_FILE:-/data/wiki.train.tokens}" --env "TEST_FILE=${TEST_FILE:-/data/wiki.test.tokens}"
      --env num_gpus --env use_ort --env MODEL --env TOKENIZER
    )
    ;;
  on-device) run=(python recipes/on_device/make_artifacts.py --output runs/on-device) ;;
  shell) run=(bash) ;;
  *) die "which recipe? getting-started, bert-data, bert-pretraining, squad, glue, gpt2, on-device or shell" ;;
esac

# A folder of this machine at a place in the container. The engine would make a missing one, empty and root's.
mounts=()
mount() {
  local host=$1 place=$2 mode=$3 name=$4
  [ -d "$host" ] || die "$name: there is no folder $host"
  host=$(cd "$host" && pwd)
  case $host in *:*) die "$name: $host has a colon in it, which separates the parts of --volume" ;; esac
  mounts+=(--volume "$host:$place:$mode")
}

if [ -n "${DATA:-}" ]; then mount "$DATA" /data "$access" DATA; fi
if [ -n "${DATA_PHASE1:-}" ]; then mount "$DATA_PHASE1" /data/128 ro DATA_PHASE1; fi
if [ -n "${DATA_PHASE2:-}" ]; then mount "$DATA_PHASE2" /data/512 ro DATA_PHASE2; fi
if [ "$recipe" = bert-data ] && [ -z "${DATA:-}" ]; then
  die "bert-data writes its files to DATA: DATA=~/bert docker/launch.sh bert-data ..."
fi
if [ -n "${DATA:-}" ] && [ -n "${DATA_PHASE1:-}${DATA_PHASE2:-}" ]; then
  die "DATA_PHASE1 and DATA_PHASE2 lie inside /data, where DATA is: give the one or the others"
fi

runs=${RUNS:-runs}
if [ "$recipe" = bert-pretraining ]; then runs=$runs/bert-pretraining; fi
if [ -z "${DRY_RUN:-}" ]; then mkdir -p "$runs"; fi
case $runs in /*) ;; *) runs=$PWD/$runs ;; esac
mounts+=(--volume "$runs:$results:rw")

devices=()
kind=cpu
if [ -n "${GPUS:-}" ]; then
  kind=cuda
  # NCCL locks its buffers in memory.
  devices=(--gpus "$GPUS" --ulimit memlock=-1 --ulimit stack=67108864)
fi

terminal=()
if [ -t 0 ] && [ -t 1 ]; then terminal=(--interactive --tty); fi

engine=${DOCKER:-docker}
user=(--user "$(id -u):$(id -g)")
# podman without root gives the container numbers of its own, unless told to keep the caller's.
if [ "$(basename "$engine")" = podman ]; then user+=(--userns keep-id); fi

# Processes of one run share memory; the engine's default of 64 MB is too small for that.
command=(
  "$engine" run --rm --init "${terminal[@]}"
  "${user[@]}" --env HOME=/tmp "${variables[@]}"
  --cap-drop ALL --security-opt no-new-privileges --shm-size 2g
  "${devices[@]}" "${mounts[@]}"
  "${IMAGE:-ontrain:$kind}" "${run[@]}" "$@"
)
if [ -n "${DRY_RUN:-}" ]; then
  printf '%q ' "${command[@]}"
  echo
  exit
fi
command -v "$engine" > /dev/null || die "there is no $engine; name the engine: DOCKER=podman docker/launch.sh $recipe"
exec "${command[@]}"
