"""What all passes have in common: fuel, reports, graphs inside nodes, and what a pass keeps to itself."""

from __future__ import annotations

from ontrain.graph import live_nodes
from ontrain.passes import infra, run_passes
from ontrain.passes.infra import Fuel, RewritePass, left_alone, limited, note
from tests.passes.graphs import graph, operators


class Sines(RewritePass):
    """Exp becomes Sin; it says so once, and counts the Tanh that it leaves."""

    def begin(self, graph):
        self.seen = []

    def rewrite(self, op, node, inputs):
        self.seen.append(node.op_type)
        if node.op_type == "Tanh":
            left_alone("it is a Tanh")
        if node.op_type != "Exp":
            return None
        note("a sine")
        return [op.Sin(inputs[0])]


def chain():
    return graph(lambda op, x: op.Exp(op.Tanh(op.Exp(op.Tanh(op.Exp(x))))), x=[3])


def test_a_report_says_what_was_done_and_what_was_left_alone():
    _, (report,) = run_passes(chain(), [Sines()])
    assert (report.changed, report.rewrites, report.notes) == (3, 3, ["a sine"])
    assert report.refusals == {"it is a Tanh": 2} and report.last_node.startswith("Exp(")


def test_fuel_ends_a_pass_in_the_middle_of_a_graph():
    fuel = Fuel(left=2)
    with limited(fuel):
        rewritten, changed = Sines().apply(chain())
    assert changed == fuel.used == 2 and operators(rewritten) == ["Sin", "Tanh", "Sin", "Tanh", "Exp"]


def test_what_a_pass_finds_in_a_graph_is_gone_with_it():
    sines = Sines()
    sines.apply(chain())
    assert not hasattr(sines, "seen")


def test_outside_of_a_run_nobody_listens():
    note("nothing")
    left_alone("nothing")


class IdleSines(Sines):
    """Sines that look for an Exp before a graph is rebuilt."""

    def has_work(self, graph):
        return any(node.op_type == "Exp" for node in graph)


def test_a_graph_without_work_for_a_pass_is_left_as_it_is():
    tanh = graph(lambda op, x: op.Tanh(op.Tanh(x)), x=[3])
    assert IdleSines().apply(tanh) == (tanh, 0)
    assert operators(IdleSines().apply(chain())[0]) == ["Sin", "Tanh", "Sin", "Tanh", "Sin"]


def test_a_pass_without_work_still_drops_what_nobody_reads():
    def unread(op, x):
        op.Sin(x)
        return op.Tanh(x)

    without, changed = IdleSines().apply(graph(unread, x=[3]))
    assert (operators(without), changed) == (["Tanh"], 0)


class LookingSines(Sines):
    """Sines that say nothing, and ask for a builder only where there is an Exp."""

    looks_first = True

    def rewrite(self, op, node, inputs):
        return [op.Sin(inputs[0])] if node.op_type == "Exp" else None


def test_a_pass_that_looks_first_leaves_a_graph_without_work_and_makes_nothing_while_it_looks():
    tanh, exps = graph(lambda op, x: op.Tanh(op.Tanh(x)), x=[3]), chain()
    assert LookingSines().apply(tanh) == (tanh, 0)
    uses = [len(value.uses()) for node in exps.graph for value in node.inputs]
    rewritten, changed = LookingSines().apply(exps)
    assert changed == 3 and operators(rewritten) == ["Sin", "Tanh", "Sin", "Tanh", "Sin"]
    assert [len(value.uses()) for node in exps.graph for value in node.inputs] == uses


def test_passes_without_work_look_for_dead_nodes_once(monkeypatch):
    looks = []
    monkeypatch.setattr(infra, "live_nodes", lambda graph: looks.append(graph) or live_nodes(graph))
    tanh = graph(lambda op, x: op.Tanh(op.Tanh(x)), x=[3])
    run_passes(tanh, [IdleSines(), LookingSines(), IdleSines()])
    assert looks == [tanh.graph]
    looks.clear()
    run_passes(chain(), [LookingSines(), IdleSines(), LookingSines()])
    assert len(looks) == 1  # of the graph that the first has rewritten
