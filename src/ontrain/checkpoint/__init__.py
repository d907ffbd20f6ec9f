"""Session state to files and back."""

from ontrain.checkpoint.folder import (
    begin_checkpoint,
    commit_checkpoint,
    has_checkpoint,
    read_checkpoint,
    write_checkpoint,
    write_tensors,
)
from ontrain.checkpoint.manifest import FORMAT
from ontrain.checkpoint.names import parsed_name, tensor_name
from ontrain.checkpoint.shards import join_parts, join_shards, shard_name, shards_of
from ontrain.checkpoint.together import write_together

__all__ = [
    "FORMAT",
    "begin_checkpoint",
    "commit_checkpoint",
    "has_checkpoint",
    "join_parts",
    "join_shards",
    "parsed_name",
    "read_checkpoint",
    "shard_name",
    "shards_of",
    "tensor_name",
    "write_checkpoint",
    "write_tensors",
    "write_together",
]
