"""Layers and clusters: what they are called, what they keep, and which of them a switch chooses."""

from __future__ import annotations

import pytest

from ontrain import OptionError
from ontrain.passes.recompute import (
    ClusterRequest,
    Recomputation,
    clusters,
)
from ontrain.passes.recompute.clusters import layers
from tests.passes.recompute.models import plan, sample, schedule
from tests.passes.recompute.switches import again, tiny_trainer

pytestmark = pytest.mark.sampled(4)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_layers_are_told_by_their_parameters(name):
    segments = layers(schedule(plan(name).model.graph))
    stem = "model.bert.encoder.layer" if name == "bert" else "model.transformer.h"
    assert [layer for layer, _ in segments] == [f"{stem}.{i}" for i in range(3)]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_all_layers_but_the_last_are_computed_again_or_the_first_n(name):
    counted = [again(plan(name, Recomputation(layers=True, number_of_layers=n)))["Attention"] for n in (0, 1, -1)]
    assert counted == [2, 1, 3]


def test_layers_need_a_model_that_has_some():
    with pytest.raises(OptionError, match="no repeated layers"):
        tiny_trainer(transformer_layer_recompute=True)


def test_the_plan_table_names_clusters_with_what_they_keep():
    table = clusters(schedule(plan("bert").model.graph))
    tokens = int(sample("bert").batch["ids"].numel())
    gelu = [cluster for cluster in table if cluster.name == "Gelu+"]
    assert (
        sum(len(cluster.roots) for cluster in gelu) == 4 and max(cluster.bytes for cluster in gelu) == tokens * 128 * 4
    )
    assert again(plan("bert", Recomputation(clusters=(ClusterRequest("Gelu+", True, 2),)))) == {"Gelu": 2}


def test_a_cluster_can_be_left_out_of_what_a_switch_chooses():
    without = ClusterRequest("Gelu+", recompute=False, count=-1)
    assert again(plan("bert", Recomputation(gelu=True, clusters=(without,)))) == {}


def test_an_unknown_cluster_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match="no cluster 'Gelo\\+'") as error:
        plan("bert", Recomputation(clusters=(ClusterRequest("Gelo+", True, 1),)))
    assert "'Gelu+'" in str(error.value.way_out)
