"""Execution providers: what compiles a graph for a signature and runs it."""

from ontrain.providers.base import (
    Array,
    AtOnce as AtOnce,
    Capabilities,
    Executable,
    ExecutionProvider,
    FlatKey,
    FlatState,
    ModuleExecutable,
    ModuleMemory,
    NodeTime,
    OperatorTime,
    State,
    StateSpec,
    Tape,
    Tensor,
    own_state,
)
from ontrain.providers.registry import available_providers, get_provider

__all__ = [
    "Array",
    "Capabilities",
    "Executable",
    "ExecutionProvider",
    "FlatKey",
    "FlatState",
    "ModuleExecutable",
    "ModuleMemory",
    "NodeTime",
    "OperatorTime",
    "State",
    "StateSpec",
    "Tape",
    "Tensor",
    "available_providers",
    "get_provider",
    "own_state",
]
