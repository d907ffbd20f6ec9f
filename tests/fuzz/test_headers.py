"""Headers of safetensors that state what no array can be: each a named error of the checkpoint."""

from __future__ import annotations

import json

import pytest

from ontrain import CheckpointError
from ontrain.training.api import CheckpointState

EIGHT = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "stated",
    [
        {**EIGHT, "dtype": "F8_E4M3", "shape": [8]}, {**EIGHT, "shape": [1] * 99 + [2]},
        {**EIGHT, "shape": [0, 2**62], "data_offsets": [0, 0]}, {**EIGHT, "shape": [2**32, 2**32]},
        {**EIGHT, "data_offsets": [8, 0]}, {**EIGHT, "data_offsets": [0, 2**40]}, {**EIGHT, "shape": [-2]},
    ],
)  # fmt: skip
def test_a_header_of_what_no_array_can_be_is_a_named_error(stated, tmp_path):
    header = json.dumps({"w": stated}).encode()
    path = tmp_path / "checkpoint"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(stated["data_offsets"][1] and 8))
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        CheckpointState.load_checkpoint(path)
