"""Which nodes run together."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from ontrain.inference.stepwise.partition import Kind, partition


def stages(text: str, lacks: str = "") -> list[tuple[Kind, list[str]]]:
    """The stages of a graph, by kind and the operators in them."""
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'))
    divided = partition(list(model.graph), lambda node: node.op_type == lacks)
    return [(stage.kind, [node.op_type for node in stage.nodes]) for stage in divided]


def test_nodes_lie_at_the_first_level_where_all_they_read_is_there():
    partition = stages("""m (float[n] x) => (float[k] y, float[n] z) {
        a = Exp(x)
        places = NonZero(a)
        y = Cast<to = 1>(places)
        z = Neg(a)
    }""")
    assert partition == [(Kind.PLAN, ["Exp", "Neg"]), (Kind.STEP, ["NonZero"]), (Kind.PLAN, ["Cast"])]


def test_sizes_computed_from_shapes_stay_in_their_region():
    partition = stages("""m (float[n] x, float[k] y) => (float[k] z) {
        a = Exp(x)
        size = Shape(y)
        whole = Concat<axis = 0>(size)
        z = Expand(a, whole)
    }""")
    assert partition == [(Kind.PLAN, ["Exp", "Shape", "Concat", "Expand"])]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("z = Reshape(a, size)", [(Kind.PLAN, ["Exp", "Abs"]), (Kind.STEP, ["Reshape"])]),
        ("z = ReduceSum(a, size)", [(Kind.PLAN, ["Exp", "Abs"]), (Kind.PLAN, ["ReduceSum"])]),
    ],
)
def test_settings_computed_from_data_are_there_before_what_they_set(op, expected):
    assert stages(f"m (float[n] x, int64[1] i) => (float[k] z) {{ a = Exp(x) size = Abs(i) {op} }}") == expected


def test_what_the_provider_lacks_is_together_where_it_can_be():
    partition = stages(
        """m (float[n] x) => (float[n] z) {
            a = Exp(x)
            b = Erf(a)
            c = Erf(b)
            z = Neg(c)
        }""",
        lacks="Erf",
    )
    assert partition == [(Kind.PLAN, ["Exp"]), (Kind.ELSEWHERE, ["Erf", "Erf"]), (Kind.PLAN, ["Neg"])]
