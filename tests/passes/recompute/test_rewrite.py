"""Values that are computed again stand where they are read."""

from __future__ import annotations

from ontrain.passes.recompute import Recomputation
from tests.passes.recompute.models import plan


def test_a_value_is_computed_again_just_before_it_is_read():
    graph = plan("bert", Recomputation(gelu=True)).model.graph
    nodes = list(graph)
    gelu = [i for i, node in enumerate(nodes) if node.op_type == "Gelu" and node.outputs[0].name.endswith("_again")]
    assert gelu
    for at in gelu:
        after = next(node for node in nodes[at:] if not node.outputs[0].name.endswith("_again"))
        read = {v for v in after.inputs if v is not None}
        assert any(v.name.endswith("_again") for v in read), after
