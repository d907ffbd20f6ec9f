"""onnxruntime.training.utils.data's import path for the samplers of `ontrain.training.data`."""

from ontrain.training.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler

__all__ = ["LoadBalancingDistributedBatchSampler", "LoadBalancingDistributedSampler"]
