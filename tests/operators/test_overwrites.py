"""What a record says may be overwritten is what the torch provider's lowering overwrites, over every sample."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
import torch

from ontrain.graph import live_nodes, static_dims
from ontrain.operators import OPERATORS
from ontrain.providers.torch.buffers import new_buf, torch_dtype
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.nodes import lower_nodes, with_bodies
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import SAMPLES, ZEROS


def forward(sample, rng):
    """The operator alone, fed with all that is no setting."""
    settings = OPERATORS[sample.domain, sample.op_type].settings
    sample = dataclasses.replace(sample, fed=[i for i in range(len(sample.inputs)) if i not in settings])
    graph = SampleGraph(sample, sample.draw(rng))
    return finished(graph, graph.y)


def with_gradient(sample, rng):
    graph = SampleGraph(sample, sample.draw(rng))
    seeds = graph.seeds(graph.y, rng, "dy")
    return finished(graph, [*graph.y, *(g for g in graph.gradient(graph.y, seeds, graph.wrt) if g is not None)])


def finished(graph, values):
    graph.model.graph.outputs.extend(dict.fromkeys(v for v in values if v.producer() is not None))
    return with_bodies(graph.model).graph


def overwritten_by(emitter, node):
    """The inputs of a node whose memory its first result may take over, told by the instructions of its lowering."""
    start = len(emitter.program)
    lower_nodes(emitter, [node])
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        return set()  # computed again for another result alone
    result = emitter.raw(node.outputs[0]).storage
    taken = {
        id(buf.storage)
        for instruction in emitter.program[start:]
        if instruction.reuses and instruction.writes[0].storage is result
        for buf in instruction.reuses
    }
    return {i for i, v in enumerate(node.inputs) if v is not None and taken and id(emitter.raw(v).storage) in taken}


@pytest.fixture(scope="module")
def lowered():
    """For each operator that the samples' graphs hold: inputs that it is given, and inputs that it may overwrite."""
    rng = np.random.default_rng(0)
    present, overwritten = defaultdict(set), defaultdict(set)
    for graph in (*(with_gradient(s, rng) for s in SAMPLES), *(forward(s, rng) for s in ZEROS)):
        emitter = Emitter(torch.device("cpu"))
        for value in graph.inputs:
            emitter.bind(value, new_buf(static_dims(value), torch_dtype(value.dtype)))
        for node in live_nodes(graph):
            key = node.domain, node.op_type
            present[key] |= {i for i, v in enumerate(node.inputs) if v is not None}
            overwritten[key] |= overwritten_by(emitter, node)
    return present, dict(overwritten)


def test_records_say_what_the_lowering_overwrites(lowered):
    present, overwritten = lowered
    assert {key: set(OPERATORS[key].overwrites) & inputs for key, inputs in present.items()} == overwritten


def test_every_operator_that_overwrites_is_lowered_by_some_sample(lowered):
    present, _ = lowered
    assert {key for key, record in OPERATORS.items() if record.overwrites} <= present.keys()
