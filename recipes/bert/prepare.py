"""From a Wikipedia dump to the HDF5 files that BERT is pre-trained on; the actions and flags of NVIDIA's bertPrep.py.

    $ export BERT_PREP_WORKING_DIR=~/bert
    $ python prepare.py --action download --dataset google_pretrained_weights
    $ python prepare.py --action download --dataset wikicorpus_en
    $ python prepare.py --action text_formatting --dataset wikicorpus_en
    $ python prepare.py --action sharding --dataset wikicorpus_en
    $ python prepare.py --action create_hdf5_files --dataset wikicorpus_en --max_seq_length 128 \\
          --max_predictions_per_seq 20
    $ python prepare.py --action create_hdf5_files --dataset wikicorpus_en --max_seq_length 512 \\
          --max_predictions_per_seq 80
    $ python prepare.py --action show --input_files FILE.hdf5 --index 7

What each leaves under the working folder, named as bertPrep names it:

    download/wikicorpus_en/wikicorpus_en.xml.bz2      read as it is, never unpacked
    extracted/wikicorpus_en/AA/wiki_00 …              prose, in WikiExtractor's form; text_formatting goes on from here
    formatted_one_article_per_line/wikicorpus_en_one_article_per_line.txt
    segmented/wikicorpus_en/part_00000.txt …          a sentence a line, for any number of shards (not in bertPrep)
    sharded_training_shards_256_test_shards_256_fraction_0.2/wikicorpus_en/wikicorpus_en_training_0.txt …
    hdf5_lower_case_1_seq_len_128_max_pred_20_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5/wikicorpus_en/
        wikicorpus_en_training_0.hdf5 …

Whatever stops it, give the same command again: what is finished is found (`finished.jsonl` in each folder says from
what it was made) and only the rest is done. Files appear under their names when they are complete. The output depends
on the input and the flags alone, never on --n_processes; equal runs make equal bytes.

A dump, file or mirror of your own: `--action download --source PATH_OR_ADDRESS`, where a folder or an address that ends
in / stands for the publisher's folder. Dumps of other wikis work with the English names of templates and sections left
in the text here and there.

Not as bertPrep has it: download resumes and checks hashes; the dump stays packed; sentences are Punkt's, as nltk's,
from a package that needs no download; every shard has random numbers of its own; TFRecord files, Chinese formatting
and BookCorpus's download, which bertPrep names and cannot do either, are refused with the reason.

Exit codes: 0 done; 2 an option, the data or the disk is at fault, said in one line; 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from harness.needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers", "mwparserfromhell")

from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from corpus.workspace import Settings, Workspace
from harness.files import DataError
from harness.options import command, execute, flag, parse, part_of

Action = StrEnum(
    "Action", ["download", "text_formatting", "sharding", "create_tfrecord_files", "create_hdf5_files", "show"]
)
Dataset = StrEnum("Dataset", [
    "bookscorpus", "wikicorpus_en", "wikicorpus_zh", "books_wiki_en_corpus", "google_pretrained_weights",
    "nvidia_pretrained_weights", "mrpc", "squad", "all",
])  # fmt: skip
Segmentation = StrEnum("Segmentation", ["nltk"])

TEXTS = (Dataset.bookscorpus, Dataset.wikicorpus_en, Dataset.books_wiki_en_corpus)
PARTS = {Dataset.books_wiki_en_corpus: (Dataset.bookscorpus, Dataset.wikicorpus_en)}


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """The flags; the top of prepare.py is their manual."""

    action: Annotated[Action, flag("What to do.")]
    dataset: Annotated[Dataset | None, flag("With what; show needs none.")] = None
    working_dir: Annotated[Path | None, flag("Folder for all data.", envvar="BERT_PREP_WORKING_DIR")] = None
    input_files: Annotated[
        str | None, flag("In place of the action's own input: paths with commas and no spaces between.")
    ] = None
    n_training_shards: Annotated[int, flag("Shards to train on.", min=1)] = 256
    n_test_shards: Annotated[int, flag("Shards to test on.", min=1)] = 256
    fraction_test_set: Annotated[float, flag("Share of the sentences that the test shards get.")] = 0.2
    segmentation_method: Annotated[Segmentation, flag("nltk: the Punkt model.")] = Segmentation.nltk
    n_processes: Annotated[int, flag("Processes at one time.", min=1)] = 4
    vocab_file: Annotated[
        Path | None, flag("vocab.txt; else that of google_pretrained_weights.", missing="no such file")
    ] = None
    skip_wikiextractor: Annotated[int, flag("1: only merge what lies in extracted/.")] = 0
    interactive_json_config_generator: Annotated[str | None, flag(hidden=True)] = None
    source: Annotated[str | None, flag("download: a path or address of your own.")] = None
    expected_hash: Annotated[str | None, flag("download: sha256:…, sha1:… or md5:… of the file.")] = None
    index: Annotated[int, flag("show: which instance; -1 is the last.")] = 0

    def __post_init__(self) -> None:
        if self.interactive_json_config_generator is not None:
            raise DataError("--interactive_json_config_generator: bertPrep declares it and never reads it")
        if self.action is Action.create_tfrecord_files:
            raise DataError("create_tfrecord_files: TFRecord files are TensorFlow's; give --action create_hdf5_files")
        if self.action is not Action.show and self.dataset is None:
            raise DataError(f"--action {self.action} needs --dataset")
        if self.action is not Action.show and self.working_dir is None:
            raise DataError("no working folder: set BERT_PREP_WORKING_DIR, or give --working_dir")

    @property
    def space(self) -> Workspace:
        return Workspace(self.working_dir or Path())

    @property
    def inputs(self) -> list[Path]:
        return [Path(path) for path in self.input_files.split(",")] if self.input_files else []

    @property
    def shards(self) -> tuple[int, int, float]:
        return self.n_training_shards, self.n_test_shards, self.fraction_test_set

    @property
    def vocabulary(self) -> Path:
        return self.vocab_file or self.space.vocabulary(self.lower)

    @property
    def text(self) -> str:
        """The data set, where it is one of text that can be prepared."""
        if self.dataset is Dataset.wikicorpus_zh:
            raise DataError(
                f"--action {self.action} of wikicorpus_zh: its mixture of simplified and traditional characters would "
                "have to be converted and cut into words first; bertPrep does not do it either"
            )
        if self.dataset not in TEXTS:
            raise DataError(f"--action {self.action} goes with --dataset {', '.join(TEXTS)}, not with {self.dataset}")
        return str(self.dataset)

    def refuse_joint(self, instead: str) -> None:
        """Say which data sets make this one, where it has no files of its own."""
        if self.dataset in PARTS:
            raise DataError(f"{self.dataset} is made of {' and '.join(PARTS[self.dataset])}: {instead}")


if __name__ == "__main__":
    OPTIONS = parse(Options)  # before what takes its time to import

from corpus import download, formatting, hdf5, sharding
from corpus.dump import find_dump
from harness.fetch import Tick
from harness.wordpiece import read_vocabulary
from rich.console import Console

# --- the actions, in their order; each returns the lines that it says -------------------------------------------------


def fetch(options: Options, tick: Tick) -> list[str]:
    options.refuse_joint("download these")
    folder = options.space.root / "download"
    return download.download(str(options.dataset), folder, options.source, options.expected_hash, tick)


def format_text(options: Options, tick: Tick) -> list[str]:
    name, space = options.text, options.space
    options.refuse_joint(f"format these, then shard {name}")
    output, folder, downloads = space.formatted(name), space.root / "extracted" / name, space.root / "download" / name
    if options.dataset is Dataset.bookscorpus:
        return [f"{output}: {formatting.format_books((options.inputs or [downloads])[0], output):,} books"]
    if options.skip_wikiextractor:
        count = formatting.merge(sorted(folder.glob("*/wiki_*")), output)
        return [f"{output}: {count:,} articles from {folder}"]
    dump = options.inputs[0] if options.inputs else find_dump(downloads, name)
    pieces, pages = formatting.extract(dump, folder, options.n_processes, tick)
    count = formatting.merge(pieces, output)
    there = f"; {pages.kept:,} of {len(pieces):,} pieces were there" if pages.kept else ""
    unread = f", not understood {pages.unread:,}" if pages.unread else ""
    return [
        f"{output}: {count:,} articles; without prose {pages.listed:,}, redirects {pages.redirects:,}, "
        f"other pages {pages.others:,}{unread}{there}"
    ]


def shard(options: Options, tick: Tick) -> list[str]:
    name, space = options.text, options.space
    paths = options.inputs or [space.formatted(part) for part in PARTS.get(Dataset(name), (name,))]
    parts, articles = sharding.segment(paths, space.root / "segmented" / name, options.n_processes, tick)
    shards = sharding.distribute(articles, name, *options.shards)
    folder, training = space.sharded(name, *options.shards), options.n_training_shards
    there = sharding.write_shards(shards, articles, parts, folder, options.n_processes, tick)
    said = [f"{folder}: {len(articles):,} articles, {sum(a.sentences for a in articles):,} sentences"]
    for kind, some in (("training", shards[:training]), ("test", shards[training:])):
        counts = [shard.sentences for shard in some]
        said.append(f"{len(some)} {kind} shards of {min(counts):,} to {max(counts):,} sentences")
    if there:
        said.append(f"{there} shards were there")
    if alone := sum(len(shard.articles) == 1 for shard in shards):
        said.append(f"{alone} shards hold a single article: their random next sentences come from that one, too")
    return said


def create(options: Options, tick: Tick) -> list[str]:
    vocabulary, settings, name = options.vocabulary, part_of(Settings, options), options.text
    folder, names = options.space.sharded(name, *options.shards), sharding.shard_names(name, *options.shards[:2])
    shards = options.inputs or [folder / f"{shard}.txt" for shard in names]
    output = options.space.hdf5(name, settings)
    sums = hdf5.create(shards, output, vocabulary, settings, options.n_processes, tick)
    there = f"; {sums['kept']} were there" if sums["kept"] else ""
    return [f"{output}: {sums['files']} files, {sums['instances']:,} instances of {sums['tokens']:,} tokens{there}"]


def show(options: Options, tick: Tick) -> list[str]:
    words = read_vocabulary(options.vocabulary, options.lower)
    if not options.inputs:
        raise DataError("--action show needs --input_files")
    return [hdf5.show(path, options.index, words) for path in options.inputs]


ACTIONS = {
    Action.download: fetch, Action.text_formatting: format_text, Action.sharding: shard,
    Action.create_hdf5_files: create, Action.show: show,
}  # fmt: skip


def prepare(options: Options) -> None:
    """Do the action, with a line that changes in a terminal and nothing in a log."""
    console, tick = Console(stderr=True), lambda said: None
    with ExitStack() as stack:
        if console.is_terminal:
            status = stack.enter_context(console.status(options.action))
            tick = lambda said: status.update(f"{options.action}: {said}")  # noqa: E731
        print("\n".join(ACTIONS[options.action](options, tick)))


main = command(Options, prepare)

if __name__ == "__main__":
    execute(prepare, OPTIONS)
