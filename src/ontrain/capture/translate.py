"""The walk over an exported program that makes the graph: inputs by role, nodes by the table, outputs by name."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ontrain.capture.aliases import Aliases, canonical, mutates
from ontrain.capture.aten import find
from ontrain.capture.aten.complex import Complex, is_complex, translate_complex
from ontrain.capture.aten.writing import write_back
from ontrain.capture.context import AtenBuilder, dtype_of, to_array
from ontrain.capture.names import REQUIRES_GRAD, Names
from ontrain.capture.program import is_ignored, prepare
from ontrain.capture.source import module_of, source_line
from ontrain.capture.symbols import Symbols
from ontrain.errors import CaptureError, GraphError
from ontrain.graph import (
    Role,
    annotate,
    is_float,
    live_nodes,
    new_model,
    role_of,
    set_role,
    set_updates,
    shape_text,
    updates_of,
    verify,
)

__all__ = ["translate"]


def translate(program: ExportedProgram, names: Names) -> tuple[ir.Model, list[str]]:
    """Return the model of an exported program, and a message for each dimension that could not stay symbolic.

    Raises:
        CaptureError: an operator, or one use of it, has no translation.
    """
    program, graph = prepare(program)
    walk = _Walk(program, graph, names)
    walk.run()
    walk.finish()
    verify(walk.model, after="capture")
    return walk.model, walk.specialised


class _Walk:
    def __init__(self, program: ExportedProgram, graph: fx.Graph, names: Names) -> None:
        self.program, self.graph, self.names = program, graph, names
        self.symbols, self.aliases = Symbols(), Aliases(graph)
        self.specialised: list[str] = []
        self.buffers: dict[fx.Node, str] = {}
        self.parameters: dict[fx.Node, str] = {}
        constants: dict[fx.Node, torch.Tensor] = {}
        values = self._inputs(constants)
        self.model = new_model([*dict.fromkeys(values.values())], "captured")
        self.op = AtenBuilder(self.model.graph, self.symbols)
        self.op.environment.update(values)
        self.op.trained.update(values[node] for node in self.parameters if node in values)
        for node, tensor in constants.items():
            self.op.environment[node] = _constant(self.op, tensor)

    def _inputs(self, constants: dict[fx.Node, torch.Tensor]) -> dict[fx.Node, ir.Value]:
        """Make the graph inputs: the user's, then parameters, then buffers, each in the module's order."""
        names, program = self.names, self.program
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        users: dict[fx.Node, ir.Value] = {}
        state: dict[str, list[fx.Node]] = {}
        roles: dict[str, Role] = {}
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(node.meta.get("val"), torch.Tensor):
                    users[node] = self._user_input(node, len(users))
                continue
            target = str(spec.target)
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                name = names.first[target.removeprefix(names.prefix)]
                state.setdefault(name, []).append(node)
                is_parameter = spec.kind is InputKind.PARAMETER
                roles[name] = Role.PARAMETER if is_parameter else Role.BUFFER
                (self.parameters if is_parameter else self.buffers)[node] = name
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                constants[node] = program.constants[target]
            else:
                raise CaptureError(f"the program takes a {spec.kind.name.lower()}, which no graph can hold")
        values = dict(users)
        for role in (Role.PARAMETER, Role.BUFFER):
            for name in names.order:
                if roles.get(name) is role:
                    value = self._state_input(name, role, state[name][0])
                    values.update((node, value) for node in state[name])
        return values

    def _user_input(self, node: fx.Node, index: int) -> ir.Value:
        name, val = self.names.inputs[index], node.meta["val"]
        wanted = self.names.dynamic[index]
        for axis, size in enumerate(val.shape):
            wish = wanted.get(axis)
            if wish is None:
                continue
            what = f"dimension {axis} ({wish!r}) of input {name!r}"
            if not isinstance(size, torch.SymInt) or isinstance(self.symbols.convert(size), int):
                self.specialised.append(f"{what} is fixed to {size} by the model")
            elif (found := self.symbols.name(size, wish)) != wish:
                self.specialised.append(f"{what} is tied to {found!r} by the model")
        value = _value(name, val.dtype, self.symbols.dims(val.shape))
        for axis, size in enumerate(val.shape):
            if isinstance(size, torch.SymInt):
                self.symbols.locate(size, value, axis)
        return set_role(value, Role.INPUT)

    def _state_input(self, name: str, role: Role, node: fx.Node) -> ir.Value:
        value = _value(name, node.meta["val"].dtype, [int(size) for size in node.meta["val"].shape])
        if name in self.names.frozen:
            value.metadata_props[REQUIRES_GRAD] = "0"
        return set_role(value, role)

    def run(self) -> None:
        """Translate every call in order."""
        with self.op.arithmetic():
            for node in self.graph.nodes:
                if node.op == "call_function" and not is_ignored(node):
                    self._translate(node)
                elif node.op == "get_attr":
                    self.op.environment[node] = _constant(self.op, node.meta["ontrain.constant"])

    def _translate(self, node: fx.Node) -> None:
        op, val = self.op, node.meta.get("val")
        if not isinstance(val, torch.Tensor | tuple | list):
            if node.target in _NUMBERS and isinstance(val, torch.SymInt | torch.SymFloat):
                number = op.Reshape(self._read(node.args[0]), [1])
                self.symbols.define(val, op.composite("Detach", number) if is_float(number) else number)
            if val is not None:
                op.environment[node] = self.symbols.convert(val)
            return
        if node.target is operator.getitem:
            op.environment[node] = self._read(node.args[0])[node.args[1]]
            return
        start = len(op.nodes)
        try:
            result = self._result(node)
            if isinstance(val, torch.Tensor) and isinstance(result, ir.Value):
                self.symbols.derive(val, result, [self._argument(a) for a in node.args])
            self._state_types(node, result, val)
            if mutates(node):
                self._write(node, result)
            else:
                op.environment[node] = result
        except CaptureError as error:
            if error.source is not None or source_line(node) is None:
                raise
            raise op.refuse(error.problem, error.reason or "", error.way_out or "") from error
        except (GraphError, AssertionError, TypeError, LookupError, ArithmeticError, ValueError) as error:
            raise op.refuse(
                f"the translation of {node.target} does not fit this call",
                f"{type(error).__name__}: {error}",
                "write the line with other operators, and please report this one",
            ) from error
        line, module = source_line(node), module_of(node, (self.names.prefix, self.names.own_prefix))
        for made in op.nodes[start:]:
            annotate(made, line, module)

    def _result(self, node: fx.Node) -> Any:
        self.op.node = node
        args = [self._argument(a) for a in node.args]
        named = {k: self._argument(a) for k, a in node.kwargs.items() if k not in _DROPPED}
        if is_complex([*args, *named.values(), node.meta["val"]]):
            return translate_complex(self.op, node.target, args, named)
        handler = find(node.target)
        assert handler is not None, node.target
        return handler(self.op, *args, **named)

    def _write(self, node: fx.Node, result: ir.Value) -> None:
        """Give the tensor written to its new value, then its root, then the views that are read later."""
        environment, target = self.op.environment, canonical(node)
        environment[target] = result
        for view in self.aliases.path(target):
            base = canonical(view.args[0])  # type: ignore[arg-type]
            self.op.node = view
            arguments = [self._argument(a) for a in view.args[1:]]
            environment[base] = write_back(self.op, environment[base], environment[view], *arguments)
            target = base
        for view in self.aliases.stale(node):
            environment[view] = self._result(view)
        self.op.node = node
        if target in self.parameters:
            raise _written(self.parameters[target], source_line(node))

    def _read(self, node: Any) -> Any:
        return self.op.environment[canonical(node)]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            found = self._read(value)
            if found is None:
                raise self.op.refuse(
                    f"a result of {value.args[0]} that no graph has" if value.args else f"{value} is not computed",
                    "it is what torch keeps for its own backward", "use the operator's first result only",
                )  # fmt: skip
            return found
        if isinstance(value, list | tuple):
            return [self._argument(item) for item in value]
        return value

    def _state_types(self, node: fx.Node, result: Any, val: Any) -> None:
        """Give results the shapes that torch found, under the user's names."""
        pairs = zip(result, val, strict=False) if isinstance(result, tuple | list) else [(result, val)]
        for value, seen in pairs:
            if not isinstance(value, ir.Value) or not isinstance(seen, torch.Tensor):
                continue
            dtype, shape = dtype_of(seen.dtype), self.symbols.dims(seen.shape)
            known = value.shape
            fits = (
                value.dtype in (None, dtype)
                and (known is None or len(known) == len(shape))
                and (
                    known is None
                    or all(
                        a == b for a, b in zip(known, shape, strict=True) if isinstance(a, int) and isinstance(b, int)
                    )
                )
            )
            if not fits:
                raise self.op.refuse(
                    f"the translation of {node.target} made {shape_text(value)} where torch has {dtype}{shape}",
                    "the operator's translation is wrong for these arguments",
                    "write the line with other operators, and please report this one",
                )
            if value.producer() is not None:
                value.dtype, value.shape = dtype, ir.Shape(shape)

    def finish(self) -> None:
        """Name the outputs, append the new values of buffers, drop what nothing reads."""
        graph = self.model.graph
        results = list(self.graph.output_node().args[0])  # type: ignore[arg-type]
        count = 0
        updates: dict[str, ir.Value] = {}
        for node, spec in zip(results, self.program.graph_signature.output_specs, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                names = self.names.outputs
                self._output(self._read(node), names[count] if count < len(names) else f"output_{count}")
                count += 1
            elif spec.kind is OutputKind.PARAMETER_MUTATION:
                raise _written(self.names.first[str(spec.target).removeprefix(self.names.prefix)])
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                updates[self.names.first[str(spec.target).removeprefix(self.names.prefix)]] = self._read(node)
        inputs = {value.name: value for value in graph.inputs}
        for node, name in self.buffers.items():
            if self.op.environment[node] is not inputs[name]:
                updates[name] = self.op.environment[node]
        for name in self.names.order:
            if name in updates and updates[name] is not inputs[name]:
                set_updates(self._output(updates[name], f"{name}.next"), name)
        self._prune()

    def _output(self, value: Any, name: str) -> ir.Value:
        """Append a graph output; an input, a constant or a value that is an output already gets a name of its own."""
        graph = self.model.graph
        if value is None or isinstance(value, Complex):
            kind = "a complex tensor" if value is not None else "what torch keeps for its own backward"
            raise CaptureError(
                f"output {name!r} is {kind}", reason="a graph returns real tensors that it computes",
                way_out="return torch.view_as_real(output)" if value is not None else "leave it out",
            )  # fmt: skip
        made: ir.Value = value if isinstance(value, ir.Value) else self.op.scalar(value)
        if made.producer() is None or any(made is done for done in graph.outputs):
            node = ir.Node("", "Identity", [made], num_outputs=1)
            node.outputs[0].type, node.outputs[0].shape = made.type, made.shape
            graph.append(node)
            made = node.outputs[0]
        made.name = self.op.fresh(name)
        graph.outputs.append(made)
        return made

    def _prune(self) -> None:
        graph = self.model.graph
        updated = {updates_of(value) for value in graph.outputs}
        live = set(live_nodes(graph))
        graph.remove([node for node in graph if node not in live], safe=False)
        used = {value for node in graph for value in node.inputs if value is not None}
        for value in [v for v in graph.inputs if v not in used]:
            if role_of(value) is not Role.INPUT and value.name not in updated:
                graph.inputs.remove(value)
        for name in [name for name, value in graph.initializers.items() if value not in used]:
            del graph.initializers[name]


_NUMBERS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
_DROPPED = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"})


def _written(parameter: str, source: str | None = None) -> CaptureError:
    return CaptureError(
        f"forward writes to parameter {parameter!r}",
        source=source,
        reason="parameters change in the optimizer only",
        way_out="register it as a buffer, or change it outside of forward",
    )


def _constant(op: AtenBuilder, tensor: torch.Tensor) -> Any:
    if not tensor.is_complex():
        return op.const(to_array(tensor))
    return Complex(op.const(to_array(tensor.real)), op.const(to_array(tensor.imag)))


def _value(name: str, dtype: torch.dtype, shape: Sequence[int | str]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype_of(dtype)), shape=ir.Shape(shape))
