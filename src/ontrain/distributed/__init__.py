"""Several processes of one run, over torch.distributed."""

from ontrain.distributed.launchers import Processes, find_processes

__all__ = ["Processes", "find_processes"]
