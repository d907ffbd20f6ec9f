"""The walk over a program: each call by the table, branches as graphs inside, writes by what they change."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from ontrain.capture.aliases import Aliases, canonical, mutates
from ontrain.capture.arrays import to_array
from ontrain.capture.aten import find
from ontrain.capture.aten.complex import Complex, is_complex, translate_complex
from ontrain.capture.aten.sparse import is_sparse, translate_sparse
from ontrain.capture.aten.writing import write_back
from ontrain.capture.changes import ChangedStateError
from ontrain.capture.context import AtenBuilder, dtype_of
from ontrain.capture.derivatives import differentiated_by
from ontrain.capture.program import BRANCHES, is_ignored
from ontrain.capture.source import module_of, source_line
from ontrain.capture.unfit_numbers import UnfitNumberError
from ontrain.errors import CaptureError, GraphError
from ontrain.graph import OPSET, annotate, as_outputs, is_float, live_nodes, shape_text
from ontrain.internals import OpOverload, available
from ontrain.sizes import Size

__all__ = ["Walk", "constant", "written"]


class Walk:
    """Translates a program node by node into the graph of a builder, whose environment holds the program's inputs.

    Args:
        graph: flat, see `flat_graph`.
        op: appends to the graph that is made.
        parameters: the placeholders of parameters, and their names.
        prefixes: taken off the paths of modules.
    """

    def __init__(
        self, graph: fx.Graph, op: AtenBuilder, parameters: dict[fx.Node, str], prefixes: tuple[str, str]
    ) -> None:
        self.graph, self.op, self.prefixes = graph, op, prefixes
        self.parameters, self.aliases, self.symbols = parameters, Aliases(graph), op.symbols

    def run(self) -> None:
        """Translate every call in order."""
        with self.op.arithmetic():
            for node in self.graph.nodes:
                if node.op == "call_function" and not is_ignored(node):
                    self._translate(node)
                elif node.op == "get_attr":
                    self.op.environment[node] = constant(self.op, node.meta["ontrain.constant"])

    def _translate(self, node: fx.Node) -> None:
        """Emit what a node computes, with the user's line."""
        start, val = len(self.op.nodes), node.meta.get("val")
        if not isinstance(val, torch.Tensor | tuple | list):
            self._number(node, val)
        elif node.target is operator.getitem:
            self._set(node, self.read(node.args[0])[node.args[1]])
        else:
            self._tensors(node, val)
        line, module = source_line(node), module_of(node, self.prefixes)
        for emitted in self.op.nodes[start:]:
            annotate(emitted, line, module)

    def _number(self, node: fx.Node, val: Any) -> None:
        op = self.op
        if isinstance(val, torch.SymInt | torch.SymFloat) and _is_number(node.target):
            number = op.Reshape(self.read(node.args[0]), [1])
            if not (isinstance(val, torch.SymInt) and self._measured(node, val, number)):
                self.symbols.define(val, op.composite("Detach", number) if is_float(number) else number)
        if val is not None:
            op.environment[node] = self.symbols.convert(val)

    def _tensors(self, node: fx.Node, val: Any) -> None:
        op = self.op
        try:
            result = self._result(node)
            if mutates(node) and isinstance(result, ir.Value):
                result = op.cast(result, op.dtype)  # `x.gt_(0)` leaves x its dtype
            if isinstance(val, torch.Tensor) and isinstance(result, ir.Value):
                self.symbols.derive(val, result, [self._argument(a) for a in node.args])
            self._state_types(node, result, val)
            if mutates(node):
                self._write(node, result)
            else:
                self._set(node, result)
        except CaptureError as error:
            if error.source is not None or source_line(node) is None:
                raise
            raise op.refuse(error.problem, error.reason or "", error.way_out or "") from error
        except (GraphError, AssertionError, TypeError, LookupError, ArithmeticError, ValueError) as error:
            refusal = op.refuse(
                f"the translation of {node.target} does not fit this call",
                f"{type(error).__name__}: {error}",
                "write the line with other operators, and please report this one",
            )
            varies = any(isinstance(self._argument(a), Size) for a in (*node.args, *node.kwargs.values()))
            if varies and isinstance(node.target, OpOverload):
                refusal = UnfitNumberError.of(refusal, node.target)
            raise refusal from error

    def _set(self, node: fx.Node, result: Any) -> None:
        """Give a node its result, and a value of its own if a gradient is taken by it.

        A copy of a tensor, or a view of all of it, has the tensor's value; what else is computed of the tensor does
        not depend on the copy.
        """
        environment = self.op.environment
        if differentiated_by(node) and any(result is value for value in environment.values()):
            result = self.op.composite("Inspect", result, name="")
        environment[node] = result

    def _measured(self, node: fx.Node, number: torch.SymInt, value: ir.Value) -> bool:
        """Whether a number out of a tensor is or bounds a size; it then is that of a tensor as long, as plans want."""
        if not self.symbols.by_values or not self.symbols.is_size(number, value, node.graph):
            return False
        self.symbols.equate(number, self.symbols.as_size(self.op, value))
        return True

    def _result(self, node: fx.Node) -> Any:
        self.op.node = node
        args = [self._argument(a) for a in node.args]
        named = {k: self._argument(a) for k, a in node.kwargs.items() if k not in _DROPPED}
        if is_complex([*args, *named.values(), node.meta["val"]]):
            return translate_complex(self.op, node.target, args, named)
        if is_sparse([*args, *named.values(), node.meta["val"]]):
            return translate_sparse(self.op, node.target, args, named)
        if BRANCHES in node.meta:
            control: Callable[..., Sequence[Any]] = _CONTROL.get(node.target, Walk._choice)
            return control(self, *args)
        handler = find(node.target)
        assert handler is not None, node.target
        return handler(self.op, *args, **named)

    def _choice(self, cond: Any, operands: Sequence[Any]) -> Sequence[Any]:
        """An If for torch.cond; its branches read outer values in place."""
        then, other = (
            self._inner([], functools.partial(self._run, graph=graph, operands=operands))
            for graph in self.op.node.meta[BRANCHES]
        )
        pred = self.op.cast(cond, ir.DataType.BOOL)
        return self._control("If", [pred], len(then.outputs), then_branch=then, else_branch=other)

    def _loop(self, carried: Sequence[Any], outer: Sequence[Any]) -> Sequence[Any]:
        """A Loop without a limit for torch.while_loop; what it does not hand on is read in place."""
        test, body = self.op.node.meta[BRANCHES]
        if not all(isinstance(value, ir.Value) for value in carried):
            raise self.op.refuse(
                "torch.while_loop hands on a number", "a graph's loop hands on tensors",
                "start it from a tensor: torch.tensor(0) in place of 0",
            )  # fmt: skip
        (first,) = self._run(self.op, test, [*carried, *outer])
        states = [ir.Value(name=self.op.fresh("state"), shape=v.shape, type=v.type) for v in carried]
        at, go = (
            ir.Value(name=self.op.fresh(name), shape=ir.Shape([]), type=ir.TensorType(dtype))
            for name, dtype in (("iteration", ir.DataType.INT64), ("go", ir.DataType.BOOL))
        )

        def step(op: AtenBuilder) -> list[Any]:
            nexts = self._run(op, body, [*states, *outer])
            return [*self._run(op, test, [*nexts, *outer]), *nexts]

        return self._control("Loop", [None, first, *carried], len(carried), body=self._inner([at, go, *states], step))

    def _scan(self, initial: Sequence[Any], rows: Sequence[Any], outer: Sequence[Any]) -> Sequence[Any]:
        """A Scan for torch's; what it neither hands on nor goes along is read in place."""
        (body,) = self.op.node.meta[BRANCHES]
        states = [ir.Value(name=self.op.fresh("state"), shape=v.shape, type=v.type) for v in initial]
        row = [ir.Value(name=self.op.fresh("row"), shape=ir.Shape(v.shape[1:]), type=v.type) for v in rows]
        step = self._inner([*states, *row], functools.partial(self._run, graph=body, operands=[*states, *row, *outer]))
        operands, count = [*initial, *rows], len(step.outputs)
        results = self.op.call("", "Scan", operands, {"body": step, "num_scan_inputs": len(rows)}, count)
        return results if isinstance(results, tuple) else (results,)

    def _control(self, op_type: str, operands: Sequence[Any], outputs: int, **graphs: ir.Graph) -> Sequence[Any]:
        results = self.op.call("", op_type, operands, graphs, outputs)
        return results if isinstance(results, tuple) else (results,)

    def _inner(self, inputs: Sequence[ir.Value], write: Callable[[AtenBuilder], Sequence[Any]]) -> ir.Graph:
        inner = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name="inner")
        op = self.op.inside(inner)
        with op.arithmetic():
            inner.outputs.extend(as_outputs(op, write(op)))
        live = set(live_nodes(inner))
        inner.remove([node for node in inner if node not in live], safe=True)
        for name in [name for name, value in inner.initializers.items() if not value.uses()]:
            del inner.initializers[name]
        return inner

    def _run(self, op: AtenBuilder, graph: fx.Graph, operands: Sequence[Any]) -> list[Any]:
        """Write an inner program by a builder, and return its results."""
        walk, node = Walk(graph, op, {}, self.prefixes), self.op.node
        op.environment.update(zip((n for n in graph.nodes if n.op == "placeholder"), operands, strict=True))
        walk.run()
        self.op.node = node
        results = graph.output_node().args[0]
        return [walk.read(result) for result in (results if isinstance(results, list | tuple) else [results])]

    def _write(self, node: fx.Node, result: ir.Value) -> None:
        """Give the tensor written to its new value, then its root, then the views that are read later."""
        environment, target = self.op.environment, canonical(node)
        environment[target] = result
        for view in self.aliases.path(target):
            base = canonical(view.all_input_nodes[0])
            self.op.node = view
            arguments = [self._argument(a) for a in view.args[1:]]
            environment[base] = write_back(self.op, environment[base], environment[view], *arguments)
            target = base
        for view in self.aliases.stale(node):
            self._set(view, self._result(view))
        self.op.node = node
        if target in self.parameters:
            self._write_parameter(target, source_line(node) or str(node))

    def _write_parameter(self, node: fx.Node, source: str | None) -> None:
        """Take up that forward changes a parameter."""
        raise written(self.parameters[node], source)

    def read(self, node: Any) -> Any:
        """Return the value of an FX node, as the writes so far left it."""
        return self.op.environment[canonical(node)]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            read = self.read(value)
            if read is None:
                raise self.op.refuse(
                    f"a result of {value.args[0]} that no graph has" if value.args else f"{value} is not computed",
                    "it is what torch keeps for its own backward", "use the operator's first result only",
                )  # fmt: skip
            return read
        if isinstance(value, list | tuple):
            return [self._argument(item) for item in value]
        return value

    def _state_types(self, node: fx.Node, result: Any, val: Any) -> None:
        """Give results the shapes that torch found, under the user's names."""
        pairs = zip(result, val, strict=False) if isinstance(result, tuple | list) else [(result, val)]
        for value, seen in pairs:
            if not isinstance(value, ir.Value) or not isinstance(seen, torch.Tensor):
                continue
            self.symbols.learn(seen, value)
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


def _is_number(target: Any) -> bool:
    operators = torch.ops.aten.item, available("torch.ops.aten._local_scalar_dense")
    return any(operator_of is not None and target is operator_of.default for operator_of in operators)


_CONTROL: Mapping[Any, Callable[..., Sequence[Any]]] = {
    torch.ops.higher_order.while_loop: Walk._loop,
    torch.ops.higher_order.scan: Walk._scan,
}
_DROPPED = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"})


def written(parameter: str, source: str | None = None) -> CaptureError:
    """Return the error for a forward that changes a parameter."""
    return ChangedStateError(
        f"forward writes to parameter {parameter!r}",
        source=source,
        reason="parameters change in the optimizer only",
        way_out="register it as a buffer, or change it outside of forward; if only the first call does, as to begin "
        "from the first batch, call the model once before it is wrapped",
    )


def constant(op: AtenBuilder, tensor: torch.Tensor) -> Any:
    """Return a tensor's values as a constant of the graph; a complex one as its two parts."""
    if not tensor.is_complex():
        return op.const(to_array(tensor).copy())
    return Complex(op.const(to_array(tensor.real).copy()), op.const(to_array(tensor.imag).copy()))
