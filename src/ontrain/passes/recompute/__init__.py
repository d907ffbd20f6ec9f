"""Activations computed again going backward instead of kept, chosen by the graph to fit a memory budget."""

from ontrain.passes.recompute.clusters import Cluster, clusters
from ontrain.passes.recompute.recompute import Recompute
from ontrain.passes.recompute.request import (
    BUDGET_ALLOWED,
    ClusterRequest,
    Recomputation,
    parse_budget,
    parse_clusters,
)
from ontrain.passes.recompute.schedule import Schedule

__all__ = [
    "BUDGET_ALLOWED",
    "Cluster",
    "ClusterRequest",
    "Recomputation",
    "Recompute",
    "Schedule",
    "clusters",
    "parse_budget",
    "parse_clusters",
]
