"""transformers' own training tests, `test_modeling_common`, with each model in an ORTModule.

    python -m tests.models.training_tests SOURCES [TYPE ...] [--test NAME] [--write]

SOURCES is the unpacked source distribution of the installed transformers, which holds `tests/test_modeling_common.py`.
Its tests of training and of gradient checkpointing run over small models of ten types, as the package's own do; what
`model_class(config)` returns there is wrapped. A line is printed for each type and test. With --write the results join
training_tests.json and docs/coverage.md.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
import unittest
import warnings
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ontrain.training.ortmodule import ORTModule
from tests.models.zoo.huggingface import SEQ2SEQ, TEXT
from tests.page import read_rows, renew, write_rows

TABLE = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
HEADING = "## transformers' tests of training"
TEXT_OF_PAGE = """\
{heading}

Written by `python -m tests.models.training_tests SOURCES --write`; do not edit. Last on {day}, with transformers
{transformers} and torch {torch}.

The package's `test_modeling_common` runs forward and backward of small models, and checks that with gradient
checkpointing the checkpoints are in use and the same parameters have gradients. Its four tests run over {types} types,
with each model in an `ORTModule`. {passed} of {all} pass.

| type | test | result | remark |
|---|---|---|---|
"""
TESTS = (
    "test_training",
    "test_training_gradient_checkpointing",
    "test_training_gradient_checkpointing_use_reentrant_false",
    "test_training_gradient_checkpointing_use_reentrant_true",
)
TYPES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bert": (TEXT, ("BertForMaskedLM", "BertForSequenceClassification", "BertForQuestionAnswering")),
    "roberta": (TEXT, ("RobertaForTokenClassification",)),
    "electra": (TEXT, ("ElectraForMultipleChoice",)),
    "albert": (TEXT | {"embedding_size": 8}, ("AlbertForMaskedLM",)),
    "gpt2": (dict(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2), ("GPT2LMHeadModel", "GPT2ForSequenceClassification")),
    "llama": (TEXT | {"num_key_value_heads": 1}, ("LlamaForCausalLM",)),
    "opt": (dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=24,
                 word_embed_proj_dim=16, max_position_embeddings=32, pad_token_id=0), ("OPTForCausalLM",)),
    "bart": (SEQ2SEQ, ("BartForConditionalGeneration",)),
    "t5": (dict(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0),
           ("T5ForConditionalGeneration",)),
    "vit": (dict(image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                 intermediate_size=24, num_labels=5), ("ViTForImageClassification",)),
}  # fmt: skip
"""By type the configuration, and the classes that its tests go over."""

Row = dict[str, str]


class Wrapping:
    """Stands for a model's class, and makes ORTModules."""

    def __init__(self, name: str) -> None:
        import transformers

        self._class = getattr(transformers, name)
        self.__name__ = name
        self.supports_gradient_checkpointing = self._class.supports_gradient_checkpointing

    def __call__(self, config: Any) -> ORTModule:
        """Return a new model, wrapped."""
        return ORTModule(self._class(config))


class Tester:
    """What the package's tests ask for a type's configuration and inputs."""

    is_training, batch_size, seq_length, num_choices, num_labels = True, 2, 7, 3, 2

    def __init__(self, settings: Mapping[str, Any], architecture: str) -> None:
        self._settings, self._architecture = settings, architecture

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return a new configuration and a batch."""
        import transformers

        config = getattr(transformers, self._architecture).config_class(**self._settings)
        if "image_size" in self._settings:
            return config, {"pixel_values": torch.randn(self.batch_size, 3, 16, 16)}
        ids = torch.randint(3, 50, (self.batch_size, self.seq_length))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids
        return config, inputs


def common(sources: Path) -> Any:
    """Return the package's module of tests, without what its source distribution leaves out.

    Raises:
        FileNotFoundError: `sources` is no source distribution of transformers.
    """
    path = sources / "tests" / "test_modeling_common.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; give the unpacked source distribution of transformers")
    package = types.ModuleType("transformers_tests")
    package.__path__ = [str(path.parent)]
    sys.modules["transformers_tests"] = package
    for name, mixin in (
        ("exporters.test_export", "ExportTesterMixin"),
        ("generation.test_utils", "GenerationTesterMixin"),
    ):
        absent = types.ModuleType(f"transformers_tests.{name}")
        setattr(absent, mixin, type(mixin, (), {}))
        sys.modules[f"transformers_tests.{name.split('.')[0]}"] = types.ModuleType(name)
        sys.modules[absent.__name__] = absent
    return importlib.import_module("transformers_tests.test_modeling_common")


def case(module: Any, kind: str) -> type[unittest.TestCase]:
    """Return the package's tests for a type."""
    settings, architectures = TYPES[kind]
    attributes = {
        "model_tester": Tester(settings, architectures[0]),
        "all_model_classes": tuple(map(Wrapping, architectures)),
    }
    return type(f"{kind}ModelTest", (module.ModelTesterMixin, unittest.TestCase), attributes)


def outcome(module: Any, kind: str, test: str) -> Row:
    """Return "passed", "skipped" or "failed", and the last line of the reason."""
    if "checkpointing" in test and not any(Wrapping(name).supports_gradient_checkpointing for name in TYPES[kind][1]):
        return {"result": "skipped", "remark": "the package's class has no checkpoints"}
    result = unittest.TestResult()
    case(module, kind)(test).run(result)
    problems = [text for _, text in (*result.errors, *result.failures)]
    if problems:
        return {"result": "failed", "remark": problems[0].strip().splitlines()[-1]}
    if result.skipped:
        return {"result": "skipped", "remark": result.skipped[0][1]}
    return {"result": "passed", "remark": ""}


def write(kind: str, test: str, row: Row) -> None:
    """Add a row to the table, and renew its part of the page."""
    rows: dict[str, dict[str, Row]] = read_rows(TABLE)
    rows.setdefault(kind, {})[test] = row
    write_rows(TABLE, rows)
    results = [row["result"] for tests in rows.values() for row in tests.values()]
    head = TEXT_OF_PAGE.format(
        heading=HEADING, day=date.today(), transformers=version("transformers"), types=len(rows),
        torch=version("torch").split("+")[0], passed=results.count("passed"), all=len(results),
    )  # fmt: skip
    lines = [
        f"| {kind} | {test} | {row['result']} | {row['remark'].replace('|', chr(92) + '|')}".rstrip() + " |\n"
        for kind, tests in rows.items()
        for test, row in tests.items()
    ]
    renew(PAGE, HEADING, head + "".join(lines))


def main() -> None:
    """Run the tests and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, help="the unpacked source distribution of transformers")
    parser.add_argument("types", nargs="*", help=f"of {', '.join(TYPES)}; all by default")
    parser.add_argument("--test", choices=TESTS, help="one test; all by default")
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name} and docs/coverage.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    module = common(options.sources)
    print(f"transformers {version('transformers')}, torch {torch.__version__}")
    for test in [options.test] if options.test else TESTS:
        for kind in options.types or TYPES:
            row = outcome(module, kind, test)
            print(kind, test, row["result"], row["remark"], flush=True)
            if options.write:
                write(kind, test, row)


if __name__ == "__main__":
    main()
