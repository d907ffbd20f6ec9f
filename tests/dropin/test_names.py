"""Names and signatures of the installed onnxruntime, looked up there and found in ontrain."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import onnxruntime
import pytest

import ontrain

MUST = {
    "": (
        "InferenceSession SessionOptions RunOptions OrtValue IOBinding SessionIOBinding OrtDevice NodeArg __version__ "
        "ModelMetadata GraphOptimizationLevel ExecutionMode ExecutionOrder get_available_providers get_all_providers "
        "get_device get_version_string get_build_info set_default_logger_severity set_default_logger_verbosity set_seed"
    ),
    "GraphOptimizationLevel": "ORT_DISABLE_ALL ORT_ENABLE_BASIC ORT_ENABLE_EXTENDED ORT_ENABLE_LAYOUT ORT_ENABLE_ALL",
    "ExecutionMode": "ORT_SEQUENTIAL ORT_PARALLEL",
    "ExecutionOrder": "DEFAULT PRIORITY_BASED MEMORY_EFFICIENT",
    "capi.onnxruntime_pybind11_state": (
        "Fail InvalidArgument NoSuchFile InvalidProtobuf InvalidGraph NotImplemented RuntimeException NoModel EPFail"
    ),
    "backend": "is_compatible prepare run supports_device",
    "quantization": (
        "quantize_dynamic quantize_static quantize QuantFormat QuantType CalibrationDataReader CalibrationMethod "
        "QuantizationMode create_calibrator StaticQuantConfig DynamicQuantConfig get_qdq_config"
    ),
    "quantization.shape_inference": "quant_pre_process",
    "quantization.calibrate": "CalibraterBase MinMaxCalibrater TensorData TensorsData",
    "quantization.matmul_nbits_quantizer": "MatMulNBitsQuantizer DefaultWeightOnlyQuantConfig",
    "quantization.qdq_loss_debug": "collect_activations create_activation_matching compute_activation_error",
    "transformers.optimizer": "optimize_model optimize_by_onnxruntime optimize_by_fusion",
    "transformers.fusion_options": "FusionOptions AttentionMaskFormat AttentionOpType",
    "transformers.float16": "convert_float_to_float16",
    "tools.symbolic_shape_infer": "SymbolicShapeInference",
    "tools.onnx_model_utils": "make_dim_param_fixed make_input_shape_fixed fix_output_shapes optimize_model",
}
"""What programs break without."""


def look(package, path):
    """An attribute of a package, or a module below it."""
    member = package
    for name in filter(None, path.split(".")):
        member = getattr(member, name, None) or importlib.import_module(f"{member.__name__}.{name}")
    return member


@pytest.mark.parametrize("path", MUST)
def test_what_programs_need_is_there(path):
    theirs, ours = look(onnxruntime, path), look(ontrain, path)
    wanted = MUST[path].split()
    assert [name for name in wanted if not hasattr(theirs, name)] == [], "the list is of onnxruntime's names"
    assert [name for name in wanted if not hasattr(ours, name)] == []


def test_all_that_onnxruntime_has_is_found():
    names = [name for name in dir(onnxruntime) if not name.startswith("_")]
    assert [name for name in names if not hasattr(ontrain, name)] == []
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = ontrain.nonsense


def test_modules_of_capi_are_attributes_as_onnxruntimes_are():
    names = [name for name in dir(onnxruntime.capi) if not name.startswith("__")]
    text = f"import ontrain\nfor name in {names}: getattr(ontrain.capi, name)\n"
    text += "ontrain.capi.onnxruntime_pybind11_state.Fail"
    subprocess.run([sys.executable, "-c", text], check=True)
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = ontrain.capi.nonsense


@pytest.mark.parametrize("name", ["InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding"])
def test_classes_have_all_members(name):
    theirs, ours = getattr(onnxruntime, name), getattr(ontrain, name)
    assert issubclass(ours, theirs)
    members = [member for member in dir(theirs) if not member.startswith("_")]
    assert len(members) > 7 and [member for member in members if not hasattr(ours, member)] == []


@pytest.mark.parametrize("name", ["InferenceSession", "IOBinding"])
def test_signatures_are_onnxruntimes(name):
    theirs, ours = getattr(onnxruntime, name), getattr(ontrain, name)

    def arguments(kind, member):
        return [
            (argument.name, argument.kind, argument.default)
            for argument in inspect.signature(getattr(kind, member)).parameters.values()
        ]

    members = [name for name, _ in inspect.getmembers(theirs, inspect.isfunction) if not name.startswith("_")]
    for member in [*members, "__init__"]:
        wanted = arguments(theirs, member)
        assert arguments(ours, member)[: len(wanted)] == wanted, member
    from ontrain.inference.binding import OwnBinding

    if name == "IOBinding":
        for member in members:
            assert arguments(OwnBinding, member) == arguments(theirs, member), member


def test_calls_on_ontrains_providers_take_the_same_arguments():
    from ontrain.inference.own_calls import OwnSession

    members = [n for n, _ in inspect.getmembers(OwnSession, inspect.isfunction) if not n.startswith("_")]
    shared = [member for member in members if hasattr(onnxruntime.InferenceSession, member)]
    assert len(shared) > 15
    for member in shared:
        theirs = inspect.signature(getattr(onnxruntime.InferenceSession, member)).parameters
        assert list(inspect.signature(getattr(OwnSession, member)).parameters) == list(theirs), member


def test_every_method_of_a_session_is_known():
    """A later onnxruntime may have more: then this says which of them has to be thought of."""
    from ontrain.inference import delegation

    known = {*delegation._DELEGATED, *delegation._STOCK_ONLY, "run", "set_providers", "io_binding"}
    known |= {"enable_fallback", "disable_fallback"}
    members = [n for n, _ in inspect.getmembers(onnxruntime.InferenceSession, inspect.isfunction) if n[0] != "_"]
    assert set(members) <= known


@pytest.mark.parametrize(
    "name", ["quantization", "quantization.calibrate", "tools.symbolic_shape_infer", "capi.onnxruntime_pybind11_state"]
)
def test_modules_are_onnxruntimes_own_and_no_copies(name):
    assert importlib.import_module(f"ontrain.{name}") is importlib.import_module(f"onnxruntime.{name}")


def test_a_module_that_neither_has_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"ontrain\.nonsense"):
        importlib.import_module("ontrain.nonsense")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_ontrain_brings_neither_torch_nor_onnxruntime():
    heavy = "torch onnxruntime onnx numpy onnx_ir sympy transformers"
    code = f"import sys, ontrain; print([name for name in '{heavy}'.split() if name in sys.modules])"
    assert run(code).strip() == "[]"


ALIAS = "import sys, ontrain; sys.modules['onnxruntime'] = ontrain\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "before", ["", "import onnxruntime\n", "import ontrain.session\n", "import onnxruntime.quantization\n"]
)
def test_a_program_finds_everything_where_ontrain_is_called_onnxruntime(before):
    code = f"""{before}
{ALIAS}
import onnxruntime as ort, ontrain.capi, ontrain.training
from onnxruntime import InferenceSession, SessionOptions, OrtValue
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, OrtValueVector
from onnxruntime.capi.onnxruntime_inference_collection import IOBinding, check_and_normalize_provider_args
from onnxruntime.capi import onnxruntime_inference_collection as collection
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic
from onnxruntime.quantization.calibrate import CalibraterBase
import onnxruntime.transformers.optimizer, onnxruntime.tools.symbolic_shape_infer, onnxruntime.backend
import onnxruntime.training
assert ort is ontrain and InferenceSession is ontrain.InferenceSession
earlier = {bool(before)}  # what was imported under a name stays there
assert earlier or (collection.InferenceSession is InferenceSession and IOBinding is ontrain.IOBinding)
assert onnxruntime.training is ontrain.training and C.SessionOptions
import ontrain.quantization.calibrate
assert ontrain.quantization.calibrate.CalibraterBase is CalibraterBase
from ontrain.stock import stock
assert stock() is not ontrain and stock().__name__ == "onnxruntime"
assert issubclass(InferenceSession, stock().InferenceSession) and OrtValue is stock().OrtValue
assert InvalidArgument is stock().capi.onnxruntime_pybind11_state.InvalidArgument
assert isinstance(C.InvalidArgument, type) and C.InvalidArgument is InvalidArgument
assert sys.modules["onnxruntime"] is ontrain
from onnxruntime.capi.ort_trainer import ORTTrainer
assert ORTTrainer is ontrain.capi.ort_trainer.ORTTrainer
"""
    run(code)


@pytest.mark.parametrize(
    "name", ["transformers.optimizer", "quantization.preprocess", "tools.make_dynamic_shape_fixed"]
)
def test_tools_are_run_by_their_names(name):
    def told(package):
        command = [sys.executable, "-m", f"{package}.{name}", "--help"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert told("ontrain").replace("ontrain", "onnxruntime") == told("onnxruntime")
