#!/usr/bin/env bash
# Check the images: their files with linters, and their steps in a clean root where there is no engine.
#
#   docker/check.sh                     hadolint and shellcheck, from the development environment or the PATH
#   docker/check.sh build cpu           run the steps of Dockerfile.cpu, then a recipe in what they made
#   docker/check.sh build cuda --build-arg TORCH_INDEX=...   options go on to buildah
#
# `build` needs Debian, root, debootstrap and buildah, and neither a daemon nor Docker Hub: buildah runs the Dockerfile's own
# steps in a chroot. In place of the official Python image, which has to be pulled, stands a root of Debian bookworm that
# debootstrap makes, with Debian's Python 3.11. So the base's digest and what only that image holds stay unchecked.
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$PATH:$root/.venv/bin BUILDAH_ISOLATION=chroot
scratch=
container=

clean() {
  if [ -n "$scratch" ]; then rm -rf "$scratch"; fi
  if [ -n "$container" ]; then buildah rm "$container" > /dev/null; fi
}
trap clean EXIT

die() {
  echo "check.sh: $1" >&2
  exit 2
}

need() {
  for tool in "$@"; do
    command -v "$tool" > /dev/null || die "there is no $tool"
  done
}

lint() {
  need hadolint shellcheck
  hadolint "$root"/docker/Dockerfile.* "$root/azureml/Dockerfile"
  shellcheck "$root"/docker/*.sh
  echo "hadolint and shellcheck find nothing"
}

# The stand-in for the official image: python on the PATH, certificates, and nothing else that Debian can do without.
base() {
  local made=$1 filled
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$made"
  ln -s /usr/bin/python3 "$made/usr/local/bin/python"
  rm -rf "$made"/var/cache/apt/archives/*.deb "$made"/var/lib/apt/lists/*
  filled=$(buildah from scratch)
  buildah add --quiet "$filled" "$made" / > /dev/null
  buildah commit --quiet "$filled" localhost/ontrain-base > /dev/null
  buildah rm "$filled" > /dev/null
}

build() {
  local kind=$1 file
  shift
  case $kind in
    cpu | cuda) file=$root/docker/Dockerfile.$kind ;;
    azureml) file=$root/azureml/Dockerfile ;;
    *) die "build what? cpu, cuda or azureml" ;;
  esac
  need debootstrap buildah
  [ "$(id -u)" = 0 ] || die "a chroot and debootstrap need root"

  scratch=$(mktemp -d)
  buildah inspect --type image localhost/ontrain-base > /dev/null 2>&1 || base "$scratch/base"
  buildah build --build-arg PYTHON_IMAGE=localhost/ontrain-base --file "$file" --tag "localhost/ontrain:$kind" "$@" "$root"

  container=$(buildah from "localhost/ontrain:$kind")
  try() {
    echo "+ $*"
    buildah run "$container" -- "$@"
  }
  try ontrain --help > /dev/null
  if [ "$kind" != cpu ]; then
    try mpirun -n 2 python -c 'from ontrain.distributed import find_processes; print(find_processes())'
  fi
  if [ "$kind" != azureml ]; then
    [ "$(buildah run "$container" -- id -u)" = 10001 ] || die "the image runs as root"
    if buildah run "$container" -- touch /opt/ontrain/mine 2> /dev/null; then die "the user may change what is installed"; fi
    try python recipes/getting_started/train.py --max-steps 20
  fi
  buildah images --format '{{.Name}}:{{.Tag}} {{.Size}}' "localhost/ontrain:$kind"
}

case ${1:-} in
  "") lint ;;
  build)
    shift
    [ $# -gt 0 ] || die "build what? cpu, cuda or azureml"
    build "$@"
    ;;
  *) die "docker/check.sh, or docker/check.sh build cpu|cuda|azureml" ;;
esac
