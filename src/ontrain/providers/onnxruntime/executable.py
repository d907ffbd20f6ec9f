"""One onnxruntime session whose resident inputs and outputs are bound to the state."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ontrain.errors import ProviderError
from ontrain.files import TRAPS, guard, sprung
from ontrain.graph import Role, nbytes, role_of, static_dims, updates_of
from ontrain.providers import base
from ontrain.providers.base import NodeTime, OperatorTime, as_array
from ontrain.providers.onnxruntime.random import mix
from ontrain.providers.onnxruntime.state import OrtState
from ontrain.stock import stock
from ontrain.stock_values import ort_value

if TYPE_CHECKING:
    import onnxruntime
else:
    onnxruntime = stock()

__all__ = ["OrtExecutable"]

Array = npt.NDArray[np.generic]


class OrtExecutable:
    """Runs a prepared graph.

    Args:
        model: plain operators of concrete shapes, see `prepare`.
        state: where resident inputs lie; what the graph updates gets its second copy here.
        options: `onnxruntime.SessionOptions`.
    """

    def __init__(self, model: ir.Model, state: OrtState, options: onnxruntime.SessionOptions) -> None:
        self._state, self._planned = state, _peak_bytes(model.graph)
        self._resident: list[str] = []
        self._fed: dict[str, np.dtype[np.generic]] = {}
        self._key: str | None = None
        for value in model.graph.inputs:
            assert value.name is not None and value.dtype is not None
            if role_of(value).resident:
                self._resident.append(value.name)
            elif role_of(value) is Role.RNG:
                self._key = value.name
            else:
                self._fed[value.name] = value.dtype.numpy()
        self._updates: dict[str, str] = {}
        self._outputs: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {}
        for value in model.graph.outputs:
            assert value.name is not None and value.dtype is not None
            target = updates_of(value)
            if target is None:
                self._outputs[value.name] = (static_dims(value), value.dtype.numpy())
            else:
                self._updates[value.name] = target
        state.reserve(self._updates.values())
        self._proto = ir.to_proto(model).SerializeToString()
        self._session = _session(self._proto, options)
        self._options = options

    @property
    def planned_bytes(self) -> int:
        """An estimate: what is alive at once if the nodes run in the graph's order and no memory is shared.

        onnxruntime does not say what its arena holds. Fusions need less than this, fragmentation and the
        rearranged weights of products more.
        """
        return self._planned

    def run(
        self, feeds: Mapping[str, base.Array], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Array]:
        """Run once; see `ontrain.providers.Executable.run`."""
        outputs = self._run(self._session, feeds, rng)
        if guard is None or bool(outputs[guard]):
            self._state.swap(self._updates.values())
        return outputs

    def profile(self, feeds: Mapping[str, base.Array], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once under onnxruntime's profiler, in a session made for it; the state stays as it is.

        Operators have onnxruntime's names after fusion.
        """
        with tempfile.TemporaryDirectory() as folder:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._options.intra_op_num_threads
            options.graph_optimization_level = self._options.graph_optimization_level
            options.log_severity_level = self._options.log_severity_level
            options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "run")
            session = _session(self._proto, options)
            self._run(session, feeds, rng)
            events = json.loads(Path(session.end_profiling()).read_text())
        spent: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                spent[event["args"]["op_name"]] += event["dur"] / 1e3
                calls[event["args"]["op_name"]] += 1
        return [OperatorTime(name, calls[name], ms) for name, ms in sorted(spent.items(), key=lambda item: -item[1])]

    def trace(
        self, feeds: Mapping[str, base.Array], *, rng: tuple[int, int] = (0, 0)
    ) -> tuple[dict[str, Array], list[NodeTime]]:
        """Run once; calls are not told apart."""
        return self.run(feeds, rng=rng), []

    def _run(
        self, session: onnxruntime.InferenceSession, feeds: Mapping[str, base.Array], rng: tuple[int, int]
    ) -> dict[str, Array]:
        """Run the session; updates lie in the state's second copies afterwards."""
        binding = session.io_binding()
        # np.asarray, for a numpy scalar is refused and np.ascontiguousarray makes vectors of scalars.
        arrays = {name: np.asarray(as_array(feeds[name]), dtype, order="C") for name, dtype in self._fed.items()}
        if self._key is not None:
            arrays[self._key] = np.array([mix(*rng)], np.uint64)
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, ort_value(array))
        for name in self._resident:
            binding.bind_ortvalue_input(name, self._state.present(name))
        outputs = {name: np.empty(shape, dtype) for name, (shape, dtype) in self._outputs.items()}
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, ort_value(array))
        for name, target in self._updates.items():
            binding.bind_ortvalue_output(name, self._state.next(target))
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise sprung(str(error)) or ProviderError(
                "onnxruntime could not run the graph", reason=str(error)
            ) from error
        return outputs


def _session(model: bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    if any(name in model for name in TRAPS):
        proto = onnx.ModelProto.FromString(model)
        model = proto.SerializeToString() if guard(proto, shapes_hold=True) else model
    try:
        return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise sprung(str(error)) or ProviderError("onnxruntime could not load the graph", reason=str(error)) from error


def _peak_bytes(graph: ir.Graph) -> int:
    last = {v: i for i, node in enumerate(graph) for v in node.inputs if v is not None}
    alive = peak = 0
    for i, node in enumerate(graph):
        alive += sum(_nbytes(v) for v in node.outputs)
        peak = max(peak, alive)
        dead = {v for v in (*node.inputs, *node.outputs) if v is not None and v.producer() is not None}
        alive -= sum(_nbytes(v) for v in dead if last.get(v, -1) <= i and not v.is_graph_output())
    return peak


def _nbytes(value: ir.Value) -> int:
    return nbytes(value) or 0
