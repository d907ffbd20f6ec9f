"""The walk over an exported program that makes the graph: inputs by role, nodes by the table, outputs by name."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, cast

import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from ontrain.capture.aten.complex import Complex, pair, parts
from ontrain.capture.aten.sparse import Product, Sparse
from ontrain.capture.context import AtenBuilder, dtype_of
from ontrain.capture.decisions import WAY_OUT, Decision, Decisions, RandomBranchError, standing
from ontrain.capture.inspection import INSPECTED
from ontrain.capture.masks import DrawnMask
from ontrain.capture.names import COMPLEX, FIXED, REQUIRES_GRAD, Names
from ontrain.capture.outside import OutsideTensors, original_of
from ontrain.capture.program import prepare
from ontrain.capture.source import source_line
from ontrain.capture.symbols import Symbols
from ontrain.capture.sympy_sizes import size_of
from ontrain.capture.walk import Walk, constant, written
from ontrain.capture.ways_out import draws_from_a_generator
from ontrain.errors import CaptureError
from ontrain.graph import (
    DOMAIN,
    Role,
    follows_from_random,
    live_nodes,
    new_model,
    reads,
    role_of,
    set_role,
    set_updates,
    updates_of,
    verify,
)  # fmt: skip
from ontrain.operators import Value

__all__ = ["Translated", "translate"]


@dataclasses.dataclass(frozen=True)
class Translated:
    """An exported program as a graph.

    Attributes:
        model: the graph.
        specialised: a message for each dimension that could not stay symbolic.
        path: the conditions under which it holds.
        masks: those that a run is given.
        varying: tensors outside of the module's state that are parameters of the graph.
        constants: tensors outside of the module's state whose values the graph holds, as tensors or as numbers.
    """

    model: ir.Model
    specialised: list[str]
    path: Decisions
    masks: list[DrawnMask]
    varying: dict[str, torch.Tensor]
    constants: list[torch.Tensor]


def translate(
    program: ExportedProgram, names: Names, decisions: Sequence[Decision] = (), masks: Sequence[DrawnMask] = (),
    outside: OutsideTensors | None = None,
) -> Translated:  # fmt: skip
    """Return an exported program as a graph.

    Args:
        program: as torch.export made it.
        names: of what is in it.
        decisions: conditions on values under which it holds.
        masks: those that it draws by numpy.
        outside: the tensors of others that forward reads.

    Raises:
        CaptureError: an operator, or one use of it, has no translation.
    """
    with standing(decisions):
        program, graph = prepare(program)
    walk = _Program(program, graph, names, outside)
    walk.run()
    path, drawn = walk.finish(decisions, masks)
    verify(walk.model, after="capture")
    inputs = {str(value.name) for value in walk.model.graph.inputs}
    varying = {name: tensor for name, tensor in walk.varying.items() if name in inputs}
    return Translated(walk.model, walk.specialised, path, drawn, varying, walk.constants)


class _Program(Walk):
    def __init__(self, program: ExportedProgram, graph: fx.Graph, names: Names, outside: OutsideTensors | None) -> None:
        self.program, self.graph, self.names, self.symbols = (
            program,
            graph,
            names,
            Symbols(by_values=names.sized_by_values),
        )
        self.specialised: list[str] = []
        self.buffers: dict[fx.Node, str] = {}
        self.rewritten: dict[fx.Node, str] = {}
        self.varying: dict[str, torch.Tensor] = {}
        self.written: dict[str, str] = {}
        self.outside, converted = ([], []) if outside is None else (outside.parameters, outside.converted())
        held = [original_of(t, self.outside) for t in program.constants.values() if isinstance(t, torch.Tensor)]
        parameters: dict[fx.Node, str] = {}
        constants: dict[fx.Node, torch.Tensor] = {}
        values = self._inputs(constants, parameters)
        fixed = [tensor for tensor in held if id(tensor) not in {id(varying) for varying in self.varying.values()}]
        self.constants = list({id(tensor): tensor for tensor in (*fixed, *converted)}.values())
        self.model = new_model([*dict.fromkeys(values.values())], "captured")
        super().__init__(
            graph, AtenBuilder(self.model.graph, self.symbols), parameters, (names.prefix, names.own_prefix)
        )
        self.op.environment.update(values)
        for node, value in values.items():
            if COMPLEX in value.metadata_props:
                self.op.environment[node] = parts(self.op, cast(Value, value))
        self.started = dict(self.op.environment)
        self.op.trained.update(values[node] for node in parameters if node in values)
        for node, tensor in constants.items():
            self.op.environment[node] = constant(self.op, tensor)

    def _inputs(
        self, constants: dict[fx.Node, torch.Tensor], parameters: dict[fx.Node, str]
    ) -> dict[fx.Node, ir.Value]:
        """Make the graph inputs: the user's, then parameters, then buffers, each in the module's order."""
        names, program = self.names, self.program
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        self._name_symbols(placeholders)
        users: dict[fx.Node, ir.Value] = {}
        state: dict[str, list[fx.Node]] = {}
        roles: dict[str, Role] = {}
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(node.meta.get("val"), torch.Tensor):
                    users[node] = self._user_input(node, len(users))
                continue
            target = str(spec.target)
            if spec.kind is InputKind.BUFFER and target.removeprefix(names.prefix) not in names.first:
                name = self.buffers[node] = self._written_name(target)
                state.setdefault(name, []).append(node)
                roles[name] = Role.BUFFER
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                name = names.first[target.removeprefix(names.prefix)]
                state.setdefault(name, []).append(node)
                is_parameter = spec.kind is InputKind.PARAMETER
                roles[name] = Role.PARAMETER if is_parameter else Role.BUFFER
                (parameters if is_parameter else self.buffers)[node] = name
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                tensor = original_of(program.constants[target], self.outside)
                if names.varies(tensor):
                    parameters[node] = self._varying_name(target.removeprefix(names.prefix), tensor)
                    state.setdefault(parameters[node], []).append(node)
                    roles[parameters[node]] = Role.PARAMETER
                else:
                    constants[node] = tensor
            else:
                raise _unheld(node, spec)
        values = dict(users)
        for role in (Role.PARAMETER, Role.BUFFER):
            for name in (*names.order, *self.varying):
                if roles.get(name) is role:
                    value = self._state_input(name, role, state[name][0])
                    values.update((node, value) for node in state[name])
        return values

    def _name_symbols(self, placeholders: Sequence[fx.Node]) -> None:
        """Name each size that varies by itself, before an input in front of it that has twice its size, say."""
        specs = zip(placeholders, self.program.graph_signature.input_specs, strict=True)
        users = [node.meta.get("val") for node, spec in specs if spec.kind is InputKind.USER_INPUT]
        tensors = [val for val in users if isinstance(val, torch.Tensor)]
        for val, wanted in zip(tensors, self.names.dynamic, strict=True):
            for axis, wish in wanted.items():
                if isinstance(size := val.shape[axis], torch.SymInt):
                    self.symbols.name(size, wish)

    def _varying_name(self, target: str, tensor: torch.Tensor) -> str:
        """Name a tensor outside of the module's state that the graph reads: as torch does, or by another number."""
        name, taken = target, {*self.names.inputs, *self.names.order, *self.varying}
        for number in itertools.count():
            if name not in taken:
                break
            name = f"{target}_{number}"
        self.varying[name] = tensor
        return name

    def _written_name(self, target: str) -> str:
        """Name a tensor outside of the module's state that forward writes to, if the caller has such tensors written.

        Raises:
            CaptureError: the caller has not.
        """
        tensor = self.program.constants[target]
        if not self.names.writes:
            raise CaptureError(
                f"forward writes to a tensor of shape {list(tensor.shape)} that is no buffer",
                reason="a graph updates buffers only",
                way_out="register it, self.register_buffer(name, tensor, persistent=False)",
            )
        self.written[target] = name = self._varying_name(target.removeprefix(self.names.prefix), tensor)
        return name

    def _user_input(self, node: fx.Node, index: int) -> ir.Value:
        name, val = self.names.inputs[index], node.meta["val"]
        wanted, fixed = self.names.dynamic[index], list[str]()
        for axis, size in enumerate(val.shape):
            wish = wanted.get(axis)
            if wish is None:
                continue
            what = f"dimension {axis} ({wish!r}) of input {name!r}"
            if not isinstance(size, torch.SymInt) or isinstance(self.symbols.convert(size), int):
                self.specialised.append(f"{what} is fixed to {size} by the model")
                fixed.append(f"{axis}:{wish}")
            elif (tied := self.symbols.name(size, wish)) != wish:
                self.specialised.append(f"{what} is tied to {tied!r} by the model")
        value = self._value(f"input {name!r}", name, val.dtype, self.symbols.dims(val.shape))
        if fixed:
            value.metadata_props[FIXED] = ",".join(fixed)
        for axis, size in enumerate(val.shape):
            if isinstance(size, torch.SymInt):
                self.symbols.locate(size, value, axis)
        return set_role(value, Role.INPUT)

    def _state_input(self, name: str, role: Role, node: fx.Node) -> ir.Value:
        val = node.meta["val"]
        value = self._value(f"{role.value} {name!r}", name, val.dtype, [int(size) for size in val.shape])
        if name in self.names.frozen:
            value.metadata_props[REQUIRES_GRAD] = "0"
        return set_role(value, role)

    def _value(self, what: str, name: str, dtype: torch.dtype, shape: Sequence[int | str]) -> ir.Value:
        """A graph input; a complex one has its two parts along a last dimension."""
        if not dtype.is_complex:
            return ir.Value(name=name, type=ir.TensorType(dtype_of(dtype)), shape=ir.Shape(shape))
        if not self.names.complex_pairs:
            raise CaptureError(
                f"{what} is {dtype}", reason="ONNX has no complex tensors, and nobody here splits them into two parts",
                way_out="train with ORTModule and an optimizer of torch.optim, or keep torch.view_as_real of it and "
                "call torch.view_as_complex in forward",
            )  # fmt: skip
        value = ir.Value(name=name, type=ir.TensorType(dtype_of(dtype.to_real())), shape=ir.Shape([*shape, 2]))
        value.metadata_props[COMPLEX] = "1"
        return value

    def _masks(self, drawn: Sequence[DrawnMask]) -> list[DrawnMask]:
        """Return the masks that the graph has as inputs; what they depend on becomes graph outputs."""
        return [
            dataclasses.replace(
                drawn[index],
                name=str(value.name),
                shape=[size_of(size.node.expr if isinstance(size, torch.SymInt) else size) for size in shape],
                attention=None if attention is None else str(self._output(attention, f"attention_{index}").name),
            )
            for index, (value, shape, attention) in sorted(self.op.masks.items())
        ]

    def finish(self, decisions: Sequence[Decision], masks: Sequence[DrawnMask]) -> tuple[Decisions, list[DrawnMask]]:
        """Name the outputs, append the new values of buffers and what forward decides by, drop what nothing reads."""
        graph = self.model.graph
        outputs: Any = self.graph.output_node().args[0]
        results = list(outputs)
        count = 0
        updates: dict[str, ir.Value] = {}
        for node, spec in zip(results, self.program.graph_signature.output_specs, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                names = self.names.outputs
                self._output(self.read(node), names[count] if count < len(names) else f"output_{count}")
                count += 1
            elif spec.kind in (OutputKind.PARAMETER_MUTATION, OutputKind.BUFFER_MUTATION):
                target = str(spec.target)
                name = self.written.get(target) or self.names.first[target.removeprefix(self.names.prefix)]
                updates[name] = self._in_dtype_of(name, self.read(node))
                if spec.kind is OutputKind.PARAMETER_MUTATION:
                    parameter = next(n for n, own in self.parameters.items() if own == name)
                    self._write_parameter(parameter, None, updates[name])
        state = self.buffers | self.rewritten
        starts = {name: self.started[node] for node, name in state.items()}
        for node, name in state.items():
            if self.op.environment[node] is not starts[name]:
                updates[name] = self.op.environment[node]
        for name in (*self.names.order, *self.written.values()):
            if name in updates and updates[name] is not starts[name]:
                set_updates(self._output(updates[name], f"{name}.next"), name)
        for node in [node for node in graph if node.op_type == "Inspect" and node.domain == DOMAIN]:
            if node.attributes["name"].as_string():  # else it is a point that a derivative is taken by
                self._inspected(node)
        path, drawn = self._decided(decisions), self._masks(masks)
        self._prune()
        return path, drawn

    def _in_dtype_of(self, name: str, new: Value) -> Value:
        """A new value in the dtype of the buffer that takes it; a parameter, or a complex buffer, has it already."""
        start = next((self.started[node] for node, own in self.buffers.items() if own == name), None)
        if not isinstance(start, ir.Value) or start.dtype is None or not isinstance(new, ir.Value):
            return new
        return self.op.cast(new, start.dtype)

    def _write_parameter(self, node: fx.Node, source: str | None, new: ir.Value | None = None) -> None:
        """Take up that forward changes a parameter: a momentum encoder's, or one that it keeps to some norm.

        A frozen one is a buffer. One that wants a gradient gets that of its new value, which is the parameter itself
        for eager PyTorch. A program without writes in place says at its end what is `new`; then what has read the new
        value was translated long ago, and it has to hand on its gradient by itself.
        """
        name, places = self.parameters[node], [n for n, own in self.parameters.items() if own == self.parameters[node]]
        if not self.names.writes_parameters:
            raise written(name, source)
        if name in self.names.frozen:
            for place in places:
                self.buffers[place] = self.parameters.pop(place)
                set_role(self.started[place], Role.BUFFER)
        elif len(places) > 1 or (new is not None and not _is_revalued(new)):
            raise written(name, source)
        else:
            self.rewritten[node] = name
            if new is None:
                new = self.op.composite("Detach", self.op.environment[node])
                self.op.environment[node] = self.op.composite("Revalued", self.started[node], new)

    def _decided(self, decisions: Sequence[Decision]) -> Decisions:
        """Make the numbers that conditions are about graph outputs."""
        outputs = {}
        for symbol, value in self.symbols.decided.items():
            number = self._output(value, f"decision_{symbol}")
            if follows_from_random(number):
                source = next(d.source for d in decisions if symbol in d.condition.symbols())
                raise RandomBranchError(
                    "the module branches on a number that is drawn at random", source=source,
                    reason="a graph draws its own numbers when it runs",
                    way_out="compare what torch.rand(()) returns with a number at once, which ORTModule captures for "
                    f"each answer; or {WAY_OUT}",
                )  # fmt: skip
            outputs[symbol] = str(number.name)
        return Decisions(decisions, outputs)

    def _inspected(self, node: ir.Node) -> None:
        """Make a marked value a graph output, unless it is one."""
        graph, value = self.model.graph, node.outputs[0]
        if not any(value is done for done in graph.outputs):
            value.name = self.op.fresh(f"inspected_{node.attributes['name'].as_string()}")
            graph.outputs.append(value)
        value.metadata_props[INSPECTED] = node.attributes["name"].as_string()

    def _output(self, value: Any, name: str) -> ir.Value:
        """Append a graph output; an input, a constant or a value that is an output already gets a name of its own."""
        graph = self.model.graph
        if isinstance(value, Complex) and self.names.complex_pairs:
            both = self._output(pair(self.op, value), name)
            both.metadata_props[COMPLEX] = "1"
            return both
        if isinstance(value, Sparse | Product):
            raise CaptureError(
                f"output {name!r} is a sparse matrix", reason="a graph returns dense tensors",
                way_out="return its to_dense(), or its indices() and values()",
            )  # fmt: skip
        if value is None or isinstance(value, Complex):
            kind = "a complex tensor" if value is not None else "what torch keeps for its own backward"
            raise CaptureError(
                f"output {name!r} is {kind}", reason="a graph returns real tensors that it computes",
                way_out="return torch.view_as_real(output)" if value is not None else "leave it out",
            )  # fmt: skip
        output: ir.Value = value if isinstance(value, ir.Value) else self.op.scalar(value)
        if output.producer() is None or any(output is done for done in graph.outputs):
            node = ir.Node("", "Identity", [output], num_outputs=1)
            node.outputs[0].type, node.outputs[0].shape = output.type, output.shape
            graph.append(node)
            output = node.outputs[0]
        output.name = self.op.fresh(name)
        graph.outputs.append(output)
        return output

    def _prune(self) -> None:
        graph = self.model.graph
        updated = {updates_of(value) for value in graph.outputs}
        live = set(live_nodes(graph))
        graph.remove([node for node in graph if node not in live], safe=False)
        used = {value for node in graph for value in reads(node)}
        for value in [v for v in graph.inputs if v not in used]:
            if role_of(value) is not Role.INPUT and value.name not in updated:
                graph.inputs.remove(value)
        for name in [name for name, value in graph.initializers.items() if value not in used]:
            del graph.initializers[name]


def _unheld(node: fx.Node, spec: InputSpec) -> CaptureError:
    """The refusal of what a program takes beside tensors: a `torch.Generator`, an object of a library's own."""
    reader = next(iter(node.users), node)
    if "generator" in {name for name, value in reader.kwargs.items() if value is node}:
        return draws_from_a_generator(source_line(reader))
    return CaptureError(
        f"the program takes a {spec.kind.name.lower()}, which no graph can hold", source=source_line(reader),
        way_out="pass what forward needs of it as tensors or numbers",
    )  # fmt: skip


def _is_revalued(value: ir.Value) -> bool:
    """Whether the gradient of a parameter's new value goes to the parameter."""
    producer = value.producer()
    return producer is not None and (producer.domain, producer.op_type) == (DOMAIN, "Revalued")
