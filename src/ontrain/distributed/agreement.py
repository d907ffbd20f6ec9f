"""Processes that would train something else than the others are refused before an update, the difference named.

What stays as it is from step to step is compared in full at the start, and by a hash from then on. What changes with
each step is compared with each step. Both travel with the labels that an update needs anyhow, so nothing waits for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
import torch

from ontrain import __version__
from ontrain.distributed.presence import named
from ontrain.distributed.world import World
from ontrain.errors import ProcessError
from ontrain.graph import Role, by_role, data_constants, shape_text
from ontrain.session import TrainingSession

__all__ = ["Agreement", "agree", "facts", "optimizer_facts", "tensor_facts", "whole_number_facts"]

_OWN_SWITCHES = ("ONTRAIN_CACHE", "ONTRAIN_CACHE_DIR", "ONTRAIN_DUMP", "ONTRAIN_VERIFY")
"""Switches that may differ: they say where files lie, and what is checked."""
_SHORT = 8
_HASH_DIGITS = 12
"""Hexadecimal digits of a hash that a float64 holds exactly, with some to spare."""


class Agreement:
    """What the processes have agreed on, and whether they still do.

    Args:
        world: the processes.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._facts: dict[str, str] = {}
        self._hash = 0.0

    def follow(self, said: Mapping[str, str]) -> None:
        """Take note of what has changed here; it is compared with the next update."""
        self._facts |= said
        self._hash = float(int(_hash(json.dumps(self._facts).encode())[:_HASH_DIGITS], 16))

    def all_labels(self, labels: float, numbers: Mapping[str, float]) -> float:
        """Return the labels of all processes, once it is found that these make the same update.

        Args:
            labels: of this process.
            numbers: what belongs to this update, by its name in an error.

        Raises:
            ProcessError: on all processes, if one differs; names the ranks and their values.
        """
        rows = self._world.rows([labels, self._hash, *numbers.values()])
        for column, what in enumerate(numbers, 2):
            values = [row[column] for row in rows]
            if len({_as_used(value) for value in values}) > 1:
                raise _difference(what, [_number_text(value) for value in values])
        if len({row[1] for row in rows}) > 1:
            agree(self._world, self._facts)
        return sum(row[0] for row in rows)


def facts(session: TrainingSession) -> dict[str, str]:
    """Return what all processes must have in common, in the order in which differences are looked for."""
    graph = session.model.graph
    said = {
        "the version of ontrain": __version__,
        "the version of torch": str(torch.__version__),
        "the provider": session.provider.name,
        "the ZeRO stage": str(int(session.exchange is not None and not session.exchange.keeps_moments)),
    }
    switches = {name for name in os.environ if name.startswith("ONTRAIN_")}.difference(_OWN_SWITCHES)
    said |= {f"the environment variable {name}": os.environ[name] for name in sorted(switches)}
    said |= _update_facts(session) | {
        "gradients accumulated": str(session.accumulation_steps),
        "the precision": str(session.precision),
    }
    trainable = set(session.trainable)
    for value in by_role(graph, Role.PARAMETER, Role.BUFFER):
        name = value.name or ""
        said[f"{name!r} of the model"] = f"{shape_text(value)}, {'trained' if name in trainable else 'left as it is'}"
    said |= optimizer_facts(session)
    for number, node in enumerate(graph):
        said[f"node {number} of the model"] = _text(node)
    said |= dict(_constants(graph))
    return said


def whole_number_facts(session: TrainingSession) -> dict[str, str]:
    """Return the constants that are whole numbers or flags, as limits, orders and masks, but no sizes."""
    constants = [(value.name, value.const_value) for value in data_constants(session.model.graph)]
    return {
        f"the constant {name!r} of the model": _full_text(tensor)
        for name, tensor in constants
        if tensor is not None and not tensor.dtype.is_floating_point()
    }


def tensor_facts(what: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the values of tensors that are no weights to begin with, but part of what is trained."""
    arrays = {name: ir.tensor(tensor.detach().cpu()) for name, tensor in tensors.items()}
    return {f"{what} {name!r}": _full_text(array) for name, array in arrays.items()}


def optimizer_facts(session: TrainingSession) -> dict[str, str]:
    """Return those of the facts that change when the optimizer is given other hyper-parameters."""
    said = _update_facts(session)
    for name in session.trainable:
        for attribute, value in session.optimizer.attributes_for(name).items():
            said[f"the optimizer's {attribute} for {name!r}"] = str(value)
    return said


def _update_facts(session: TrainingSession) -> dict[str, str]:
    return {"the optimizer": session.optimizer.algorithm, "the norm to clip to": str(session.max_norm)}


def agree(world: World, said: Mapping[str, str]) -> None:
    """Compare with the other processes.

    Raises:
        ProcessError: on all of them, if one differs; names the first difference, and the ranks on either side.
    """
    if len(set(world.gather(_hash(json.dumps(dict(said)).encode())))) == 1:
        return
    everyone: list[dict[str, str]] = world.gather(dict(said))
    for what in dict.fromkeys(name for theirs in everyone for name in theirs):
        values = [theirs.get(what, "absent") for theirs in everyone]
        if len(set(values)) > 1:
            raise _difference(what, values)


def _difference(what: str, values: Sequence[str]) -> ProcessError:
    sides: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        sides.setdefault(value, []).append(rank)
    return ProcessError(
        f"the processes differ in {what}: " + "; ".join(f"{value} on {named(ranks)}" for value, ranks in sides.items()),
        reason="they would train different models; no parameter was changed by this step",
        way_out="start all of them with the same script, arguments and versions, load one checkpoint on all, "
        "and make changes in the midst of training on all alike",
    )


def _as_used(value: float) -> float:
    """A number as an update's graph gets it, in float32; a count as it is."""
    return value if value.is_integer() else float(torch.tensor(value, dtype=torch.float32, device="cpu"))


def _number_text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)


def _text(node: ir.Node) -> str:
    """A node and its attributes, without sizes, which depend on the batch at hand: those are constants."""
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    attributes = ", ".join(
        f"{attribute.name}={_attribute_text(attribute)}"
        for attribute in sorted(node.attributes.values(), key=lambda attribute: attribute.name)
        if isinstance(attribute, ir.Attr)
    )
    return f"{name}({attributes})"


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.GRAPH:
        inner = attribute.as_graph()
        constants = [f"{what} {text}" for what, text in _constants(inner)]
        return f"[{'; '.join([*constants, *(_text(node) for node in inner)])}]"
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_text(attribute.as_tensor())
    return repr(attribute.value)


def _constants(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """The constants that are real numbers, as the weights of classes in a loss."""
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.dtype.is_floating_point():
            yield f"the constant {name!r} of the model", _tensor_text(tensor)


def _tensor_text(tensor: ir.TensorProtocol) -> str:
    if not tensor.dtype.is_floating_point():
        return str(tensor.dtype)
    return _full_text(tensor)


def _full_text(tensor: ir.TensorProtocol) -> str:
    if tensor.size <= _SHORT:
        return str(tensor.numpy().tolist())
    return f"{tensor.dtype}{list(tensor.shape)} with hash {_hash(tensor.tobytes())[:_HASH_DIGITS]}"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
