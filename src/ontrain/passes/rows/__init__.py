"""Work that is not done: rows of a batch that do not reach the loss."""

from ontrain.passes.rows.absent import MultiplyPresentRows
from ontrain.passes.rows.candidates import HidePaddedCandidates
from ontrain.passes.rows.labels import EliminateUnlabelledRows
from ontrain.passes.rows.padding import EliminatePadding
from ontrain.passes.rows.selection import Keep, RowPass, Selection, bucket, counting
from ontrain.passes.rows.sequences import AttendSequences
from ontrain.passes.rows.states import HidePaddedStates
from ontrain.passes.rows.unmasked import EliminateMasks
from ontrain.passes.rows.unread import EliminateUnreadRows

__all__ = [
    "AttendSequences",
    "EliminateMasks",
    "EliminatePadding",
    "EliminateUnlabelledRows",
    "EliminateUnreadRows",
    "HidePaddedCandidates",
    "HidePaddedStates",
    "Keep",
    "MultiplyPresentRows",
    "RowPass",
    "Selection",
    "bucket",
    "counting",
]
