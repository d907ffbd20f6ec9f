"""The state of a trainer's run: single tensors, a state_dict, and checkpoints in folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ontrain.arguments import checked_path, told
from ontrain.checkpoint import read_checkpoint, write_checkpoint, write_together
from ontrain.errors import OptionError, nearest
from ontrain.internals import tensor_of
from ontrain.session import TrainingSession
from ontrain.training import processes
from ontrain.training.flat_state import nested_state
from ontrain.training.run import Run
from ontrain.training.shared_state import Place
from ontrain.training.state import check_state, from_files, make_state_dict, to_files
from ontrain.training.upstream_checkpoint import read_upstream_checkpoint

__all__ = ["RunState"]


class RunState:
    """Reads and writes what a run consists of; `ORTTrainer` describes each method."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def parameter(self, name: str) -> torch.Tensor:
        """Return a copy of a parameter or buffer."""
        session = self._run.require_session("read a parameter")
        _check_name(session, name)
        return tensor_of(session.state[name]).detach().clone()

    def set_parameter(self, name: str, value: object) -> None:
        """Give a parameter or buffer another value."""
        session = self._run.require_session("set a parameter")
        _check_name(session, name)
        present = tensor_of(session.state[name])
        try:
            tensor = tensor_of(value).detach()
        except (RuntimeError, TypeError, ValueError) as error:
            raise OptionError(
                f"the value for {name!r} is {told(value)}", reason=str(error), way_out="give a tensor or an array"
            ) from error
        if tensor.shape != present.shape:
            raise OptionError(
                f"{name!r} has shape {list(present.shape)}, the value given {list(tensor.shape)}",
                way_out="give a value of the parameter's own shape",
            )
        session.state[name] = tensor.to(present.dtype)
        processes.follow_tensor(self._run.setup.reduction, name, tensor)
        self._run.setup.source.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything the run consists of."""
        state = make_state_dict(self._run.require_session("read the state"), self._run.stateful_parts())
        if self._run.schedule_start:
            state["train_step_info"]["schedule_start"] = self._run.schedule_start
        return state

    def load_state_dict(self, state: Mapping[str, object], strict: bool) -> None:
        """Take over a state, at once or as soon as there is a session."""
        run, setup = self._run, self._run.setup
        if run.session is not None:
            run.take_over(run.session, state, strict)
            return
        algorithm, steps = setup.optimizer.spec().algorithm, setup.options.batch.gradient_accumulation_steps
        check_state(state, setup.source.tensors(), strict, algorithm, steps)
        run.pending_state = (state, strict)

    def save(
        self, folder: str | os.PathLike[str], user_dict: Mapping[str, object], include_optimizer_states: bool, keep: int
    ) -> None:
        """Write a checkpoint, of several processes together."""
        place, reduction = checked_path("folder", folder), self._run.setup.reduction
        tensors, plain = to_files(self.state_dict(), include_optimizer_states)
        plain["user_dict"] = dict(user_dict)
        if reduction is not None:
            write_together(reduction.world, place, tensors, plain, keep)
        else:
            write_checkpoint(place, tensors, plain, keep)

    def load(self, paths: Sequence[str], strict: bool) -> dict[str, Any]:
        """Go on from a checkpoint, ours or onnxruntime's, and return its `user_dict`."""
        files = [Path(path) for path in paths if Path(path).is_file()]
        if files and len(files) == len(paths):
            upstream = read_upstream_checkpoint(files)
            self.load_state_dict(nested_state(upstream.flat, self._run.setup.optimizer.spec().algorithm), strict)
            return upstream.beside
        if len(paths) != 1:
            raise OptionError(
                f"the checkpoint is of {len(paths)} paths",
                reason="several paths are the files of onnxruntime's processes; a folder holds the parts of all",
                way_out="give one folder, or the file of each process",
            )
        (folder,) = paths
        several = self._run.setup.options.distributed
        place = Place(several.world_rank, several.world_size, several.deepspeed_zero_optimization.stage)
        tensors, plain = read_checkpoint(folder)
        self.load_state_dict(from_files(tensors, plain, place), strict)
        user_dict: dict[str, Any] = plain.get("user_dict", {})
        return user_dict


def _check_name(session: TrainingSession, name: str) -> None:
    if not isinstance(name, str) or name not in session.model_tensors:
        raise OptionError(
            f"the model has no parameter {name!r}", way_out=f"nearest: {nearest(name, session.model_tensors)}"
        )
