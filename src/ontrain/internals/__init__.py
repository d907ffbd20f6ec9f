"""What ontrain takes of torch that torch does not promise to keep: private names, and what is replaced while tracing.

Every other room comes here for it. `table` lists each name with what it is for, what checks it and what is refused
without it; `private`, `of` and `replaced` give it out. docs/dependencies.md says what a user of a newer torch sees.
"""

from ontrain.internals.access import (
    answering_class,
    available,
    check_all,
    injected,
    lost_calls_refused,
    mark_parameter,
    of,
    private,
    replaced,
    substituted,
    version_of,
    wrapped,
)
from ontrain.internals.ambient import (
    dispatch_modes,
    function_modes,
    global_hooks,
    of_torch,
    tensor_of,
    without_dispatch_modes,
    without_function_modes,
    without_gradients,
)
from ontrain.internals.classes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    GuardOnDataDependentSymNode,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
)
from ontrain.internals.constants import (
    GLOBAL_HOOKS,
    LIBRARY_FUNCTIONS,
    MODULE_HOOKS,
    MODULE_STATE,
    TALKATIVE_LOGGERS,
)
from ontrain.internals.dynamo import is_checkpoint, is_data, is_number, is_resident, is_written
from ontrain.internals.row import TESTED, Finding, Row
from ontrain.internals.table import TABLE

__all__ = [
    "LIBRARY_FUNCTIONS",
    "MODULE_HOOKS",
    "MODULE_STATE",
    "TABLE",
    "TALKATIVE_LOGGERS",
    "TESTED",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "Finding",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "OpOverload",
    "Row",
    "TorchDispatchMode",
    "answering_class",
    "available",
    "check_all",
    "function_modes",
    "injected",
    "is_checkpoint",
    "is_data",
    "is_number",
    "is_resident",
    "is_written",
    "lost_calls_refused",
    "mark_parameter",
    "of",
    "private",
    "replaced",
    "substituted",
    "version_of",
    "dispatch_modes",
    "global_hooks",
    "of_torch",
    "without_dispatch_modes",
    "GLOBAL_HOOKS",
    "tensor_of",
    "without_function_modes",
    "without_gradients",
    "wrapped",
]
