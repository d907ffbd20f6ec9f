"""How far torch writes a program in smaller operators: as far as translations need it, and no further.

An operator that torch calls composite is taken apart wherever it is called. For each program that is written anew,
torch lists the composite operators of all its libraries, and gives each of them another kernel for as long as it takes:
a multiple of what a small program takes itself. Here it is told of those that are to stay whole.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from ontrain.capture.apart import written_in_others
from ontrain.capture.aten.complex import complexes
from ontrain.capture.aten.registry import find, operator_name, table
from ontrain.capture.lists import over_lists
from ontrain.capture.questions import answer_if_not_empty, operators_noted, questions_answered
from ontrain.capture.recurrence import varying_lengths
from ontrain.capture.source import user_frame
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError, OntrainError
from ontrain.internals import OpOverload, available, private, wrapped

__all__ = ["decomposed", "functional", "simplify_questions", "taken_apart"]

_COMPOSITES = "torch.export.exported_program._collect_all_valid_cia_ops"
_LEVELS = "torch._C._functorch"


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """Return the program with the operators that have no translation written in others; the rest stays whole."""
    known = _known_to(program)
    lists = over_lists(_operators(program))
    return _rewritten(program, {**known.decompositions, **lists}, known.translated)


def taken_apart(program: ExportedProgram, missing: Sequence[fx.Node]) -> bool:
    """Whether these operators of a program's flat graph could be written in others, each by itself where it stands."""
    decompositions = {**_known_to(program).decompositions, **over_lists(_operators(program))}
    with _questions_answered(), _levels_end():
        return written_in_others(missing, decompositions)


def functional(program: ExportedProgram) -> ExportedProgram:
    """Return the program without writes in place; its operators stay as they are."""
    known = _known_to(program)
    return _rewritten(program, {}, known.translated | known.complex | known.composites & _operators(program))


@dataclass(frozen=True)
class _Known:
    """What torch has for operators.

    Attributes:
        decompositions: of those without a translation.
        composites: those that torch takes apart wherever they are called.
        translated: composites with a translation, or a decomposition of another kind.
        complex: composites with a translation for complex numbers.
    """

    decompositions: Mapping[OpOverload, Callable[..., Any]]
    composites: frozenset[OpOverload] = frozenset()
    translated: frozenset[OpOverload] = frozenset()
    complex: frozenset[OpOverload] = frozenset()


def _known_to(program: ExportedProgram) -> _Known:
    # Libraries bring operators, and users translations, while a process runs.
    others = (name for target in _operators(program) if "::" in (name := operator_name(target)))
    return _known(frozenset(table), frozenset(complexes), frozenset(others))


@functools.lru_cache(maxsize=8)
def _known(translated: frozenset[str], complex_names: frozenset[str], others: frozenset[str]) -> _Known:
    decompositions = {target: by for target, by in torch.export.default_decompositions().items() if not find(target)}
    collect = available(_COMPOSITES)
    if collect is None:
        return _Known(decompositions)
    composites = frozenset(collect())
    # What torch has of its own for a composite operator is the call of its kernel, as happens unasked.
    unasked = {target for target in composites if isinstance(decompositions.get(target), functools.partial)}
    decompositions = {target: by for target, by in decompositions.items() if target not in unasked}
    whole = {target for target in composites if find(target) or target in decompositions}
    of_complex = {target for target in composites if operator_name(target) in complex_names}
    return _Known(decompositions, composites, frozenset(whole), frozenset(of_complex))


def _operators(program: ExportedProgram) -> frozenset[OpOverload]:
    """The operators that a program calls, in its blocks and branches, too."""
    modules = (module for module in program.graph_module.modules() if isinstance(module, fx.GraphModule))
    targets = (node.target for module in modules for node in module.graph.nodes)
    return frozenset(target for target in targets if isinstance(target, OpOverload))


def _rewritten(
    program: ExportedProgram, decompositions: Mapping[OpOverload, Callable[..., Any]], whole: frozenset[OpOverload]
) -> ExportedProgram:
    """Have torch write a program anew, without writes in place; of the composites these stay as they are."""
    try:
        with (
            _questions_answered(),
            _composites_are(whole),
            _one_name_each(program),
            _levels_end(),
        ):
            rewritten: ExportedProgram = program.run_decompositions(dict(decompositions))
            return rewritten
    except OntrainError:
        raise
    except Exception as error:  # torch runs each operator's own code, a user's among them, which may raise anything
        message = next(iter(str(error).strip().splitlines()), "no message")
        raise CaptureError(
            "torch cannot write the traced program in operators that have a translation",
            source=user_frame(error.__traceback__),
            reason=f"{type(error).__name__}: {message}",
            way_out=f"write what forward changes in place, or its rarer operators, in others; or {BROKEN}",
        ) from error


@contextmanager
def _questions_answered() -> Iterator[None]:
    """Answer what torch asks about sizes while it runs through operators, and note what it asks."""
    with varying_lengths(), questions_answered(answer_if_not_empty), operators_noted():
        yield


@contextmanager
def _levels_end() -> Iterator[None]:
    """Leave the levels of `torch.vmap` that a program has entered as nodes when an error kept it from leaving them."""
    depth = private(f"{_LEVELS}.get_dynamic_layer_stack_depth")()
    try:
        yield
    finally:
        private(f"{_LEVELS}.pop_dynamic_layer_stack_and_undo_to_depth")(depth)


@contextmanager
def _one_name_each(program: ExportedProgram) -> Iterator[None]:
    """Give the further names of a parameter or buffer, which a trace never reads, tensors of their own meanwhile.

    A module may stand in two places. torch writes a program anew that writes to a tensor only where each name is of
    another tensor.
    """
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    specs = [spec for spec in program.graph_signature.input_specs if spec.target is not None]
    names = {str(spec.target): getattr(spec.arg, "name", None) in read for spec in specs}
    before: list[tuple[dict[str, Any], str, Any]] = []
    for tensors in (program.state_dict, program.constants):
        owners = {id(value) for name, value in tensors.items() if names.get(name)}
        for name, value in tensors.items():
            if id(value) in owners and not names.get(name, True):
                before.append((tensors, name, value))
                tensors[name] = _of_form(value)
    try:
        yield
    finally:
        for tensors, name, value in before:
            tensors[name] = value


def _of_form(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor, or parameter, with the dtype, sizes and strides of one; its values are never read."""
    other = torch.empty_like(tensor, requires_grad=False)
    return nn.Parameter(other, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other


def simplify_questions(program: ExportedProgram) -> None:
    """Name the kernel that reads a number off a tensor, and drop what has been asked of a tensor's form.

    Where strides follow from values, as those of a row of what `nonzero` gives, torch takes `item` apart into an
    operator that has to know the number. The form of a sparse matrix is known while a forward is traced, and so are a
    tensor's dtype and device, which torch cannot compare for one in a batch of `torch.vmap`.
    """
    read = available("torch.ops.aten._local_scalar_dense")
    modules = (module for module in program.graph_module.modules() if isinstance(module, fx.GraphModule))
    for node in [node for module in modules for node in module.graph.nodes]:
        if node.target in _FORMS or _name(node) == "_assert_tensor_metadata":
            _drop(node)
        elif node.target is torch.ops.aten.item.default and read is not None:
            node.target = read.default


def _name(node: fx.Node) -> str | None:
    return operator_name(node.target) if isinstance(node.target, OpOverload) else None


def _drop(node: fx.Node) -> None:
    """Take out a node that nothing reads, and the sparse matrices that were made for it alone."""
    if node.users:
        return
    read = node.all_input_nodes
    for other in read:  # whose users may lack a node of the body of an autograd function
        other.users.setdefault(node)
    node.graph.erase_node(node)
    for other in read:
        value = other.meta.get("val")
        if other.op == "call_function" and isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            _drop(other)


_FORMS = frozenset({torch.ops.aten.is_coalesced.default, torch.ops.aten.sparse_dim.default,
                    torch.ops.aten.dense_dim.default})  # fmt: skip


@contextmanager
def _composites_are(whole: frozenset[OpOverload]) -> Iterator[None]:
    """Have torch know of no other composites than these, in this thread."""
    rewriting = threading.get_ident()

    def few(collect: Any) -> Any:
        return lambda: whole if threading.get_ident() == rewriting else collect()

    with wrapped({_COMPOSITES: few}):
        yield
