"""A model's folder in transformers' format: config.json, model.safetensors, vocab.txt, and what has to fit in it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors import SafetensorError
from transformers import BertConfig, PreTrainedModel
from transformers.utils import logging

from harness.files import DataError, read_json
from harness.finetuning.flags import Flags
from harness.wordpiece import read_vocabulary

_WEIGHTS = "model.safetensors"
_NEW = ("qa_outputs.", "classifier.", "bert.pooler.")
"""What a task adds to a model, and pre-training need not have left there."""


@dataclass(frozen=True)
class ModelFolder:
    """Configuration and vocabulary, which fit each other, and where the weights are; None: begin from random ones."""

    path: Path
    config: BertConfig
    vocab_file: Path
    lower: bool
    weights: Path | None

    @classmethod
    def open(cls, flags: Flags, max_seq_length: int) -> ModelFolder:
        """Read what the flags name, without its weights yet: a folder, or a model's name on Hugging Face's hub."""
        name = flags.model_name_or_path
        path = Path(name) if Path(name).is_dir() else _from_hub(name)
        fields = _json(path / "config.json")
        if fields.get("model_type") != "bert":
            raise DataError(f"{path / 'config.json'} describes a {fields.get('model_type')!r}: this recipe is BERT's")
        config = BertConfig.from_dict(fields)
        if flags.do_lower_case is not None:
            lower = flags.do_lower_case > 0
        else:
            about = path / "tokenizer_config.json"
            lower = bool(_json(about).get("do_lower_case", True)) if about.is_file() else True
        vocab = flags.vocab_file or path / "vocab.txt"
        if not vocab.is_file():
            raise DataError(f"there is no vocabulary {vocab}: name one by --vocab_file")
        size = len(read_vocabulary(vocab, lower))
        # Pre-training may have rounded the embedding up for faster products; rows that no word has are harmless.
        if config.vocab_size not in (size, -(-size // 8) * 8):
            raise DataError(
                f"{vocab} has {size:,} words and the model of {path} {config.vocab_size:,}: they do not belong "
                "together; --vocab_file names the one that it was trained with"
            )
        weights = None if flags.random_init else (flags.init_checkpoint or path)
        if weights is not None and not (weights / _WEIGHTS).is_file():
            raise DataError(
                f"there are no weights {weights / _WEIGHTS}: convert_checkpoint.py makes them of a checkpoint, "
                "--random_init does without"
            )
        if max_seq_length > config.max_position_embeddings:
            raise DataError(
                f"--max_seq_length {max_seq_length} is more than the {config.max_position_embeddings} positions of the "
                f"model in {path}: take so many or less"
            )
        return cls(path, config, vocab, lower, weights)

    def load(self, flags: Flags, task: type[PreTrainedModel], console: Console, **changes: Any) -> PreTrainedModel:
        """Make the model of a task, on the CPU, with what weights there are, and say which are random.

        The seed decides those. Without --do_train all weights have to be there, those of the task too. `changes` are
        of the configuration.
        """
        if flags.dropout is not None:
            changes |= {"hidden_dropout_prob": flags.dropout, "attention_probs_dropout_prob": flags.dropout}
        config = BertConfig.from_dict({**self.config.to_dict(), "architectures": None, **changes})
        torch.manual_seed(flags.seed)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        if self.weights is None:
            model, random = task(config), ["all weights"]
        else:
            model, random = self._with_weights(task, config)
            if foreign := [key for key in random if not (flags.do_train and key.startswith(_NEW))]:
                way_out = "; --do_train trains it first" if foreign[0].startswith(_NEW) else ""
                raise DataError(f"{self.weights / _WEIGHTS} has no {foreign[0]!r}{way_out}")
        count, said = sum(p.numel() for p in model.parameters()), f"; random: {', '.join(random)}" if random else ""
        console.print(f"model: {self.path}, {count:,} parameters{said}; engine: {flags.engine}")
        return model

    def _with_weights(self, task: type[PreTrainedModel], config: BertConfig) -> tuple[PreTrainedModel, list[str]]:
        """The model, and which of its weights are not in the file: these are random."""
        try:
            model, about = task.from_pretrained(
                self.weights, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True,
                dtype=torch.float32,
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise DataError(f"{self.weights}/{_WEIGHTS} cannot be loaded: {_first_line(error)}") from None
        return model, sorted(about["missing_keys"])

    def save(self, model: PreTrainedModel, output: Path) -> None:
        """Write config.json, model.safetensors, vocab.txt and tokenizer_config.json, each whole or not at all."""
        beside = output / ".model"
        shutil.rmtree(beside, ignore_errors=True)
        try:
            model.save_pretrained(beside)
            shutil.copyfile(self.vocab_file, beside / "vocab.txt")
            about = {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lower}
            (beside / "tokenizer_config.json").write_text(json.dumps(about))
            for file in beside.iterdir():
                file.replace(output / file.name)
            beside.rmdir()
        except (OSError, SafetensorError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise DataError(
                f"{output} cannot be written ({_first_line(error)}); the checkpoints stay: make room and give the same "
                "command again"
            ) from None


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["config.json", "tokenizer_config.json", "vocab.txt", _WEIGHTS]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise DataError(
            f"there is no folder {name}, and Hugging Face's hub does not give it: {_first_line(error).rstrip('.')}; "
            f"name a folder with config.json, vocab.txt and {_WEIGHTS}"
        ) from None


def _json(path: Path) -> dict[str, Any]:
    fields = read_json(path)
    if not isinstance(fields, dict):
        raise DataError(f"{path} holds no JSON object")
    return fields


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
