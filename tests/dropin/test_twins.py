"""The same lines with onnxruntime and with ontrain: what onnxruntime gives or raises is the oracle."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from tests.dropin.models import WEIGHT, write
from tests.dropin.twins import compare

X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
OTHER = np.array([[0.5, 0.0], [1.0, -1.0]], np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models"))


def described(values):
    return [(value.name, value.type, value.shape) for value in values]


def profiled(t):
    options = t.m.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(t.scratch / "trace")
    session = t(options=options)
    session.run(None, {"x": X})
    file = Path(session.end_profiling())
    events = json.loads(file.read_text())
    keys = {"pid", "dur", "ts", "ph", "name", "args"}
    names = {event["name"] for event in events}
    needed = {"model_run", "session_initialization"}
    return file.name.startswith("trace"), all(keys <= set(event) for event in events), needed <= names


def times_ascend(t):
    def start():
        options = t.m.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(t.scratch / "trace")
        session = t(options=options)
        session.end_profiling()
        return session.get_profiling_start_time_ns()

    first, second, third = start(), start(), start()
    return first <= second <= third, isinstance(first, int)


def together(t):
    """Two threads on one session, each with run options of its own."""
    session, results = t(), {}

    def work(name, x):
        options = t.m.RunOptions()
        options.logid = name
        results[name] = [session.run(None, {"x": x}, options)[0] for _ in range(5)]

    threads = [threading.Thread(target=work, args=pair) for pair in (("a", X), ("b", OTHER))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results["a"], results["b"]


def asynchronous(t):
    done, told = threading.Event(), []

    def callback(results, user_data, error):
        told.extend([results[0], user_data, error])
        done.set()

    t().run_async(None, {"x": X}, callback, {"mine": 3})
    return done.wait(60), told


def bound(t):
    session = t()
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    first = binding.copy_outputs_to_cpu()
    values = binding.get_outputs()
    binding.clear_binding_inputs()
    binding.bind_ortvalue_input("x", t.m.OrtValue.ortvalue_from_numpy(OTHER))
    binding.synchronize_inputs()
    session.run_with_iobinding(binding, t.m.RunOptions())
    binding.synchronize_outputs()
    return first, [value.shape() for value in values], values[0].data_type(), binding.get_outputs()[0].numpy()


def bound_to_memory(t):
    session, out = t(), np.zeros((2, 2), np.float32)
    value = t.m.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.float32))
    binding, x = session.io_binding(), X.copy()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)
    first = out.copy()
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("y", value)
    x[:] = OTHER  # bound memory is read at the run
    session.run_with_iobinding(binding)
    return first, value.numpy().copy()  # the array may share memory that goes with the value


def directly(t):
    session = t()
    binding = t.m.IOBinding(session)
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu", 0)
    session.run_with_iobinding(iobinding=binding)
    return (
        isinstance(binding, t.m.IOBinding),
        isinstance(session.io_binding(), t.m.IOBinding),
        binding.copy_outputs_to_cpu(),
    )


def refusing(t, **kwargs):
    """onnxruntime goes on with other providers otherwise."""
    return t(enable_fallback=0, **kwargs)


def unbound(t):
    binding = t().io_binding()
    binding.bind_cpu_input("nothing", X)


def with_values(t):
    session = t()
    (value,) = session.run_with_ort_values(["y"], {"x": t.m.OrtValue.ortvalue_from_numpy(X)})
    (again,) = session.run_with_ort_values(None, {"x": t.m.OrtValue.ortvalue_from_numpy(X)}, t.m.RunOptions())
    return value.numpy(), value.data_type(), value.is_tensor(), value.device_name(), again.shape()


def sparse_value(module):
    places, cpu = np.array([0, 3], np.int64), module.OrtDevice.make("cpu", 0)
    shape, numbers = np.array([2, 2], np.int64), np.ones(2, np.float32)
    tensor = module.SparseTensor.sparse_coo_from_numpy(shape, numbers, places, cpu)
    return module.OrtValue.ort_value_from_sparse_tensor(tensor)


def terminated(t):
    options = t.m.RunOptions()
    options.terminate = True
    t.run("scaled", {"x": X}, None, options)


def terminated_meanwhile(t):
    options, session = t.m.RunOptions(), t("rounds")
    session.run(None, {"n": np.array(2), "x": X})
    timer = threading.Timer(0.1, lambda: setattr(options, "terminate", True))
    timer.start()
    try:
        # Minutes, unless it is stopped.
        session.run(None, {"n": np.array(99_000), "x": np.ones((1000, 1000), np.float32)}, options)
    finally:
        timer.join()


def told_by_a_call(t, names, feeds):
    """What is told of a run that cannot be made."""
    told, done = [], threading.Event()

    def callback(results, user_data, error):
        told.append((results, user_data, bool(error)))
        done.set()

    t().run_async(names, feeds, callback, "mine")
    assert done.wait(60)
    return told


def frozen(*sizes):
    """The sizes of an input after overrides, each by a kind of name, the name and a size."""

    def probe(t):
        options = t.m.SessionOptions()
        for kind, name, size in sizes:
            getattr(options, f"add_free_dimension_override_by_{kind}")(name, size)
        return t("denoted", options).get_inputs()[0].shape

    return probe


def with_entry(key, value):
    """A run with an entry in its options."""

    def probe(t):
        options = t.m.RunOptions()
        options.add_run_config_entry(key, value)
        return t.run("scaled", {"x": X}, options=options)

    return probe


def written(path="", **entries):
    """The names and data of initializers in the optimised file, and the files beside it."""

    def probe(t):
        options = t.m.SessionOptions()
        options.graph_optimization_level = t.m.GraphOptimizationLevel.ORT_ENABLE_BASIC
        folder = t.scratch / t.m.__name__
        folder.mkdir()
        if path:
            options.optimized_model_filepath = str(folder / path)
        for key, value in entries.items():
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
        results = t("scaled", options).run(None, {"x": X})
        graph = onnx.load(folder / path, load_external_data=False).graph if path else None
        tensors = [] if graph is None else [(tensor.name, tensor.data_location) for tensor in graph.initializer]
        return results, tensors, sorted(file.name for file in folder.iterdir())

    return probe


def replaced(t):
    options, weight = t.m.SessionOptions(), t.m.OrtValue.ortvalue_from_numpy(WEIGHT * 2)
    options.add_initializer("w", weight)
    return t("scaled", options).run(None, {"x": X})


def retyped(t):
    options, weight = t.m.SessionOptions(), t.m.OrtValue.ortvalue_from_numpy(WEIGHT.astype(np.float64))
    options.add_initializer("w", weight)
    return t("scaled", options).run(None, {"x": X})


def external(t):
    options, weight = t.m.SessionOptions(), t.m.OrtValue.ortvalue_from_numpy(WEIGHT * 3)
    options.add_external_initializers(["w"], [weight])
    return t("outside", options).run(None, {"x": X})


def entries(t):
    options = t.m.SessionOptions()
    options.add_session_config_entry("session.some_key", "1")
    return options.get_session_config_entry("session.some_key")


def defaults(t):
    options = t.m.SessionOptions()
    names = (
        "optimized_model_filepath intra_op_num_threads inter_op_num_threads enable_profiling profile_file_prefix "
        "log_severity_level log_verbosity_level logid use_deterministic_compute enable_cpu_mem_arena enable_mem_pattern"
    )
    levels = [str(options.graph_optimization_level), str(options.execution_mode), str(options.execution_order)]
    return [getattr(options, name) for name in names.split()], levels


def run_entries(t):
    options = t.m.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options.get_run_config_entry("memory.enable_memory_arena_shrinkage"), t.run(
        "scaled", {"x": X}, None, options
    )


def moved(t):
    session = t()
    first = session.run(None, {"x": X})
    session.set_providers(["CPUExecutionProvider"])
    return first, session.run(None, {"x": X}), session.get_providers()


def meta(t):
    told = t().get_modelmeta()
    names = "producer_name graph_name domain description graph_description version custom_metadata_map"
    return [getattr(told, name) for name in names.split()]


def memory(t):
    session = t()
    infos = [*session.get_input_memory_infos(), *session.get_output_memory_infos()]
    return [(info.name, info.device_id) for info in infos]


def settled(t):
    session = t()
    session.disable_fallback()
    session.enable_fallback()
    value = session.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu")
    return session.get_tuning_results() == [], value.shape(), session.get_overridable_initializers()


def assigned(t):
    options = t.m.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.graph_optimization_level = t.m.GraphOptimizationLevel.ORT_DISABLE_ALL
    regions = t(options=options).get_provider_graph_assignment_info()
    return [(node.name, node.op_type, node.domain) for region in regions for node in region.get_nodes()]


EVERYWHERE = {
    "path": lambda t: t.run("scaled", {"x": X}),
    "path object": lambda t: t.m.InferenceSession(Path(t.path("scaled")), providers=t.providers).run(None, {"x": X}),
    "bytes": lambda t: t.m.InferenceSession(t.bytes("scaled"), providers=t.providers).run([], {"x": X}),
    "names of outputs": lambda t: t.run("scaled", {"x": X}, ["y"]),
    "no outputs": lambda t: t.run("scaled", {"x": X}, []),
    "keywords": lambda t: t().run(output_names=None, input_feed={"x": X}, run_options=None),
    "list": lambda t: t.run("scaled", {"x": [[1.0, 2.0]]}),
    "list of whole numbers": lambda t: t.run("scaled", {"x": [[1, 2]]}),
    "list for integers": lambda t: t.run("integers", {"x": [1, 2, 3]}),
    "strided": lambda t: t.run("scaled", {"x": np.asfortranarray(X)[::-1]}),
    "booleans": lambda t: t.run("booleans", {"x": np.array([True, False])}),
    "doubles": lambda t: t.run("doubles", {"x": np.array([0.1, 2])}),
    "order of inputs": lambda t: described(t("two_inputs").get_inputs()),
    "inputs and outputs": lambda t: (described(t().get_inputs()), described(t().get_outputs())),
    "overridable": lambda t: described(t("overridable").get_overridable_initializers()),
    "overridden": lambda t: t.run("overridable", {"x": X, "w": WEIGHT * 2}),
    "not overridden": lambda t: t.run("overridable", {"x": X}),
    "outside": lambda t: t.run("outside", {"x": X}),
    "meta": meta,
    "OrtValue": lambda t: t.run("scaled", {"x": t.m.OrtValue.ortvalue_from_numpy(X)}),
    "threads": together,
    "asynchronous": asynchronous,
    "bound": bound,
    "bound to memory": bound_to_memory,
    "binding made by its class": directly,
    "binding of an unknown name": unbound,
    "OrtValues": with_values,
    "terminated": terminated,
    "unknown output of a call": lambda t: told_by_a_call(t, ["nothing"], {"x": X}),
    "unfit feed of a call": lambda t: told_by_a_call(t, ["y"], {"x": X[0]}),
    "missing feed of a call": lambda t: told_by_a_call(t, ["y"], {}),
    "two sizes of one name": lambda t: [
        t.run("two_inputs", {"a": [True, False, True][:a], "b": [True, True, False][:b]}) for a, b in [(2, 1), (2, 2)]
    ],
    "two sizes of one name that do not fit": lambda t: t.run("two_inputs", {"a": [True, False, True], "b": [True] * 2}),
    "misspelled setting": lambda t: setattr(t.m.SessionOptions(), "intra_op_num_thread", 1),
    "misspelled setting of a run": lambda t: setattr(t.m.RunOptions(), "terminated", True),
    "sparse value": lambda t: t().run_with_ort_values(None, {"x": sparse_value(t.m)}),
    "what is no value for a call": lambda t: told_by_a_call(t, ["y"], {"x": "text"}),
    "dimension by name": frozen(("name", "named", 4)),
    "dimension by two sizes": frozen(("name", "named", 4), ("name", "named", 5)),
    "dimension by denotation": frozen(("denotation", "DATA_BATCH", 4)),
    "dimension by denotation in another case": frozen(("denotation", "data_Batch", 4)),
    "dimension by two denotations": frozen(("denotation", "DATA_BATCH", 4), ("denotation", "data_batch", 5)),
    "dimension by one size twice": frozen(("name", "other", 4), ("denotation", "DATA_BATCH", 4)),
    "dimension by sizes that differ": frozen(("name", "other", 5), ("denotation", "DATA_BATCH", 4)),
    "entry for arenas": with_entry("memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0"),
    "entry for arenas without a number": with_entry("memory.enable_memory_arena_shrinkage", "cpu"),
    "entry for arenas of no device": with_entry("memory.enable_memory_arena_shrinkage", "disk:0"),
    "entry for arenas of no number": with_entry("memory.enable_memory_arena_shrinkage", "cpu:first"),
    "unknown entry of a run": with_entry("nothing", "1"),
    "weights beside the optimised file": written("a.onnx", file_name="a.bin", min_size_in_bytes="0"),
    "small weights in the optimised file": written("a.onnx", file_name="a.bin", min_size_in_bytes="4000"),
    "weights in a folder that is not there": written("a.onnx", file_name="b/a.bin", min_size_in_bytes="0"),
    "weights of so many bytes as nobody can read": written("a.onnx", file_name="a.bin", min_size_in_bytes="few"),
    "so many bytes that nobody reads": written(min_size_in_bytes="few"),
    "initializer put in": replaced,
    "initializer of another type put in": retyped,
    "external initializer put in": external,
    "profile": profiled,
    "profiling starts": times_ascend,
    "run options": run_entries,
    "other providers": moved,
    "memory": memory,
    "settled": settled,
    "assigned": assigned,
    "no such file": lambda t: t("nothing"),
    "no model": lambda t: t.m.InferenceSession(b"nonsense", providers=t.providers),
    "a function that calls itself": lambda t: t("circular"),
    "wrong kind of model": lambda t: t.m.InferenceSession(3, providers=t.providers),
    "missing input": lambda t: t.run("scaled", {}),
    "unknown input": lambda t: t.run("scaled", {"x": X, "z": X}),
    "unknown output": lambda t: t.run("scaled", {"x": X}, ["z"]),
    "wrong rank": lambda t: t.run("scaled", {"x": X[0]}),
    "wrong size": lambda t: t.run("scaled", {"x": X[:, :1]}),
    "wrong dtype": lambda t: t.run("scaled", {"x": X.astype(np.float64)}),
    "unknown provider set": lambda t: t().set_providers(["InvalidProvider"]),
    "both forms of options": lambda t: refusing(t, providers=[("CPUExecutionProvider", {})], provider_options=[{}]),
    "too few options": lambda t: refusing(t, provider_options=[]),
    "no provider": lambda t: refusing(t, providers=[3, "CPUExecutionProvider"]),
}  # fmt: skip
"""Probes that every provider answers as onnxruntime's does."""

STOCK = {
    "terminated meanwhile": terminated_meanwhile,
    "half": lambda t: t.run("half", {"x": t.m.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.array([1.5, -2], ml_dtypes.bfloat16).view(np.int16), onnx.TensorProto.BFLOAT16)}),
    "strings": lambda t: t.run("strings", {"x": ["a", "bc"]}),
    "string array": lambda t: t.run("strings", {"x": np.array(["a", "bc"])}),
    "objects": lambda t: t.run("strings", {"x": np.array(["a", "bc"], object)}),
    "numbers as strings": lambda t: t.run("strings", {"x": np.array(["a", 1, None, 2.5], object)}),
    "list of numbers as strings": lambda t: t.run("strings", {"x": [1, 2]}),
    "empty list of strings": lambda t: t.run("strings", {"x": []}),
    "strings of another rank": lambda t: t.run("strings", {"x": np.array([["a"]], object)}),
    "optional": lambda t: [t.run("optional", feeds) for feeds in ({"x": X[0]}, {"x": None}, {})],
    "optional of another type": lambda t: t.run("optional", {"x": X[0].astype(np.float64)}),
    "void": lambda t: t.run("strings", {"x": np.array([b"must", b"have"], np.void)}),
    "sequence": lambda t: t.run("sequence_in", {"x": [X, OTHER]}),
    "ragged sequence": lambda t: t.run("sequence_in", {"x": [X, OTHER[:1]]}),
    "empty sequence": lambda t: t.run("sequence_length", {"x": []}),
    "sequence out": lambda t: t.run("sequence_out", {"a": X[0], "b": X[0, :1]}),
    "map out": lambda t: t.run("zip_map", {"x": X}),
    "map in": lambda t: t.run("of_map", {"x": {1: 2.0, 0: 3.0}}),
    "unknown operator": lambda t: t("unknown_operator"),
    "index out of range": lambda t: t.run("gather", {"i": np.array([7])}),
    "CUDA first": lambda t: t(providers=["CUDAExecutionProvider", "CPUExecutionProvider"]).get_providers(),
    "CUDA with options": lambda t: t(
        providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
    ).run(None, {"x": X}),
    "unknown provider": lambda t: t(providers=["NonsenseProvider"]).get_providers(),
    "twice the same": lambda t: t(providers=["CPUExecutionProvider", "CPUExecutionProvider"]).get_providers(),
    "options of the CPU": lambda t: t(providers=[("CPUExecutionProvider", {"use_arena": 0})]).get_provider_options(),
    "default providers": lambda t: t(providers=None).get_providers(),
    "disabled optimizers": lambda t: t(disabled_optimizers=["ConstantFolding"]).run(None, {"x": X}),
    "all providers": lambda t: t.m.get_all_providers()[-1],
    "first provider": lambda t: t.m.get_available_providers()[0],
    "device": lambda t: (t.m.get_device(), t.m.get_version_string(), "Build Info" in t.m.get_build_info()),
    "loggers": lambda t: (t.m.set_default_logger_severity(3), t.m.set_default_logger_verbosity(0)),
    "seed": lambda t: t.m.set_seed(3),
    "entries": entries,
    "unknown entry": lambda t: t.m.SessionOptions().get_session_config_entry("nothing"),
    "defaults": defaults,
    "options come back": lambda t: type(t().get_session_options()).__name__,
    "copies of values": lambda t: t.m.OrtValue.ortvalue_from_numpy(X).numpy(),
    "shape and type": lambda t: t.m.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64).data_type(),
    "dlpack": lambda t: torch.from_dlpack(t.m.OrtValue.from_dlpack(torch.arange(3))).tolist(),
    "device of values": lambda t: t.m.OrtDevice.make("cpu", 0).device_type(),
    "sparse": lambda t: t.m.SparseTensor.sparse_coo_from_numpy(
        np.array([3, 3], np.int64), np.ones(2, np.float32), np.array([0, 4], np.int64), t.m.OrtDevice.make("cpu", 0)
    ).dense_shape(),
    "backend": lambda t: t.m.backend.prepare(t.path("scaled")).run([X]),
}  # fmt: skip
"""Probes of onnxruntime's providers, and of what belongs to none."""


@pytest.mark.parametrize("name", [*EVERYWHERE, *STOCK])
def test_on_onnxruntimes_provider(name, folder, tmp_path):
    compare({**EVERYWHERE, **STOCK}[name], folder, tmp_path, ["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "provider", ["TorchExecutionProvider", "ReferenceExecutionProvider", "OnnxRuntimeExecutionProvider"]
)
@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.sampled(2)
def test_on_ontrains_providers(name, provider, folder, tmp_path):
    compare(EVERYWHERE[name], folder, tmp_path, [provider])


@pytest.mark.parametrize("name", [*EVERYWHERE, *STOCK])
def test_on_a_list_of_both(name, folder, tmp_path):
    compare({**EVERYWHERE, **STOCK}[name], folder, tmp_path, ["TorchExecutionProvider", "CPUExecutionProvider"])
