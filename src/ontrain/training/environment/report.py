"""Versions, machine, threads, caches and variables: what belongs into a report about a problem."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import torch

import ontrain
from ontrain.capture import open_cache
from ontrain.errors import OntrainError
from ontrain.internals import check_all
from ontrain.providers import available_providers
from ontrain.providers.torch import processor
from ontrain.providers.torch.timings import tuning_file
from ontrain.training.environment.variables import VARIABLES, unknown_variables

__all__ = ["Environment", "collect_environment"]

_PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "onnxruntime-training", "numpy", "safetensors", "transformers",
             "accelerate", "triton")  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")


@dataclass(frozen=True)
class Environment:
    """What `ontrain env` prints.

    Attributes:
        versions: of ontrain, Python and packages; None for one that is not installed.
        system: operating system, processor, cores and memory in bytes.
        devices: CUDA devices, with their memory in bytes.
        cuda: versions of CUDA and cuDNN that torch was built for; empty without.
        providers: execution providers that can train here.
        threads: of torch, and the variables that set them.
        cache: where captured graphs and measured products are kept; a reason where there are none.
        variables: all that have or had a meaning, with their present value.
        canaries: a trial of each name that ontrain takes of torch without torch's promise: the name, what for, the
            state it is in, whether it passed, and, where it did not, why and what is refused.
    """

    versions: dict[str, str | None]
    system: dict[str, Any]
    devices: list[dict[str, Any]]
    cuda: dict[str, str]
    providers: list[str]
    threads: dict[str, Any]
    cache: dict[str, str | None]
    variables: list[dict[str, Any]]
    canaries: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"schema": 1, **asdict(self)}


def collect_environment() -> Environment:
    """Return what this process runs in; nothing is raised for a wrong variable.

    The canaries compute a few numbers: on the processor, and on a GPU where there is one.
    """
    return Environment(
        versions={
            "ontrain": ontrain.__version__,
            "python": sys.version.replace("\n", " "),
            "torch": str(torch.__version__),  # which says what it was built for, as its package's version does not
            **{name: _version(name) for name in _PACKAGES},
        },
        system=_system(),
        devices=_devices(),
        cuda=_cuda(),
        providers=available_providers(),
        threads={
            "torch": torch.get_num_threads(),
            "torch between operators": torch.get_num_interop_threads(),
            **{name: os.environ.get(name) for name in _THREADS},
        },
        cache={"captured graphs": _captures(), "measured products": _measured()},
        variables=_variables(),
        canaries=_canaries(),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _system() -> dict[str, Any]:
    available = getattr(os, "sched_getaffinity", None)
    return {
        "platform": platform.platform(),
        "processor": processor.model_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "cores for this process": len(available(0)) if available is not None else os.cpu_count(),
        "memory": _memory(),
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _devices() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [
        {"name": device.name, "memory": device.total_memory, "capability": f"{device.major}.{device.minor}"}
        for device in devices
    ]


def _cuda() -> dict[str, str]:
    versions = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    cudnn = torch.backends.cudnn.version() if torch.version.cuda and torch.cuda.is_available() else None
    return {name: str(version) for name, version in {**versions, "cuDNN": cudnn}.items() if version}


def _captures() -> str | None:
    try:
        folder = open_cache()
    except OntrainError as error:
        return error.problem
    return None if folder is None else str(folder.path)


def _measured() -> str | None:
    file = tuning_file()
    return str(file) if file.exists() else None


def _variables() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "name": variable.name, "value": os.environ.get(variable.name), "default": variable.default or None,
            "read": variable.meaning is not None, "meaning": variable.meaning or variable.instead,
        }
        for variable in VARIABLES.values()
    ]  # fmt: skip
    for name, meant in unknown_variables().items():
        meaning = f"no such variable; nearest: {meant}"
        rows.append({"name": name, "value": os.environ[name], "default": None, "read": False, "meaning": meaning})
    return rows


def _canaries() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for finding in check_all():
        # Of another release's names nothing is asked here: what needs one takes the other's.
        passed = finding.holds or finding.state == "of another release"
        rows.append({
            "name": finding.row.name, "purpose": finding.row.purpose, "state": finding.state, "passed": passed,
            "reason": finding.reason or None, "refused": None if passed else finding.row.refuses,
        })  # fmt: skip
    return rows
