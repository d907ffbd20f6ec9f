"""What session options put into a file: sizes, weights, and the places of its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.errors import OptionError, nearest
from ontrain.files import read_proto
from ontrain.inference.options import EXTERNAL_FOLDER, SessionOptions, config_entry
from ontrain.inference.ort_format import as_onnx, is_ort_format
from ontrain.inference.shared_values import array_of
from ontrain.inference.upstream_errors import also, upstream

__all__ = ["read_model"]


def read_model(source: str | bytes, options: Any) -> onnx.ModelProto:
    """Return a file's message with its data and with what the options put in.

    Args:
        source: a path, or the file's bytes; also of onnxruntime's own format.
        options: `ontrain.SessionOptions`, or onnxruntime's.

    Raises:
        OptionError: the options' sizes or weights do not fit the file.
    """
    is_ours = isinstance(options, SessionOptions)
    if is_ort_format(source):
        source = as_onnx(source, options.custom_libraries if is_ours else ())
    folder = config_entry(options, EXTERNAL_FOLDER) or (os.getcwd() if isinstance(source, bytes) else None)
    proto, _ = read_proto(
        source, folder=folder,
        brought=options.initializers if is_ours else (), contents=options.external_files if is_ours else None,
        leaves=options is None or not options.optimized_model_filepath,
    )  # fmt: skip
    return _with_options(proto, options)


def _with_options(proto: onnx.ModelProto, options: Any) -> onnx.ModelProto:
    """The model with sizes and weights that the options put in."""
    if not isinstance(options, SessionOptions):
        return proto
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            named, denoted = options.free_dimensions.get(dim.dim_param), options.denoted_dimensions
            stated = dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            sizes = [size for size in (stated, named, denoted.get(dim.denotation.lower())) if size is not None]
            if len(set(sizes)) > 1:
                error = OptionError(
                    f"a dimension of input {value.name!r} is to be {' and '.join(map(str, sizes))}",
                    reason="the file and the overrides by name and by denotation differ", way_out="leave one of them",
                )  # fmt: skip
                raise also(error, upstream("InvalidArgument"))
            if sizes:
                dim.dim_value = sizes[0]
    there = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in options.external_initializers:
        _check_external(name, there, options.initializers[name])
    for name, tensor in there.items():
        if name in options.initializers:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array_of(options.initializers[name]), name))
    return proto


def _check_external(name: str, there: Mapping[str, onnx.TensorProto], value: Any) -> None:
    """Refuse a value for an initializer that the model does not have like this, as onnxruntime does."""
    tensor = there.get(name)
    if tensor is None:
        problem, reason = f"the model has no initializer {name!r}", None
        way_out = f"nearest: {nearest(name, there)}"
    elif (tensor.data_type, list(tensor.dims)) != (value.element_type(), list(value.shape())):
        problem = f"initializer {name!r} is {ir.DataType(tensor.data_type)} {list(tensor.dims)}"
        reason = f"its value is {ir.DataType(value.element_type())} {list(value.shape())}"
        way_out = "give a value of this type and shape, or replace it by add_initializer"
    else:
        return
    error = OptionError(f"add_external_initializers: {problem}", reason=reason, way_out=way_out)
    raise also(error, upstream("Fail"))
