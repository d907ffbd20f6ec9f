"""Execution providers: what compiles a graph for a signature and runs it."""

from ontrain.providers.base import (
    Executable,
    ExecutionProvider,
    FlatState,
    ModuleExecutable,
    ModuleMemory,
    OperatorTime,
    State,
    StateSpec,
)
from ontrain.providers.registry import available_providers, get_provider

__all__ = [
    "Executable",
    "ExecutionProvider",
    "FlatState",
    "ModuleExecutable",
    "ModuleMemory",
    "OperatorTime",
    "State",
    "StateSpec",
    "available_providers",
    "get_provider",
]
