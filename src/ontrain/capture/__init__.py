"""An nn.Module or an ONNX file becomes a verified graph, with parameters as named inputs."""

from ontrain.capture.arrays import (
    HALF_DTYPES as HALF_DTYPES,
    NARROW as NARROW,
    tensor_dtype as tensor_dtype,
    to_array as to_array,
    to_tensor as to_tensor,
)
from ontrain.capture.aten import aten
from ontrain.capture.attached import AttachedBuffer as AttachedBuffer
from ontrain.capture.autograd import traced_here as traced_here
from ontrain.capture.cache import open_cache as open_cache
from ontrain.capture.captured import Captured
from ontrain.capture.chances import Course as Course, GeneratorStates as GeneratorStates
from ontrain.capture.changes import ChangedStateError as ChangedStateError
from ontrain.capture.counts import Count as Count
from ontrain.capture.decisions import Decision as Decision, Decisions as Decisions
from ontrain.capture.guards import GUARDS as GUARDS
from ontrain.capture.hooks import InstalledHook as InstalledHook
from ontrain.capture.inspection import (
    Inspected as Inspected,
    Mark as Mark,
    Observer as Observer,
    mark as mark,
    numbered as numbered,
)
from ontrain.capture.installed import is_installed as is_installed
from ontrain.capture.iterators import (
    IteratorStandIn as IteratorStandIn,
    holds_iterators as holds_iterators,
    replaced_iterators as replaced_iterators,
)
from ontrain.capture.layouts import (
    LAYOUT as LAYOUT,
    STRIDES as STRIDES,
    layout as layout,
    parameters_among as parameters_among,
    repeated as repeated,
)
from ontrain.capture.masks import DrawnMask as DrawnMask
from ontrain.capture.module_capture import capture
from ontrain.capture.names import CLONED as CLONED, FIXED as FIXED, REQUIRES_GRAD as REQUIRES_GRAD
from ontrain.capture.onnx_file import FiledModel as FiledModel, OnnxModel, load_filed as load_filed, load_onnx
from ontrain.capture.own_failure import FailingForwardError as FailingForwardError, refuse_as_eager as refuse_as_eager
from ontrain.capture.owners import Owner as Owner, owners_of as owners_of
from ontrain.capture.phases import show_phases as show_phases, tell_phases as tell_phases
from ontrain.capture.reachable import held_by as held_by, reachable as reachable
from ontrain.capture.slots import Slots as Slots, slots_of as slots_of
from ontrain.capture.source import is_users as is_users, line_text as line_text
from ontrain.capture.sparse_state import sparse_tensors as sparse_tensors
from ontrain.capture.structure import (
    CallSpec,
    Spec,
    bind as bind,
    flatten as flatten,
    leaf_paths as leaf_paths,
    plain_leaves as plain_leaves,
    tells_positions as tells_positions,
    unflatten as unflatten,
)
from ontrain.capture.tables import (
    ALL as ALL,
    MISSING as MISSING,
    MORE as MORE,
    OF_PYTHON as OF_PYTHON,
    ORDER as ORDER,
    Items as Items,
    Table as Table,
    has_attributes as has_attributes,
    tables_of as tables_of,
    ways_to as ways_to,
)
from ontrain.capture.tracing import telling_grad_mode as telling_grad_mode
from ontrain.capture.validate import validate
from ontrain.capture.ways_out import refuse_lazy as refuse_lazy, refuse_scripted as refuse_scripted
from ontrain.capture.writes import Tables as Tables, Write as Write, is_same as is_same

__all__ = ["REQUIRES_GRAD", "CallSpec", "Captured", "OnnxModel", "Spec", "aten", "capture", "load_onnx", "validate"]
