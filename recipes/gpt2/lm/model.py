"""GPT-2 as Hugging Face has it: from a folder with weights, or from scratch in one of the published sizes."""

from __future__ import annotations

import ast
from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import cached_file

from lm.arguments import Arguments
from lm.text import Vocabulary
from ontrain.errors import InputError, OptionError, nearest

# Layers, width, heads: Radford et al. 2019, table 2; the heads are 64 wide.
SIZES = {
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}


def read_vocabulary(arguments: Arguments) -> Vocabulary:
    """Read the vocabulary that the options name, by default the model's own."""
    if arguments.vocab_file is not None and arguments.merges_file is not None:
        return Vocabulary(Path(arguments.vocab_file), Path(arguments.merges_file))
    name = arguments.tokenizer_name or arguments.model_name_or_path
    if name is None:
        raise OptionError("there is no vocabulary", way_out="give --tokenizer_name, or --vocab_file and --merges_file")
    return Vocabulary(*(_fetch(name, file, arguments.cache_dir) for file in ("vocab.json", "merges.txt")))


def make_model(arguments: Arguments, vocabulary: Vocabulary) -> GPT2LMHeadModel:
    """Read a model's weights, or draw new ones from torch's generator."""
    name = arguments.model_name_or_path
    if name is None:
        model = GPT2LMHeadModel(_configuration(arguments, vocabulary))
    else:
        try:
            model = GPT2LMHeadModel.from_pretrained(name, cache_dir=arguments.cache_dir)
        except (OSError, ValueError) as error:
            raise InputError(f"--model_name_or_path: {name} cannot be read", reason=_line(error)) from error
    if model.config.vocab_size != vocabulary.size:
        raise InputError(
            f"the model has {model.config.vocab_size:,} tokens, the vocabulary {vocabulary.size:,}",
            reason="the tokens of one mean something else to the other",
            way_out="name the vocabulary that the model was trained with",
        )
    model.config.use_cache = False  # A training step returns no keys and values.
    model.loss_type = "ForCausalLM"  # What transformers would take anyway, after a warning.
    return model


def sequence_length(arguments: Arguments, model: GPT2LMHeadModel) -> int:
    """Return --block_size, or the model's positions where it is -1."""
    positions: int = model.config.n_positions
    if arguments.block_size > positions:
        raise OptionError(
            f"--block_size is {arguments.block_size:,}, the model has {positions:,} positions",
            way_out=f"use {positions:,} at most, or from scratch --config_overrides n_positions={arguments.block_size}",
        )
    return positions if arguments.block_size == -1 else arguments.block_size


def _configuration(arguments: Arguments, vocabulary: Vocabulary) -> GPT2Config:
    name = arguments.config_name or arguments.model_type
    if name in SIZES:
        n_layer, n_embd, n_head = SIZES[name]
        config = GPT2Config(n_layer=n_layer, n_embd=n_embd, n_head=n_head)
    else:
        try:
            config = GPT2Config.from_pretrained(name, cache_dir=arguments.cache_dir)
        except (OSError, ValueError) as error:
            raise InputError(
                f"--config_name: there is no configuration {name!r}", reason=_line(error),
                way_out=f"name a folder with config.json, or a size: {', '.join(SIZES)}",
            ) from error  # fmt: skip
    for name, value in _overrides(arguments.config_overrides).items():
        if not hasattr(config, name):
            raise OptionError(
                f"--config_overrides: a GPT2Config has no {name!r}", way_out=f"nearest: {nearest(name, vars(config))}"
            )
        if not isinstance(value, type(getattr(config, name))) and not isinstance(value, int | float):
            raise OptionError(f"--config_overrides: {name} is {value!r}", way_out="give a value of the default's kind")
        setattr(config, name, value)
    if config.n_head < 1 or config.n_embd % config.n_head:
        raise OptionError(
            f"{config.n_embd} features cannot be shared by {config.n_head} heads",
            way_out="override n_head, too: it must divide n_embd",
        )
    config.vocab_size = vocabulary.size
    config.bos_token_id = config.eos_token_id = vocabulary.end
    return config


def _overrides(text: str) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise OptionError(f"--config_overrides holds {part!r}", way_out="write name=value,name=value")
        try:
            overrides[name.strip()] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            overrides[name.strip()] = value
    return overrides


def _fetch(name: str, file: str, cache_dir: str | None) -> Path:
    """A file of a folder, or of a model that a hub has."""
    if Path(name).is_dir() and not (Path(name) / file).is_file():
        raise InputError(f"the vocabulary's folder {name!r} has no {file}")
    try:
        fetched = cached_file(name, file, cache_dir=cache_dir)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the vocabulary {name!r} cannot be had", reason=_line(error),
            way_out="name a folder with vocab.json and merges.txt",
        ) from error  # fmt: skip
    return Path(str(fetched))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
