"""What generate_artifacts writes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import struct

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from ontrain.errors import GradientError, GraphError, OntrainError, OptionError
from ontrain.training import onnxblock
from ontrain.training.api import CheckpointState, Module
from ontrain.training.artifacts import LossType, OptimType, generate_artifacts
from tests.training.artifacts.networks import convolutional, model_of, perceptron

GRAPHS = ("training_model", "eval_model", "optimizer_model", "step_model")


def test_the_files_have_upstreams_names(folder):
    expected = {f"my_{name}.{kind}" for name in GRAPHS for kind in ("onnx", "ort")}
    assert set(os.listdir(folder)) == expected | {"my_checkpoint", "my_nominal_checkpoint"}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_plain_onnx_without_notes_on_this_machine(name, folder):
    model = onnx.load(folder / f"my_{name}.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 23)]
    assert {node.domain for node in model.graph.node} == {""} and not model.functions
    content = (folder / f"my_{name}.onnx").read_bytes()
    assert b"site-packages" not in content and b".py" not in content and b"ontrain." not in content


def test_names_say_what_is_what(folder):
    model = onnx.load(folder / "my_training_model.onnx").graph
    trained, frozen = ["fc1.weight", "fc2.weight", "fc2.bias"], ["fc1.bias"]
    names = [v.name for v in model.input]
    assert names[:2] == ["x", "labels"] and set(names[2:]) == {*trained, *frozen}
    assert [v.name for v in model.output] == ["loss", "logits", *(f"{n}_grad" for n in names[2:] if n in trained)]
    assert model.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    update = onnx.load(folder / "my_optimizer_model.onnx").graph
    assert [v.name for v in update.input][:2] == ["learning_rate", "step"]
    assert {v.name for v in update.output} == {f"{n}{m}.next" for n in trained for m in ("", ".exp_avg", ".exp_avg_sq")}


def test_the_ort_format_gives_the_same_numbers(folder, rng):
    feeds = {}
    sessions = [onnxruntime.InferenceSession(folder / f"my_training_model.{kind}") for kind in ("onnx", "ort")]
    for entry in sessions[0].get_inputs():
        shape = [4 if isinstance(d, str) else d for d in entry.shape]
        floats = entry.type == "tensor(float)"
        feeds[entry.name] = rng.standard_normal(shape, np.float32) if floats else rng.integers(0, 5, shape)
    for a, b in zip(*(s.run(None, feeds) for s in sessions), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_an_older_opset_gives_the_same_numbers(folder, tmp_path, rng):
    torch.manual_seed(0)
    generate_artifacts(
        perceptron()[0], requires_grad=["fc1.weight", "fc2.weight", "fc2.bias"], frozen_params=["fc1.bias"],
        loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path, prefix="my_",
        additional_output_names=["logits"], step_model=True, opset=17,
    )  # fmt: skip
    for name in GRAPHS:
        newest, older = (onnx.load(place / f"my_{name}.onnx") for place in (folder, tmp_path))
        assert [(entry.domain, entry.version) for entry in older.opset_import] == [("", 17)] and older.ir_version == 8
        assert [v.name for v in older.graph.input] == [v.name for v in newest.graph.input]
        assert [v.name for v in older.graph.output] == [v.name for v in newest.graph.output]
        assert list(older.metadata_props) == list(newest.metadata_props)
        sessions = [onnxruntime.InferenceSession(model.SerializeToString()) for model in (newest, older)]
        feeds = {}
        for entry in sessions[0].get_inputs():
            shape = [4 if isinstance(d, str) else d for d in entry.shape]
            feeds[entry.name] = (
                rng.uniform(0.1, 1, shape).astype(np.float32)
                if entry.type == "tensor(float)"
                else rng.integers(0, 5, shape)
            )
        for a, b in zip(*(s.run(None, feeds) for s in sessions), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_opset_that_lacks_an_operator_names_it_and_writes_nothing(tmp_path):
    settings = {"loss": LossType.CrossEntropyLoss, "artifact_directory": tmp_path}
    with pytest.raises(GraphError, match="ScatterElements"):
        generate_artifacts(perceptron()[0], **settings, opset=13)
    with pytest.raises(OptionError, match="opset 3"):
        generate_artifacts(perceptron()[0], **settings, opset=3)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_read_in_a_dozen_lines_without_libraries(folder):
    content = (folder / "my_checkpoint").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    state = json.loads(header.pop("__metadata__")["state"])
    assert state["trained"] == ["fc1.weight", "fc2.weight", "fc2.bias"]
    assert set(header) == set(state["parameters"]) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    entry = header["fc2.bias"]
    start, end = entry["data_offsets"]
    array = np.frombuffer(content[8 + length + start : 8 + length + end], "<f4")
    assert entry["dtype"] == "F32" and array.shape == (5,) and np.isfinite(array).all()


def test_a_nominal_checkpoint_is_small(folder):
    assert (folder / "my_nominal_checkpoint").stat().st_size < (folder / "my_checkpoint").stat().st_size - 4 * 12 * 16


def test_weights_in_neither_list_stay_inside_the_graphs(tmp_path):
    generate_artifacts(
        perceptron()[0], requires_grad=["fc2.weight"], loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    model = onnx.load(tmp_path / "training_model.onnx").graph
    assert [v.name for v in model.input] == ["x", "target", "fc2.weight"]
    assert sum(t.data_type == TensorProto.FLOAT and len(t.dims) == 2 for t in model.initializer) == 1
    # Nothing before the first layer that is trained is differentiated.
    assert sum(node.op_type in ("Gemm", "MatMul") for node in model.node) == 3


def test_a_batch_normalisation_that_is_not_trained_keeps_its_statistics(tmp_path):
    generate_artifacts(
        convolutional()[0], requires_grad=["fc.weight", "fc.bias"], loss=LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )  # fmt: skip
    model = onnx.load(tmp_path / "training_model.onnx").graph
    assert not [v.name for v in (*model.input, *model.output) if "running" in v.name]


def test_a_model_with_its_own_loss_needs_none(tmp_path, rng):
    model = perceptron()[0]
    model.graph.node.append(helper.make_node("ReduceMean", ["logits"], ["mine"], keepdims=0))
    model.graph.output.insert(0, helper.make_tensor_value_info("mine", TensorProto.FLOAT, []))
    generate_artifacts(model, artifact_directory=tmp_path, additional_output_names=["logits", "h"])
    graph = onnx.load(tmp_path / "training_model.onnx").graph
    assert [v.name for v in graph.output][:3] == ["mine", "logits", "h"] and not (
        tmp_path / "optimizer_model.onnx"
    ).exists()


def test_labels_of_rows_that_the_model_flattens_follow_its_batch(tmp_path, rng):
    module = perceptron()[1]
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc1.weight", "fc1.bias"], ["h"], transB=1),
        helper.make_node("Gemm", ["h", "fc2.weight", "fc2.bias"], ["logits"], transB=1),
    ]
    model = model_of(module, nodes, ["batch", "length", 12], ["?", 5])
    model.graph.initializer.append(helper.make_tensor("rows", TensorProto.INT64, [2], [-1, 12]))
    generate_artifacts(model, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    labels = onnx.load(tmp_path / "training_model.onnx").graph.input[1]
    assert labels.type.tensor_type.shape.dim[0].dim_param == "batch*length"
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    x, digits = rng.standard_normal((3, 2, 12), np.float32), rng.integers(0, 5, 6)
    loss = Module(tmp_path / "training_model.onnx", state)(x, digits)
    expected = nn.functional.cross_entropy(
        module.fc2(module.fc1(torch.from_numpy(x).flatten(0, 1))), torch.from_numpy(digits)
    )
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), abs=1e-6)
    np.testing.assert_allclose(state.parameters["fc1.weight"].grad, module.fc1.weight.grad, atol=1e-6)


def test_a_path_and_bytes_for_the_folder_are_taken(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(perceptron()[0], path)
    generate_artifacts(str(path), loss=LossType.L1Loss, artifact_directory=os.fsencode(tmp_path))
    assert (tmp_path / "training_model.onnx").exists()


def two_outputs():
    model = perceptron()[0]
    model.graph.output.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", 16]))
    return model


def without_outputs():
    model = perceptron()[0]
    del model.graph.output[:]
    return model


def spatial():
    """A file whose images may have any width: the mean is over half of it, rounded, which is no polynomial."""
    module = convolutional()[1]
    nodes = [
        helper.make_node("Conv", ["x", "conv1.weight"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["logits"]),
    ]
    return model_of(module, nodes, ["batch", 1, 9, "width"], ["batch", 4])


REFUSED = {
    "unknown parameter": ({"requires_grad": ["fc2.wieght"]}, r"called 'fc2\.wieght'[\s\S]*'fc2\.weight'"),
    "unknown frozen parameter": ({"frozen_params": ["fc3.bias"]}, r"frozen_params has 'fc3\.bias'[\s\S]*'fc2\.bias'"),
    "a pattern of frozen parameters": ({"frozen_params": ["fc1.*"]}, r"frozen_params has 'fc1\.\*'"),
    "both lists": (
        {"requires_grad": ["fc1.bias", "fc2.bias"], "frozen_params": ["fc2.bias"]},
        "'fc2.bias' is in requires_grad and in frozen_params",
    ),
    "one string": ({"requires_grad": "fc1.bias"}, "requires_grad is one string"),
    "nothing to train": ({"requires_grad": []}, "requires_grad is empty"),
    "two outputs, one loss": ({"model": two_outputs}, r"there are 2: logits, h[\s\S]*loss_input_names"),
    "unknown loss input": ({"loss_input_names": ["logit"]}, r"'logit', which is no value[\s\S]*'logits'"),
    "no outputs": ({"model": without_outputs}, "the model has no outputs"),
    "no loss": ({"loss": "CrossEntropyLoss"}, "the loss is a str"),
    "no optimizer": ({"optimizer": "AdamW"}, "the optimizer is a str"),
    "step model without optimizer": ({"step_model": True}, "a step model needs an optimizer"),
    "custom operators": ({"custom_op_library": "mine.so"}, "the operators of 'mine.so' cannot be trained"),
    "unknown output": ({"additional_output_names": ["logist"]}, r"no value 'logist'[\s\S]*'logits'"),
    "outputs as one string": ({"additional_output_names": "logits"}, "additional_output_names is one string"),
    "no such folder": ({"artifact_directory": "/nowhere/at/all"}, "cannot write to the folder '/nowhere/at/all'"),
    "a file for a folder": ({"artifact_directory": __file__}, "it is no folder"),
    "a loss that is no number": ({"loss": None}, r"the loss 'logits' has shape \[\d+, 5\]"),
    "a dimension that no graph generalises": ({"model": spatial}, "way out: give this dimension a fixed size"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_and_nothing_is_written(case, tmp_path):
    changed, message = REFUSED[case]
    arguments = {"loss": LossType.CrossEntropyLoss, "artifact_directory": tmp_path, "model": perceptron, **changed}
    model = arguments.pop("model")()
    with pytest.raises(OntrainError) as caught:
        generate_artifacts(model[0] if isinstance(model, tuple) else model, **arguments)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert not os.listdir(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OptionError, match="is not writable"):
        generate_artifacts(perceptron()[0], loss=LossType.MSELoss, artifact_directory=tmp_path)


def test_a_parameter_that_the_loss_does_not_reach_is_named(tmp_path):
    model = perceptron()[0]
    model.graph.initializer.append(helper.make_tensor("left", TensorProto.FLOAT, [2], [0, 0]))
    model.graph.node.append(helper.make_node("Neg", ["left"], ["unread"]))
    with pytest.raises(GradientError, match="does not depend on parameter 'left'"):
        generate_artifacts(
            model, requires_grad=["fc2.bias", "left"], loss=LossType.MSELoss, optimizer=OptimType.SGD,
            artifact_directory=tmp_path, additional_output_names=["unread"],
        )  # fmt: skip


def test_an_optimizer_block_of_ones_own_makes_no_step_model(tmp_path):
    class Mine(onnxblock.ForwardBlock):
        def build(self, parameters):
            raise AssertionError("the step model is refused first")

    with pytest.raises(OptionError, match="no step model can be made with the optimizer Mine"):
        generate_artifacts(
            perceptron()[0], loss=LossType.MSELoss, optimizer=Mine(), artifact_directory=tmp_path, step_model=True
        )
