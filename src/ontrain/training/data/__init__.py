"""What gives a run its batches: a loader that resumes, and samplers for processes that should have as much work."""

from ontrain.training.data.loader import ResumableDataLoader
from ontrain.training.data.random_state import random_state, restore_random_state
from ontrain.training.data.sampler import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler

__all__ = [
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
    "ResumableDataLoader",
    "random_state",
    "restore_random_state",
]
