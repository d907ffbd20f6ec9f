"""A call that leads to a capture: its inputs, its plan, its seed, and the module's result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ontrain.training.ortmodule.entry import Site, as_real
from ontrain.training.ortmodule.function import Call, without_autocast
from ontrain.training.ortmodule.keeping import Carried
from ontrain.training.ortmodule.overlaps import refuse_overlaps
from ontrain.training.ortmodule.paths import PathDraws, on_path

__all__ = ["drawing_masks", "leads", "run"]


def leads(site: Site, tensors: Sequence[torch.Tensor], draws: PathDraws) -> bool:
    """Whether forward, with these tensors, would take the path of a capture as far as it branches on what it draws."""
    return draws.lead_to(site.entry.captured.course, drawing_masks(site, tensors))


def drawing_masks(site: Site, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]] | None:
    """Return what draws the masks of a call; None where forward draws none."""
    return functools.partial(site.entry.masks, _inputs(site, tensors)) if site.entry.captured.masks else None


def run(site: Site, tensors: Sequence[torch.Tensor], masks: Sequence[torch.Tensor], carried: Carried) -> Any:
    """Return the module's result for a call.

    Args:
        site: the way from the call to its capture.
        tensors: of the call, in the order in which it is written.
        masks: those that forward draws by numpy.
        carried: calls whose gradients wait in buffers.

    Raises:
        InputError: forward writes to a tensor that shares memory with another one.
        OtherPathError: the values of the tensors lead to another path than the capture's.
    """
    entry, session = site.entry, site.entry.session
    for number in entry.captured.followed:
        site.ordered(tensors)[number].requires_grad_()
    inputs = [*_inputs(site, tensors), *masks]
    if entry.new_inputs:
        refuse_overlaps(site.ordered(tensors), entry.captured.input_names, entry.new_inputs)
    for number in entry.new_inputs:  # backward reads what it was
        inputs[number] = inputs[number].clone()
    mode = entry.mode(inputs) if torch.is_grad_enabled() or entry.records_gradients() else None
    if mode is None or not mode.active:
        plan = session.plan(inputs)
        seed = _draw(plan.executable.stochastic)
        with torch.no_grad(), without_autocast(session.device.type):
            outputs, _ = on_path(entry.decisions, entry.buffers, session, plan, inputs, seed)
            entry.inspected.hand_out(outputs)
        return entry.results.result([outputs[name] for name in entry.outputs], site.ordered(tensors))
    carried.check(entry)
    seeds = mode.seeds
    planned = functools.partial(entry.planned, mode)
    plan = session.plan(inputs, mode.targets, seeds, planned(seeds))
    call = Call(
        session, mode, seeds, entry.outputs, inputs, plan, planned, entry.deferred, entry.buffers,
        entry.read_buffers, entry.inspected, entry.decisions, _draw(plan.executable.stochastic),
        dict(zip(entry.places, (*entry.tensors, *inputs), strict=True)), entry.differentiated.gradients,
        following=entry.following, cloned=entry.cloned,
    )  # fmt: skip
    with without_autocast(session.device.type), torch.enable_grad():
        results = call.run()
        carried.note(entry, call)
        return entry.results.result(results, site.ordered(tensors))


def _inputs(site: Site, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [as_real(tensor) for tensor in site.ordered(tensors)]


def _draw(wanted: bool) -> int:
    """A seed out of torch's generator: what torch.manual_seed and a saved random state determine."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if wanted else 0
