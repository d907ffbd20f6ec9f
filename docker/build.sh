#!/usr/bin/env bash
# Build the image ontrain:cpu or ontrain:cuda from this checkout.
#
#   docker/build.sh cpu
#   docker/build.sh cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126
#
# What follows the first word goes to `docker build`. Another engine: DOCKER=podman. Another name: IMAGE=me/ontrain:1.
# Exit codes: 2 for a wrong first word or a missing engine, else the engine's.
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

die() {
  echo "build.sh: $1" >&2
  exit 2
}

case ${1:-} in
  cpu | cuda) kind=$1 ;;
  *) die "build what? docker/build.sh cpu, or docker/build.sh cuda" ;;
esac
shift

docker=${DOCKER:-docker}
command -v "$docker" > /dev/null || die "there is no $docker; name the engine: DOCKER=podman docker/build.sh $kind"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "$docker" build --file "$root/docker/Dockerfile.$kind" --tag "${IMAGE:-ontrain:$kind}" "$@" "$root"
