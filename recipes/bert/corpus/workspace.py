"""What decides the content of the files, and where they lie.

Folder and file names are those of NVIDIA's bertPrep.py (DeepLearningExamples, PyTorch/LanguageModeling/BERT/data), so
that data and scripts made for it fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from harness.files import DataError
from harness.options import flag, within


@dataclass(frozen=True)
class Settings:
    """What decides the content of HDF5 files, under bertPrep's names and defaults."""

    max_seq_length: Annotated[int, flag("Tokens of an instance: [CLS] a [SEP] b [SEP].", min=5)] = 512
    max_predictions_per_seq: Annotated[int, flag("Masked words of an instance, at most.")] = 20
    masked_lm_prob: Annotated[float, flag("Share of the tokens to predict.", min=0, max=1)] = 0.15
    short_seq_prob: Annotated[float, flag("Share of the documents cut shorter than they need be.", min=0, max=1)] = 0.1
    dupe_factor: Annotated[int, flag("Times the text is used, masked otherwise.", min=1)] = 5
    do_lower_case: Annotated[int, flag("0: cased; more: uncased.")] = 1
    random_seed: Annotated[int, flag("Of the pairs and masks.", min=0)] = 12345

    def __post_init__(self) -> None:
        within(self, ("max_predictions_per_seq", 1, self.max_seq_length - 3))

    @property
    def lower(self) -> bool:
        """Any number above 0 means uncased."""
        return self.do_lower_case > 0


@dataclass(frozen=True)
class Workspace:
    """The folders under BERT_PREP_WORKING_DIR."""

    root: Path

    def vocabulary(self, lower: bool) -> Path:
        """The vocab.txt that google_pretrained_weights brings."""
        case = "uncased" if lower else "cased"
        path = self.root / "download" / "google_pretrained_weights" / f"{case}_L-24_H-1024_A-16" / "vocab.txt"
        if not path.is_file():
            raise DataError(
                f"no vocabulary: name one by --vocab_file, or --action download --dataset google_pretrained_weights "
                f"brings {path}"
            )
        return path

    def formatted(self, dataset: str) -> Path:
        unit = "book" if dataset == "bookscorpus" else "article"
        return self.root / "formatted_one_article_per_line" / f"{dataset}_one_{unit}_per_line.txt"

    def sharded(self, dataset: str, n_training: int, n_test: int, fraction: float) -> Path:
        name = f"sharded_training_shards_{n_training}_test_shards_{n_test}_fraction_{fraction}"
        return self.root / name / dataset

    def hdf5(self, dataset: str, s: Settings) -> Path:
        name = (
            f"hdf5_lower_case_{s.do_lower_case}_seq_len_{s.max_seq_length}_max_pred_{s.max_predictions_per_seq}"
            f"_masked_lm_prob_{s.masked_lm_prob}_random_seed_{s.random_seed}_dupe_factor_{s.dupe_factor}"
        )
        return self.root / name / dataset
