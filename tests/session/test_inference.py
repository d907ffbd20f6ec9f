"""`InferenceSession` for who comes from onnxruntime: the same calls give the same, on its providers and on ours."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import ontrain
from ontrain import InputError, OntrainError, OptionError, ProviderError
from tests.training.conftest import PROVIDERS, Net, batches, make_trainer


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A trained model, exported, with metadata of its own."""
    torch.manual_seed(3)
    trainer = make_trainer(Net(dropout=0.2))
    for batch in batches(2):
        trainer.train_step(*batch)
    file = tmp_path_factory.mktemp("model") / "model.onnx"
    trainer.save_as_onnx(file)
    model = onnx.load(file)
    model.doc_string, model.model_version = "a small one", 7
    model.metadata_props.add(key="trained", value="on two batches")
    onnx.save(model, file)
    return file


IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 10]])


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_every_provider_gives_what_onnxruntime_gives(path, provider):
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ours = ontrain.InferenceSession(path, providers=[provider])
    assert ours.get_providers() == [provider]
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(v.name, v.type, v.shape) for v in mine] == [(v.name, v.type, v.shape) for v in other]
    meta, wanted = ours.get_modelmeta(), theirs.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(meta, name) == getattr(wanted, name)
    for ids in (IDS, IDS[:1, :2], IDS):
        expected = theirs.run(None, {"ids": ids})
        for found in (ours.run(None, {"ids": ids}), ours.run(["output"], {"ids": torch.as_tensor(ids)})):
            assert [type(array) for array in found] == [np.ndarray]
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_model_is_taken_from_bytes(path, provider):
    found = ontrain.InferenceSession(path.read_bytes(), providers=[(provider, {"device": "cpu"})])
    assert found.run([], {"ids": IDS})[0].shape == (2, 4, 11)
    assert found.get_provider_options() == {provider: {"device": "cpu"}}


def test_session_options_and_provider_options_reach_onnxruntime(path, tmp_path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.optimized_model_filepath = 1, str(tmp_path / "optimised.onnx")
    session = ontrain.InferenceSession(path, options, [("CPUExecutionProvider", {"arena_extend_strategy": "0"})])
    assert session.get_session_options().intra_op_num_threads == 1
    assert (tmp_path / "optimised.onnx").stat().st_size > 0
    ontrain.InferenceSession(path, providers=["CPUExecutionProvider"], provider_options=[{}])


def test_bindings_and_run_options_are_onnxruntimes(path):
    session = ontrain.InferenceSession(path)
    binding = session.io_binding()
    binding.bind_cpu_input("ids", IDS)
    binding.bind_output("output")
    session.run_with_iobinding(binding)
    options = onnxruntime.RunOptions()
    options.log_severity_level = 3
    (wanted,) = session.run(["output"], {"ids": IDS}, options)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], wanted)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
@pytest.mark.parametrize(
    ("outputs", "feeds", "says"),
    [
        (None, {"idz": IDS}, "no input 'idz'.*'ids'"),
        (["ouput"], {"ids": IDS}, "no output 'ouput'.*'output'"),
        (None, {}, "ids"),
        (None, {"ids": IDS.astype(np.float32)}, "ids.*int64"),
        (None, {"ids": IDS[0]}, "ids"),
    ],
)
def test_feeds_that_do_not_fit_are_told_what_the_model_takes(path, provider, outputs, feeds, says):
    import re

    with pytest.raises(InputError) as error:
        ontrain.InferenceSession(path, providers=[provider]).run(outputs, feeds)
    assert re.search(says, str(error.value), re.DOTALL)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_an_index_out_of_range_is_an_error_of_ours(path, provider):
    with pytest.raises((InputError, ProviderError), match="11"):
        ontrain.InferenceSession(path, providers=[provider]).run(None, {"ids": IDS + 1})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"providers": ["CPUExecutionProvidr"]}, "no execution provider 'CPUExecutionProvidr'.*'CPUExecutionProvider'"),
        ({"providers": ["TorchProvider"]}, "'TorchExecutionProvider'"),
        ({"providers": ["TorchExecutionProvider", "CPUExecutionProvider"]}, "run a graph whole"),
        ({"providers": [("TorchExecutionProvider", {"divice": "cpu"})]}, "no option 'divice'"),
        ({"providers": [3]}, "write a name"),
        ({"providers": ["CPUExecutionProvider"], "provider_options": []}, "0 provider_options for 1 provider"),
        ({"providers": [("CPUExecutionProvider", {})], "provider_options": [{}]}, "in one place"),
        ({"providers": ["ReferenceExecutionProvider"], "sess_options": onnxruntime.SessionOptions()}, "onnxruntime's"),
    ],
)
def test_providers_and_options_are_checked(path, arguments, says):
    import re

    with pytest.raises(OptionError) as error:
        ontrain.InferenceSession(path, **arguments)
    assert re.search(says, str(error.value), re.DOTALL)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_a_missing_or_truncated_file_is_refused(path, provider, tmp_path):
    with pytest.raises(InputError, match="there is no model file"):
        ontrain.InferenceSession(tmp_path / "nothing.onnx", providers=[provider])
    (tmp_path / "half.onnx").write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(OntrainError, match="cannot load|damaged|holds no graph"):
        ontrain.InferenceSession(tmp_path / "half.onnx", providers=[provider])


def test_what_only_onnxruntime_has_says_so(path):
    session = ontrain.InferenceSession(path, providers=["TorchExecutionProvider"])
    with pytest.raises(AttributeError, match="no 'io_binding'.*TorchExecutionProvider"):
        session.io_binding()


def test_all_providers_are_listed():
    assert ontrain.get_available_providers()[:3] == list(PROVIDERS)
