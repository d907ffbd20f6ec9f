"""Graphs inside nodes, the outer values that they read, and the nodes that outputs depend on."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import Builder, all_nodes, captured, every_node, live_nodes, new_model, subgraphs
from tests.graph.values import value


def branch(*outer):
    """A graph without inputs that adds up values from around it."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="branch")
    op = Builder(graph)
    total = op.Exp(outer[0])
    for term in outer[1:]:
        total = op.Add(total, term)
    graph.outputs.append(total)
    return graph


def choice():
    flag, x, y = value("flag", [], ir.DataType.BOOL), value("x", [3]), value("y", [3])
    model = new_model([flag, x, y], "g")
    graphs = [ir.AttrGraph("then_branch", branch(y, x)), ir.AttrGraph("else_branch", branch(x))]
    node = ir.Node("", "If", [flag], graphs, num_outputs=1)
    node.outputs[0].name, node.outputs[0].type = "z", x.type
    node.outputs[0].shape = x.shape
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    return model, node, x, y


def test_outer_values_come_in_the_order_of_their_first_use():
    _, node, x, y = choice()
    assert captured(node) == [y, x] and len(subgraphs(node)) == 2


def test_a_walk_over_all_nodes_goes_inside_right_after_the_node():
    model, *_ = choice()
    assert [node.op_type for node in all_nodes(model.graph)] == ["If", "Exp", "Add", "Exp"]


def test_what_only_an_inner_graph_reads_is_alive():
    model, node, x, _ = choice()
    op = Builder(model.graph)
    unread = op.Tanh(x).producer()
    assert live_nodes(model.graph) == [node] and unread in list(model.graph)


def test_every_node_is_walked_in_lists_of_graphs_too():
    inner = [ir.Graph([], [], nodes=[ir.Node("", f"Inner{i}", [])]) for i in range(2)]
    outer = ir.Node("own", "Holds", [], [ir.AttrGraphs("graphs", inner)])
    graph = ir.Graph([], [], nodes=[outer, ir.Node("", "Last", [])])
    names = [node.op_type for node in every_node(graph)]
    assert names == [node.op_type for node in ir.traversal.RecursiveGraphIterator(graph)]
    assert names == ["Holds", "Inner0", "Inner1", "Last"]
