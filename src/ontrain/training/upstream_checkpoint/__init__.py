"""Checkpoints of onnxruntime.training: read as tensors and plain values, never run as code.

There were two layouts. `{prefix}.ort.pt` is pickled and flat: "fc.weight", "Moment_1_fc.weight". What
ORTTrainer.save_checkpoint wrote from 1.8 on is HDF5 and nested as `ORTTrainer.state_dict` is; some programs pickled
that one, too. A run with ZeRO has a file for each process; a tensor that is spread over processes is flattened and cut.
"""

from ontrain.training.upstream_checkpoint.join import Upstream, files_of_run, read_upstream_checkpoint

__all__ = ["Upstream", "files_of_run", "read_upstream_checkpoint"]
