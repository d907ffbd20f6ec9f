"""The standard's If, Loop and Scan are copied as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.graph import rebuild
from tests.control.forms import plain_proto, session
from tests.control.models import MODELS


def test_a_rebuilt_file_is_the_same_model() -> None:
    for case in MODELS:
        expected = session(onnx.parser.parse_model(case.text)).run(case.outputs, case.inputs)
        again = plain_proto(rebuild(ir.from_proto(onnx.parser.parse_model(case.text))))
        for have, want in zip(session(again).run(case.outputs, case.inputs), expected, strict=True):
            np.testing.assert_array_equal(have, want)
