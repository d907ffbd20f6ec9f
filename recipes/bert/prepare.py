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
from needs import need

need("ontrain", "torch", "numpy", "typer", "rich", "h5py", "tokenizers", "mwparserfromhell")

import sys
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from corpus import download as downloads
from corpus import formatting, hdf5, sharding
from corpus.wordpiece import read_vocabulary
from corpus.workspace import DataError, Settings, Workspace
from rich.console import Console

Tick = Callable[[str], None]


class Action(StrEnum):
    download = "download"
    text_formatting = "text_formatting"
    sharding = "sharding"
    create_tfrecord_files = "create_tfrecord_files"
    create_hdf5_files = "create_hdf5_files"
    show = "show"


class Dataset(StrEnum):
    bookscorpus = "bookscorpus"
    wikicorpus_en = "wikicorpus_en"
    wikicorpus_zh = "wikicorpus_zh"
    books_wiki_en_corpus = "books_wiki_en_corpus"
    google_pretrained_weights = "google_pretrained_weights"
    nvidia_pretrained_weights = "nvidia_pretrained_weights"
    mrpc = "mrpc"
    squad = "squad"
    all = "all"


class Segmentation(StrEnum):
    nltk = "nltk"


TEXTS = (Dataset.bookscorpus, Dataset.wikicorpus_en, Dataset.books_wiki_en_corpus)
PARTS = {Dataset.books_wiki_en_corpus: (Dataset.bookscorpus, Dataset.wikicorpus_en)}


def main(
    action: Annotated[Action, typer.Option("--action", help="What to do.")],
    dataset: Annotated[Dataset | None, typer.Option("--dataset", help="With what; show needs none.")] = None,
    working_dir: Annotated[
        Path | None, typer.Option("--working_dir", envvar="BERT_PREP_WORKING_DIR", help="Folder for all data.")
    ] = None,
    input_files: Annotated[
        str | None,
        typer.Option(
            "--input_files", help="In place of the action's own input: paths with commas and no spaces between."
        ),
    ] = None,
    n_training_shards: Annotated[int, typer.Option("--n_training_shards", min=1)] = 256,
    n_test_shards: Annotated[int, typer.Option("--n_test_shards", min=1)] = 256,
    fraction_test_set: Annotated[
        float, typer.Option("--fraction_test_set", help="Share of the sentences that the test shards get.")
    ] = 0.2,
    segmentation_method: Annotated[
        Segmentation, typer.Option("--segmentation_method", help="nltk: the Punkt model.")
    ] = Segmentation.nltk,
    n_processes: Annotated[int, typer.Option("--n_processes", min=1, help="Processes at one time.")] = 4,
    random_seed: Annotated[int, typer.Option("--random_seed")] = 12345,
    dupe_factor: Annotated[int, typer.Option("--dupe_factor", help="Times the text is used, masked otherwise.")] = 5,
    masked_lm_prob: Annotated[float, typer.Option("--masked_lm_prob", help="Share of the tokens to predict.")] = 0.15,
    max_seq_length: Annotated[int, typer.Option("--max_seq_length")] = 512,
    max_predictions_per_seq: Annotated[int, typer.Option("--max_predictions_per_seq")] = 20,
    short_seq_prob: Annotated[
        float, typer.Option("--short_seq_prob", help="Share of the documents cut shorter than they need be.")
    ] = 0.1,
    do_lower_case: Annotated[int, typer.Option("--do_lower_case", help="0: cased; more: uncased.")] = 1,
    vocab_file: Annotated[
        Path | None, typer.Option("--vocab_file", help="vocab.txt; else that of google_pretrained_weights.")
    ] = None,
    skip_wikiextractor: Annotated[
        int, typer.Option("--skip_wikiextractor", help="1: only merge what lies in extracted/.")
    ] = 0,
    interactive_json_config_generator: Annotated[
        str | None, typer.Option("--interactive_json_config_generator", hidden=True)
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="download: a path or address of your own.")] = None,
    expected_hash: Annotated[
        str | None, typer.Option("--expected_hash", help="download: sha256:…, sha1:… or md5:… of the file.")
    ] = None,
    index: Annotated[int, typer.Option("--index", help="show: which instance; -1 is the last.")] = 0,
) -> None:
    """Prepare BERT's pre-training data; see the top of prepare.py."""
    inputs = [Path(one) for one in input_files.split(",")] if input_files else None
    try:
        if interactive_json_config_generator is not None:
            raise DataError("--interactive_json_config_generator: bertPrep declares it and never reads it")
        if action is Action.create_tfrecord_files:
            raise DataError("create_tfrecord_files: TFRecord files are TensorFlow's; give --action create_hdf5_files")
        if action is not Action.show and dataset is None:
            raise DataError(f"--action {action} needs --dataset")
        if working_dir is None and action is not Action.show:
            raise DataError("no working folder: set BERT_PREP_WORKING_DIR, or give --working_dir")
        space = Workspace(working_dir or Path())
        with ExitStack() as stack:
            tick = _ticker(stack, action)
            if action is Action.download:
                said = _download(space, dataset, source, expected_hash, tick)
            elif action is Action.text_formatting:
                said = _format(space, dataset, inputs, skip_wikiextractor, n_processes, tick)
            elif action is Action.sharding:
                numbers = (n_training_shards, n_test_shards, fraction_test_set)
                said = _shard(space, dataset, inputs, numbers, n_processes, tick)
            else:
                settings = Settings(
                    max_seq_length=max_seq_length,
                    max_predictions_per_seq=max_predictions_per_seq,
                    masked_lm_prob=masked_lm_prob,
                    short_seq_prob=short_seq_prob,
                    dupe_factor=dupe_factor,
                    do_lower_case=do_lower_case,
                    random_seed=random_seed,
                )
                vocab = vocab_file or _default_vocabulary(space, settings)
                if action is Action.show:
                    words = read_vocabulary(vocab, settings.lower)
                    said = [hdf5.show(path, index, words) for path in inputs or []]
                    if not said:
                        raise DataError("--action show needs --input_files")
                else:
                    shards = space.sharded(_text(dataset, action), n_training_shards, n_test_shards, fraction_test_set)
                    names = sharding.shard_names(str(dataset), n_training_shards, n_test_shards)
                    paths = inputs or [shards / f"{name}.txt" for name in names]
                    said = _create(paths, space.hdf5(str(dataset), settings), vocab, settings, n_processes, tick)
        print("\n".join(said))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("\ninterrupted; what is finished stays: give the same command again", file=sys.stderr)
        raise SystemExit(130) from None


def _ticker(stack: ExitStack, action: Action) -> Tick:
    """A line that changes in a terminal; nothing in a log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return lambda said: None
    status = stack.enter_context(console.status(action))
    return lambda said: status.update(f"{action}: {said}")


def _text(dataset: Dataset | None, action: Action) -> str:
    if dataset is Dataset.wikicorpus_zh:
        raise DataError(
            f"--action {action} of wikicorpus_zh: its mixture of simplified and traditional characters would have to "
            "be converted and cut into words first; bertPrep does not do it either"
        )
    if dataset not in TEXTS:
        raise DataError(f"--action {action} goes with --dataset {', '.join(TEXTS)}, not with {dataset}")
    return str(dataset)


def _download(
    space: Workspace, dataset: Dataset | None, source: str | None, expected: str | None, tick: Tick
) -> list[str]:
    if dataset in PARTS:
        raise DataError(f"{dataset} is made of {' and '.join(PARTS[dataset])}: download these")
    return downloads.download(str(dataset), space.download, source, expected, tick)


def _format(
    space: Workspace, dataset: Dataset | None, inputs: list[Path] | None, skip: int, n_processes: int, tick: Tick
) -> list[str]:
    name = _text(dataset, Action.text_formatting)
    if dataset in PARTS:
        raise DataError(f"{dataset} is made of {' and '.join(PARTS[dataset])}: format these, then shard {dataset}")
    output = space.formatted(name)
    if dataset is Dataset.bookscorpus:
        folder = inputs[0] if inputs else space.download / name
        return [f"{output}: {formatting.format_books(folder, output):,} books"]
    folder = space.extracted / name
    if skip:
        count = formatting.merge(sorted(folder.glob("*/wiki_*")), output)
        return [f"{output}: {count:,} articles from {folder}"]
    dump = inputs[0] if inputs else _dump(space.download / name, name)
    pieces, made = formatting.extract(dump, folder, n_processes, tick)
    count = formatting.merge(pieces, output)
    kept = f"; {made.kept:,} of {len(pieces):,} pieces were there" if made.kept else ""
    unread = f", not understood {made.unread:,}" if made.unread else ""
    return [
        f"{output}: {count:,} articles; without prose {made.listed:,}, redirects {made.redirects:,}, "
        f"other pages {made.others:,}{unread}{kept}"
    ]


def _dump(folder: Path, name: str) -> Path:
    found = [path for ending in (".xml.bz2", ".xml", ".xml.gz") if (path := folder / f"{name}{ending}").is_file()]
    if not found:
        raise DataError(
            f"no dump at {folder / name}.xml.bz2: --action download fetches it, --input_files names one elsewhere"
        )
    return found[0]


def _shard(
    space: Workspace,
    dataset: Dataset | None,
    inputs: list[Path] | None,
    numbers: tuple[int, int, float],
    n_processes: int,
    tick: Tick,
) -> list[str]:
    name = _text(dataset, Action.sharding)
    paths = inputs or [space.formatted(part) for part in PARTS.get(Dataset(name), (name,))]
    parts, articles = sharding.segment(paths, space.segmented / name, n_processes, tick)
    shards = sharding.distribute(articles, name, *numbers)
    folder = space.sharded(name, *numbers)
    kept = sharding.write_shards(shards, articles, parts, folder, n_processes, tick)
    said = [f"{folder}: {len(articles):,} articles, {sum(a.sentences for a in articles):,} sentences"]
    for kind, some in (("training", shards[: numbers[0]]), ("test", shards[numbers[0] :])):
        counts = [shard.sentences for shard in some]
        said.append(f"{len(some)} {kind} shards of {min(counts):,} to {max(counts):,} sentences")
    if kept:
        said.append(f"{kept} shards were there")
    if alone := sum(len(shard.articles) == 1 for shard in shards):
        said.append(f"{alone} shards hold a single article: their random next sentences come from that one, too")
    return said


def _default_vocabulary(space: Workspace, settings: Settings) -> Path:
    case = "uncased" if settings.lower else "cased"
    path = space.download / "google_pretrained_weights" / f"{case}_L-24_H-1024_A-16" / "vocab.txt"
    if not path.is_file():
        raise DataError(
            f"no vocabulary: name one by --vocab_file, or --action download --dataset google_pretrained_weights "
            f"brings {path}"
        )
    return path


def _create(
    shards: list[Path], folder: Path, vocab: Path, settings: Settings, n_processes: int, tick: Tick
) -> list[str]:
    made = hdf5.create(shards, folder, vocab, settings, n_processes, tick)
    kept = f"; {made['kept']} were there" if made["kept"] else ""
    return [f"{folder}: {made['files']} files, {made['instances']:,} instances of {made['tokens']:,} tokens{kept}"]


if __name__ == "__main__":
    typer.run(main)
