"""Weights on their way to Hugging Face and PyTorch and back, and from NVIDIA's and onnxruntime's files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness.files import DataError
from safetensors.torch import load_file
from transformers import BertForPreTraining, BertTokenizerFast

from ontrain.errors import CheckpointError
from tests.recipes.bert_pretraining.conftest import RECIPE


def test_to_hugging_face_and_back_nothing_changes(
    run: Callable[..., Path], corpus: Path, tmp_path: Path, config_file: Callable[..., Path]
) -> None:
    from convert_checkpoint import convert

    output = run(1, engine="pytorch", max_steps=2)
    state = load_file(output / "ckpt_2" / "model.safetensors")
    words = len((corpus / "vocab.txt").read_text(encoding="utf-8").splitlines())
    there = tmp_path / "hf"
    assert "huggingface" in convert(output / "ckpt_2", there, None, None, corpus / "vocab.txt")
    model = BertForPreTraining.from_pretrained(there)
    assert model.config.vocab_size == words
    assert len(BertTokenizerFast.from_pretrained(there)) == words
    own = {name: p for name, p in model.named_parameters() if "decoder" not in name}
    for name, p in own.items():
        assert torch.equal(p, state[name][: len(p)]), name
    assert len(own) == len({name for name in state if "decoder" not in name})

    convert(there, tmp_path / "ckpt_0", None, None, None)
    begun = run(
        1,
        engine="pytorch",
        init_checkpoint=tmp_path / "ckpt_0",
        learning_rate=0.0,
        max_steps=1,
        output_dir=tmp_path / "again",
    )
    again = load_file(begun / "ckpt_1" / "model.safetensors")
    for name in own:
        assert torch.equal(again[name][:words] if "word_emb" in name or name == "cls.predictions.bias" else again[name],
                           own[name]), name  # fmt: skip

    convert(output / "ckpt_2", tmp_path / "bert.pt", None, None, None)
    flat = torch.load(tmp_path / "bert.pt", weights_only=True)
    assert torch.equal(flat["cls.predictions.decoder.weight"], own["bert.embeddings.word_embeddings.weight"])
    with pytest.raises(DataError, match="exists: remove it"):
        convert(output / "ckpt_2", there, None, None, None)
    with pytest.raises(DataError, match="does not say the model's sizes"):
        convert(tmp_path / "bert.pt", tmp_path / "x", None, None, None)
    other = config_file(hidden_size=48)
    with pytest.raises(CheckpointError, match=re.escape(", 32], the configuration wants [") + ".*48"):
        convert(tmp_path / "bert.pt", tmp_path / "x", None, other, None)
    assert not (tmp_path / "x").exists()


def test_nvidias_and_onnxruntimes_names_are_understood() -> None:
    from pretraining.weights import own_names

    zero = torch.zeros(1)
    names = own_names(
        {
            "model_.bert_.bert.encoder.layer.0.intermediate.dense_act.weight": zero,
            "module.bert.pooler.dense_act.bias": zero,
            "bert.embeddings.LayerNorm.gamma": zero,
            "cls.predictions.decoder.weight": zero,
            "bert.embeddings.word_embeddings.weight": zero,
            "Moment_1_bert.pooler.dense.bias": zero,
            "bert.pooler.dense.bias_fp16": zero,
            "embeddings.LayerNorm.bias": zero,
        }
    )
    assert set(names) == {
        "bert.encoder.layer.0.intermediate.dense.weight",
        "bert.pooler.dense.bias",
        "bert.embeddings.LayerNorm.weight",
        "bert.embeddings.LayerNorm.bias",
        "bert.embeddings.word_embeddings.weight",
    }


def test_a_file_that_wants_to_run_code_is_refused(tmp_path: Path) -> None:
    from pretraining.weights import read_weights

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "done"),)

    torch.save({"model": {"bert.pooler.dense.bias": Evil()}}, tmp_path / "ckpt_1.pt")
    with pytest.raises(CheckpointError, match=re.escape("ckpt_1.pt")):
        read_weights(tmp_path / "ckpt_1.pt")
    assert not (tmp_path / "done").exists()


def test_weights_of_another_model_are_refused_and_parts_are_said(
    run: Callable[..., Path], config_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(1, engine="pytorch", max_steps=1)
    with pytest.raises(DataError, match=r"has shape \[64\] in the weights and \[48\] in the model"):
        run(1, engine="pytorch", config_file=config_file(intermediate_size=48), init_checkpoint=output / "ckpt_1",
            output_dir=tmp_path / "other")  # fmt: skip
    state = load_file(output / "ckpt_1" / "model.safetensors")
    encoder = {name.removeprefix("bert."): p for name, p in state.items() if name.startswith("bert.")}
    torch.save(encoder, tmp_path / "encoder.pt")
    capsys.readouterr()
    run(1, engine="pytorch", init_checkpoint=tmp_path / "encoder.pt", output_dir=tmp_path / "part", max_steps=1)
    assert "not in it, so as initialised: cls.predictions.bias, cls.predictions.transform" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_command_says_what_it_made_and_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPE / "convert_checkpoint.py"), str(tmp_path / "none"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'none'}: no such file or folder with weights\n"
    assert not list(tmp_path.iterdir())
