"""Operators of the standard's domain that the package onnx does not know, and onnxruntime runs.

Most are experiments below opset 10. One is onnxruntime's own, which its optimisers write into files of every opset.

Source: the schemas and kernels of onnxruntime 1.32, and the changelog of the ONNX operators.
"""

from __future__ import annotations

from functools import cache

from onnx.defs import OpSchema

__all__ = ["experimental_schema"]

_Kind = OpSchema.AttrType


def _attribute(name: str, kind: OpSchema.AttrType, *, required: bool = False) -> OpSchema.Attribute:
    return OpSchema.Attribute(name, kind, required=required)


@cache
def experimental_schema(op_type: str, version: int) -> OpSchema | None:
    """Return the schema of an operator that onnxruntime has in the standard's domain at `version`, and onnx has not.

    The standard had it as an experiment, or with other attributes, or never. None if onnxruntime has no such operator
    there.
    """
    if op_type == _SIMPLIFIED.name:
        return _SIMPLIFIED
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


def _simplified() -> OpSchema:
    """RMSNormalization, before the standard had it."""
    floats = ["tensor(float16)", "tensor(bfloat16)", "tensor(float)", "tensor(double)"]
    inverse = OpSchema.FormalParameter("inv_std_var", "U", param_option=OpSchema.FormalParameterOption.Optional)
    return OpSchema(
        "SimplifiedLayerNormalization",
        "",
        1,
        inputs=[OpSchema.FormalParameter("X", "T"), OpSchema.FormalParameter("scale", "V")],
        outputs=[OpSchema.FormalParameter("Y", "V"), inverse],
        type_constraints=[(name, floats, "") for name in "TUV"],
        attributes=[
            _attribute("axis", _Kind.INT), _attribute("epsilon", _Kind.FLOAT), _attribute("stash_type", _Kind.INT)
        ],
    )  # fmt: skip


_SIMPLIFIED = _simplified()
_ALPHA, _BETA = (_attribute(name, _Kind.FLOAT) for name in ("alpha", "beta"))
_STATED = [_attribute(name, _Kind.FLOAT, required=True) for name in ("alpha", "beta")]
_FACTOR = _attribute("scale", _Kind.FLOAT)
_SCHEMAS = {
    schema.name: (ends, schema)
    for ends, schema in (
        (10, _schema("Affine", _ALPHA, _BETA)),
        (10, _schema("Crop", _attribute("border", _Kind.INTS, required=True), _attribute("scale", _Kind.INTS))),
        (10, _schema("DynamicSlice", operands=3, optional=1)),
        (10, _schema("ImageScaler", _FACTOR, _attribute("bias", _Kind.FLOATS, required=True))),
        (9, _schema("MeanVarianceNormalization", _attribute("across_channels", _Kind.INT),
                    _attribute("normalize_variance", _Kind.INT))),
        (10, _schema("ParametricSoftplus", *_STATED)),
        (10, _schema("Scale", _FACTOR)),
        (10, _schema("ScaledTanh", *_STATED)),
        (10, _schema("ThresholdedRelu", _ALPHA)),
    )
}  # fmt: skip
"""By name the opset in which the operator went or got its form of today, and what it was before."""
