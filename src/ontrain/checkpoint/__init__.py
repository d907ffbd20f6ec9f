"""Session state to files and back."""

from ontrain.checkpoint.folder import FORMAT, read_checkpoint, write_checkpoint

__all__ = ["FORMAT", "read_checkpoint", "write_checkpoint"]
