"""Operators below opset 10 that the package onnx has forgotten, and onnxruntime still runs.

Source: the schemas and kernels of onnxruntime 1.32, and the changelog of the ONNX operators.
"""

from __future__ import annotations

from functools import cache

import onnx
from onnx.defs import OpSchema

__all__ = ["experimental_schema"]

_FLOAT, _FLOATS, _INTS = (OpSchema.AttrType[name] for name in ("FLOAT", "FLOATS", "INTS"))
_ONE, _ZERO = (onnx.helper.make_attribute("", number) for number in (1.0, 0.0))
_NO, _YES = (onnx.helper.make_attribute("", number) for number in (0, 1))
_Attribute = OpSchema.Attribute


@cache
def experimental_schema(op_type: str, version: int) -> OpSchema | None:
    """Return the schema of an operator that the standard had as an experiment, or with other attributes, at `version`.

    None if onnxruntime has no such operator there.
    """
    ends, schema = _SCHEMAS.get(op_type, (0, None))
    return schema if version < ends else None


def _schema(name: str, *attributes: OpSchema.Attribute, operands: int = 1, optional: int = 0) -> OpSchema:
    single, absent = OpSchema.FormalParameterOption.Single, OpSchema.FormalParameterOption.Optional
    inputs = [
        OpSchema.FormalParameter(f"input{i}", "T" if not i else "tensor(int64)", param_option=option)
        for i, option in enumerate([single] * operands + [absent] * optional)
    ]
    outputs = [OpSchema.FormalParameter("output", "T")]
    floats = ["tensor(float16)", "tensor(float)", "tensor(double)"]
    return OpSchema(
        name, "", 1, inputs=inputs, outputs=outputs, type_constraints=[("T", floats, "")], attributes=attributes
    )


_SCHEMAS = {
    schema.name: (ends, schema)
    for ends, schema in (
        (10, _schema("Affine", _Attribute("alpha", _ONE), _Attribute("beta", _ZERO))),
        (10, _schema("Crop", _Attribute("border", _INTS, required=True), _Attribute("scale", _INTS, required=False))),
        (10, _schema("DynamicSlice", operands=3, optional=1)),
        (10, _schema("ImageScaler", _Attribute("scale", _ONE), _Attribute("bias", _FLOATS, required=True))),
        (9, _schema("MeanVarianceNormalization", _Attribute("across_channels", _NO),
                    _Attribute("normalize_variance", _YES))),
        (10, _schema("ParametricSoftplus", _Attribute("alpha", _FLOAT, required=True),
                     _Attribute("beta", _FLOAT, required=True))),
        (10, _schema("Scale", _Attribute("scale", _ONE))),
        (10, _schema("ScaledTanh", _Attribute("alpha", _FLOAT, required=True),
                     _Attribute("beta", _FLOAT, required=True))),
        (10, _schema("ThresholdedRelu", _Attribute("alpha", _ONE))),
    )
}  # fmt: skip
"""By name the opset in which the operator went or got its form of today, and what it was before."""
