"""Every model of the zoo: gradients equal to eager PyTorch's at two sizes, through one graph or through ORTModule."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.models.coverage import PAGE, row_of, rows
from tests.models.zoo import ZOO, Entry
from tests.models.zoo.judge import judge, judge_module

pytestmark = pytest.mark.sampled(4)

pytest.importorskip("transformers")

ONE_GRAPH = [entry for entry in ZOO if not entry.refused]
SEVERAL_GRAPHS = [entry for entry in ZOO if entry.refused]
THOROUGH = {
    "roberta", "electra", "deberta", "xlm-roberta", "mpnet", "mobilebert", "squeezebert", "convbert", "roformer",
    "esm", "nystromformer", "gpt_neo", "gptj", "mistral", "qwen3", "gemma3_text", "olmo", "cohere", "qwen2_moe",
    "mamba2", "rwkv", "xlstm", "mbart", "pegasus", "blenderbot", "m2m_100", "led", "fsmt", "deit", "beit",
    "poolformer", "pvt", "speech_to_text", "moonshine", "wav2vec2", "hubert", "wavlm", "siglip", "dpt", "vit_mae",
    "videomae", "patchtsmixer", "ResNeXt", "AlexNet", "EfficientNetV2", "ShuffleNet", "SqueezeNet", "DeepLab",
    "C3D", "nn.Transformer", "segformer, segmentation", "U-Net, nearest", "GRU language model",
    "RNN language model", "LSTMCell in a loop", "GRU tagger, both directions", "GRU under CTC",
    "nn.TransformerEncoder, norm first", "spline flow",
}  # fmt: skip
"""Much like another model here, or slow."""


def _name(entry: Entry) -> str:
    return re.sub(r"[^\w-]+", "_", entry.name)


def _parameters(entries: list[Entry]) -> list[Any]:
    """One parameter a model; those much like another, or slow, are for --thorough."""
    return [
        pytest.param(entry, id=_name(entry), marks=[pytest.mark.thorough] if entry.name in THOROUGH else [])
        for entry in entries
    ]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("entry", _parameters(ONE_GRAPH))
def test_every_gradient_equals_eagers_at_two_sizes_from_one_capture(entry: Entry):
    verdict = judge(entry)
    verdict.expect_eagers()
    assert bool(verdict.specialised) == bool(entry.fixed), verdict.specialised


@pytest.mark.sampled(8)
@pytest.mark.parametrize("entry", _parameters(SEVERAL_GRAPHS))
def test_what_is_no_single_graph_is_refused_as_one_with_a_reason_and_a_way_out(entry: Entry):
    refusal = judge(entry).refusal
    assert refusal is not None, "it can be captured now: compare its gradients"
    assert entry.refused in f"{refusal.problem} {refusal.reason}"
    assert entry.way_out in (refusal.way_out or "")
    assert refusal.source is not None, "the user's line is missing"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("entry", _parameters(SEVERAL_GRAPHS))
def test_ortmodule_trains_what_is_no_single_graph_with_eagers_gradients_at_two_sizes(entry: Entry):
    judge_module(entry).expect_eagers()


@pytest.mark.parametrize("name", ["GCN", "experts, dense dispatch", "RealNVP", "MLP-Mixer", "GRUCell in a loop"])
def test_the_reference_provider_gives_the_same_gradients(name: str):
    entry = next(candidate for candidate in ZOO if candidate.name == name)
    assert judge(entry, "ReferenceExecutionProvider").error <= 1e-5


def test_the_zoo_is_as_large_as_it_is_said_to_be():
    assert len({entry.name for entry in ZOO}) == len(ZOO) >= 60
    assert len(ONE_GRAPH) >= 55
    assert {entry.name for entry in ZOO} >= THOROUGH
    assert len(ZOO) - len(THOROUGH) >= 60
    assert all(entry.way_out for entry in SEVERAL_GRAPHS)


def test_the_page_of_coverage_lists_the_models_of_the_zoo():
    assert [row_of(entry) for entry in ZOO] == rows(PAGE.read_text()), "run python -m tests.models.coverage"
