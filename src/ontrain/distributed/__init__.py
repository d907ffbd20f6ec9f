"""Several processes of one run, over torch.distributed."""

from ontrain.distributed.agreement import (
    Agreement,
    agree,
    facts,
    tensor_facts as tensor_facts,
    whole_number_facts as whole_number_facts,
)
from ontrain.distributed.launchers import Processes, find_processes
from ontrain.distributed.reduction import Reduction
from ontrain.distributed.shares import Share, all_shares, shares
from ontrain.distributed.world import World

__all__ = [
    "Agreement",
    "Processes",
    "Reduction",
    "Share",
    "World",
    "agree",
    "all_shares",
    "facts",
    "find_processes",
    "shares",
]
