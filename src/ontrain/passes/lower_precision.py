"""Mixed precision as a rewriting of the forward graph: products in half precision, what loses digits in float32."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir

from ontrain.autodiff import reached_from
from ontrain.graph import DOMAIN, Builder, Role, by_role, rebuild, schema_of
from ontrain.operators import Precision, View, record_of
from ontrain.passes.infra import Pass

__all__ = ["HALF", "LowerPrecision", "announce", "announced"]

HALF = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
"""The dtypes that a graph can be lowered to, by torch's names."""

_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895313892515355e38}


_LOWERED = "ontrain.lowered"


def announce(model: ir.Model, dtype: ir.DataType) -> None:
    """Tell the passes over a forward graph that its products will run in half precision."""
    model.graph.meta[_LOWERED] = dtype


def announced(graph: ir.Graph) -> ir.DataType | None:
    """Return the half precision in which a graph's products will run; None where they stay as they are."""
    dtype = graph.meta.get(_LOWERED)
    return dtype if isinstance(dtype, ir.DataType) else None


@cache
def _bears(domain: str, op_type: str, dtype: ir.DataType) -> bool:
    """Whether the standard defines the operator for a dtype; Einsum, for one, knows no bfloat16."""
    schema = schema_of(op_type, domain)
    if schema is None:
        return True  # ours, which are made of operators that do
    allowed = {kind.type_param_str: kind.allowed_type_strs for kind in schema.type_constraints}
    return f"tensor({dtype.name.lower()})" in allowed.get(schema.outputs[0].type_str, ())


def _is_truth(value: ir.Value | None) -> bool:
    """Whether a value is truth values cast to numbers, in whatever arrangement, or the largest of some of them."""
    producer = None if value is None else value.producer()
    if producer is None or producer.domain:
        return False
    source = producer.inputs[0] if producer.inputs else None
    if producer.op_type == "Cast" and source is not None:
        return source.dtype == ir.DataType.BOOL or _is_truth(source)
    rearranged = record_of(producer).view not in (View.NONE, View.SCALED)
    return (rearranged or producer.op_type == "ReduceMax") and _is_truth(source)


class LowerPrecision(Pass):
    """Run what is bound by products in half precision; parameters, losses and statistics stay in float32.

        MatMul(x, W) → Gelu → LayerNormalization
    →   MatMul(Cast(x), Cast(W)) → Gelu → Cast → LayerNormalization

    Three kinds of operators, as in torch.autocast:

    - matrix products, convolutions and attention run in half precision if a parameter has a part in them. Those that
      no parameter reaches, as the angles of rotary positions, stay exact; so do, in float16, those of a classifier
      that is one with its loss, whose softmax and loss are float32 in any case;
    - elementwise operators and rearrangements follow their operands: in half precision if all of them are, else in
      float32. A scalar constant follows the others, unless half precision cannot hold it, and so do truth values;
    - all others run in float32: losses, softmax, reductions, norms and their statistics, powers, exponentials, random
      numbers, control flow, and every operator that is not known to bear it.

    Parameters stay float32 and are cast where they are used, once: the gradient passes back through the cast, so the
    optimizer updates float32 master weights with float32 gradients. Outputs keep the dtypes that they had. Sources:
    Micikevicius et al. 2018; torch.amp's lists of operators.

    Args:
        dtype: FLOAT16 or BFLOAT16.
        products_only: whether all but products, convolutions and attention stays in float32.
    """

    changes_numerics = True

    def __init__(self, dtype: ir.DataType, *, products_only: bool = False) -> None:
        assert dtype in _LARGEST, f"{dtype} is no half precision"
        self.dtype, self.products_only = dtype, products_only

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Return the model in mixed precision, and how many operators run in half."""
        lowering = _Lowering(model.graph, self.dtype, products_only=self.products_only)
        return rebuild(model, lowering.rewrite), lowering.count


class _Lowering:
    """One walk over a graph: which values are in half by now, and the casts already made."""

    def __init__(self, graph: ir.Graph, dtype: ir.DataType, *, products_only: bool) -> None:
        self.dtype, self.count, self._products_only = dtype, 0, products_only
        self._trained = reached_from(graph, by_role(graph, Role.PARAMETER))
        self._outputs = set(graph.outputs)
        self._both: set[ir.Value] = set()
        """Outputs of the graph, float32, that were computed in half."""
        self._half: dict[ir.Value, ir.Value] = {}
        self._full: dict[ir.Value, ir.Value] = {}

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Make a node again with its operands in the precision that it is to run in."""
        if record_of(node).precision is Precision.OWN:
            return None
        lowered = self._lowered(node, inputs)
        if lowered:
            attends = (node.domain, node.op_type) == (DOMAIN, "Attention")
            if attends and len(inputs) > 3 and inputs[3] is not None:
                inputs[3] = self._bounded(op, inputs[3])
            inputs = [self._as_half(op, v) if i in lowered else v for i, v in enumerate(inputs)]
            self.count += 1
        else:
            inputs = [self._restored(op, old, new) for old, new in zip(node.inputs, inputs, strict=True)]
        copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
        copy.metadata_props.update(node.metadata_props)
        results = op.add(copy, [v.name for v in node.outputs])
        outputs: list[ir.Value | None] = list(results) if isinstance(results, tuple) else [results]
        return [self._kept(op, old, new) for old, new in zip(node.outputs, outputs, strict=True)]

    def _lowered(self, node: ir.Node, inputs: list[ir.Value | None]) -> list[int]:
        """The operands to hand over in half precision; none if the node runs in float32."""
        record = record_of(node)
        precision = record.precision
        if not _bears(node.domain, node.op_type, self.dtype):
            return []
        floats = [i for i, v in enumerate(node.inputs) if v is not None and v.dtype == ir.DataType.FLOAT]
        if precision is Precision.SCALED:
            # Its gradient is made for an adjoint of one: float16 would lose what the loss is scaled up to keep.
            return floats if self.dtype == ir.DataType.BFLOAT16 and self._all_float32(node) else []
        if precision is Precision.HALF:
            trained = any(node.inputs[i] in self._trained for i in floats)
            return floats if trained and self._all_float32(node) else []
        if self._products_only or precision is not Precision.FOLLOWS or not self._all_float32(node):
            return []
        floats = [i for i in floats if i not in record.settings]
        scalars = [i for i in floats if self._follows(inputs[i])]
        leading = [i for i in floats if i not in scalars]
        if not leading or not all(self._is_half(inputs[i]) for i in leading):
            return []
        return floats

    def _all_float32(self, node: ir.Node) -> bool:
        """Whether no float operand is of a dtype that the user chose otherwise."""
        dtypes = {v.dtype for v in node.inputs if v is not None and v.dtype is not None and v.dtype.is_floating_point()}
        return dtypes == {ir.DataType.FLOAT}

    def _is_half(self, value: ir.Value | None) -> bool:
        return value is not None and (value.dtype == self.dtype or value in self._both)

    def _follows(self, value: ir.Value | None) -> bool:
        """Whether an operand is a single constant that half precision can hold, or zeros and ones."""
        if value is None:
            return False
        if _is_truth(value):
            return True
        if value.const_value is None or value.const_value.size != 1:
            return False
        number = abs(float(value.const_value.numpy().reshape(-1)[0]))
        return not number < np.inf or number <= _LARGEST[self.dtype]

    def _as_half(self, op: Builder, value: ir.Value | None) -> ir.Value | None:
        if value is None or value.dtype == self.dtype:
            return value
        if value not in self._half:
            self._half[value] = self._reshaped(op, value) or op.Cast(value, to=self.dtype)
        return self._half[value]

    def _reshaped(self, op: Builder, value: ir.Value) -> ir.Value | None:
        """The half of a value that is another one in another shape: of that one's half, which others read, too."""
        maker = value.producer()
        if maker is None or record_of(maker).view is not View.RESHAPED:
            return None
        source, *others = maker.inputs
        inputs = [self._as_half(op, source), *others]
        copy = ir.Node(maker.domain, maker.op_type, inputs, maker.attributes.values(), num_outputs=1)
        copy.metadata_props.update(maker.metadata_props)
        half = op.add(copy)
        assert isinstance(half, ir.Value)
        return half

    def _bounded(self, op: Builder, mask: ir.Value) -> ir.Value:
        """A mask that stays finite in half: float32's lowest number stands where a row may be masked whole."""
        bounded: ir.Value = mask if self._is_half(mask) else op.Max(mask, -_LARGEST[self.dtype])
        return bounded

    def _restored(self, op: Builder, old: ir.Value | None, new: ir.Value | None) -> ir.Value | None:
        """The operand in the dtype that it had before."""
        if old is None or new is None or new.dtype == old.dtype or old.dtype is None:
            return new
        if new not in self._full:
            self._full[new] = op.Cast(new, to=old.dtype)
        return self._full[new]

    def _kept(self, op: Builder, old: ir.Value, new: ir.Value | None) -> ir.Value | None:
        """An output of the graph keeps its dtype; those who read it in half still find it so."""
        if old not in self._outputs or new is None:
            return new
        restored = self._restored(op, old, new)
        assert restored is not None
        if restored is not new:
            self._half[restored] = new
            self._both.add(restored)
        return restored
