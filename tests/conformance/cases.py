"""The cases of onnx's own backend suite, as the installed onnx makes them: a model, feeds, and the results expected."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

__all__ = ["KINDS", "Case", "cases"]

KINDS = ("node", "real", "simple", "pytorch-converted", "pytorch-operator")
_DATA = Path(onnx.__file__).parent
DataSet = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class Case:
    """One case of the suite.

    Attributes:
        name: onnx's name for it, such as "test_relu".
        kind: one of `KINDS`.
        operators: names of the main graph's operators.
        load: makes the model and the pairs of feeds, by position, and expected results.
    """

    name: str
    kind: str
    operators: tuple[str, ...]
    rtol: float
    atol: float
    load: Callable[[], tuple[onnx.ModelProto, list[DataSet]]]


@functools.cache
def cases() -> dict[str, Case]:
    """Return all cases by name, in a fixed order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflows and infinities are what some cases are about
        tests = [(kind, test) for kind in KINDS for test in load_model_tests(kind=kind)]
    return {test.name: _case(kind, test) for kind, test in sorted(tests, key=lambda pair: (pair[0], pair[1].name))}


def _case(kind: str, test: Any) -> Case:
    if test.model is not None:
        load: Callable[[], Any] = functools.partial(_made, test.model, test.data_sets)
        operators = _operators(test.model)
    elif kind == "real":
        path = _DATA.parent / test.url
        load, operators = functools.partial(_light, path), (f"{test.model_name} (whole)",)
    else:
        folder = Path(test.model_dir)
        load = functools.partial(_stored, folder)
        operators = _operators(onnx.load(folder / "model.onnx"))
    return Case(test.name, kind, operators, test.rtol, test.atol, load)


def _operators(model: onnx.ModelProto) -> tuple[str, ...]:
    return tuple(sorted({f"{node.domain}.{node.op_type}".removeprefix(".") for node in model.graph.node}))


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in values]


def _made(model: onnx.ModelProto, data_sets: Sequence[DataSet]) -> tuple[onnx.ModelProto, list[DataSet]]:
    return model, [(_arrays(feeds), _arrays(results)) for feeds, results in data_sets]


def _light(path: Path) -> tuple[onnx.ModelProto, list[DataSet]]:
    """A classic with weights that are computed, and the result that lies beside it, for the feed that onnx makes."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = [Runner.generate_dummy_data(value) for value in model.graph.input if value.name not in weights]
    result = onnx.TensorProto.FromString(Path(f"{path.with_suffix('')}_output_0.pb").read_bytes())
    return model, [(feeds, [numpy_helper.to_array(result)])]


def _stored(folder: Path) -> tuple[onnx.ModelProto, list[DataSet]]:
    model = onnx.load(folder / "model.onnx")
    sets = [
        (
            list(_read(data, "input", [value.type for value in model.graph.input])),
            list(_read(data, "output", [value.type for value in model.graph.output])),
        )
        for data in sorted(folder.glob("test_data_set*"))
    ]
    return model, sets


def _read(folder: Path, what: str, types: Sequence[onnx.TypeProto]) -> Iterator[Any]:
    for number, kind in enumerate(types):
        path = folder / f"{what}_{number}.pb"
        if not path.exists():
            return
        content = path.read_bytes()
        if kind.HasField("sequence_type"):
            yield numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        elif kind.HasField("optional_type"):
            yield numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        else:
            yield np.asarray(numpy_helper.to_array(onnx.TensorProto.FromString(content)))
