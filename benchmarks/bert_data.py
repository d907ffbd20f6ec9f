"""Tokens per second per core of create_hdf5_files against a plain loop with `tokenizers`.

    python -m benchmarks.bert_data --shards FOLDER --vocab_file vocab.txt [--repeats 5]

FOLDER is what `prepare.py --action sharding` leaves. Each engine goes through all its shards in a fresh process on
one core, in turn with the others; seconds are the processor's. A token is one of the text: each is used dupe_factor
times, and the time covers reading, tokenising, pairing, masking and the compressed file. The plain loop is BERT's
algorithm as one writes it down: `tokenizers` a sentence at a time (or, stronger, all sentences of a shard in one call),
then lists of tokens. The second pass over the shards shows the recipe with its table of words filled, as in all but the
first shards of a large text. The plain loop also is the reference that tests compare with. Rows go to
benchmarks/results/bert_data.jsonl.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np
from tokenizers import BertWordPieceTokenizer

from benchmarks.commands import Command
from benchmarks.fresh import in_fresh_process, report
from benchmarks.rows import append_row

sys.path.insert(0, str(Path(__file__).parent.parent / "recipes"))
sys.path.insert(0, str(Path(__file__).parent.parent / "recipes" / "bert"))

from corpus import hdf5
from corpus.workspace import Settings

ENGINES = ("recipe", "plain-batch", "plain")
SHAPES = {"128/20": Settings(128, 20), "512/80": Settings(512, 80)}

Document = Sequence[Sequence[int]]


def plain_pairs(
    documents: Sequence[Document], settings: Settings, rng: random.Random
) -> list[tuple[list[int], list[int], int]]:
    """A, B and whether B is from elsewhere, for every document in turn, `dupe_factor` times; not yet cut to length."""
    pairs = []
    for _ in range(settings.dupe_factor):
        for number, document in enumerate(documents):
            target = settings.max_seq_length - 3
            if rng.random() < settings.short_seq_prob:
                target = rng.randint(2, target)
            waiting = list(document)
            while waiting:
                gathered, size = [], 0
                while waiting and size < target:
                    gathered.append(waiting.pop(0))
                    size += len(gathered[-1])
                split = rng.randint(1, len(gathered) - 1) if len(gathered) > 1 else 1
                a = sum(map(list, gathered[:split]), [])
                if len(gathered) == 1 or rng.random() < 0.5:
                    for _ in range(10):
                        other = rng.randint(0, len(documents) - 1)
                        if other != number:
                            break
                    start = rng.randint(0, len(documents[other]) - 1)
                    b: list[int] = []
                    for sentence in documents[other][start:]:
                        b.extend(sentence)
                        if len(b) >= target - len(a):
                            break
                    waiting = gathered[split:] + waiting
                    pairs.append((a, b, 1))
                else:
                    pairs.append((a, sum(map(list, gathered[split:]), []), 0))
    return pairs


def plain_cut(a: list[int], b: list[int], longest: int, rng: random.Random) -> None:
    """Shorten in place, a token at a time."""
    while len(a) + len(b) > longest:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)


def plain_mask(
    tokens: list[int], special: tuple[int, int, int], words: int, settings: Settings, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Mask in place; return positions and what stood there."""
    cls, sep, mask = special
    candidates = [i for i, token in enumerate(tokens) if token not in (cls, sep)]
    rng.shuffle(candidates)
    wanted = min(settings.max_predictions_per_seq, max(1, round(len(tokens) * settings.masked_lm_prob)))
    chosen = sorted(candidates[:wanted])
    labels = [tokens[i] for i in chosen]
    for i in chosen:
        if rng.random() < 0.8:
            tokens[i] = mask
        elif rng.random() < 0.5:
            tokens[i] = rng.randint(0, words - 1)
    return chosen, labels


def plain_shard(output: Path, shard: Path, vocab_file: Path, settings: Settings, batch: bool) -> int:
    """A shard to a file, as one writes it down; returns the number of tokens read."""
    tokenizer = BertWordPieceTokenizer(str(vocab_file), lowercase=settings.lower)
    lines = [line.strip() for line in shard.read_text(encoding="utf-8").split("\n")]
    if batch:
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(lines, add_special_tokens=False)]
    else:
        encoded = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    documents: list[list[list[int]]] = [[]]
    for ids in encoded:
        if ids:
            documents[-1].append(ids)
        elif documents[-1]:
            documents.append([])
    documents = [document for document in documents if document]
    rng = random.Random(settings.random_seed)
    cls, sep, mask = (tokenizer.token_to_id(word) for word in ("[CLS]", "[SEP]", "[MASK]"))
    instances = []
    for a, b, is_random in plain_pairs(documents, settings, rng):
        plain_cut(a, b, settings.max_seq_length - 3, rng)
        tokens = [cls, *a, sep, *b, sep]
        chosen, labels = plain_mask(tokens, (cls, sep, mask), tokenizer.get_vocab_size(), settings, rng)
        instances.append((tokens, [0] * (len(a) + 2) + [1] * (len(b) + 1), chosen, labels, is_random))
    rng.shuffle(instances)
    length, most = settings.max_seq_length, settings.max_predictions_per_seq
    columns = [np.zeros((len(instances), width), np.int32) for width in (length, length, length, most, most)]
    for row, (tokens, segments, chosen, labels, _) in enumerate(instances):
        for column, values in zip(columns, (tokens, [1] * len(tokens), segments, chosen, labels), strict=True):
            column[row, : len(values)] = values
    columns.append(np.array([instance[4] for instance in instances]))
    with h5py.File(output, "w") as file:
        for (name, (dtype, _)), column in zip(hdf5.DATASETS.items(), columns, strict=True):
            file.create_dataset(name, data=column, dtype=dtype, compression="gzip")
    return sum(len(sentence) for document in documents for sentence in document)


def measure(engine: str, folder: Path, vocab_file: Path, settings: Settings) -> dict[str, float]:
    """Go through all shards on one core, twice; return tokens and the processor's seconds of each time."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    shards = sorted(folder.glob("*.txt"))
    if not shards:
        raise SystemExit(f"no shards in {folder}")
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("first_s", "second_s"):
            start, tokens = time.process_time(), 0
            for shard in shards:
                output = Path(scratch) / f"{shard.stem}.hdf5"
                if engine == "recipe":
                    tokens += hdf5.create_shard(output, shard, vocab_file, settings)["tokens"]
                else:
                    tokens += plain_shard(output, shard, vocab_file, settings, engine == "plain-batch")
            figures |= {"tokens": tokens, name: time.process_time() - start}
    return figures


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("--shards", type=Path, required=True, help="folder of text, a sentence a line")
    parser.add_argument("--vocab_file", type=Path, required=True, help="vocab.txt")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    parser.add_argument("--engine", choices=ENGINES, help="measure this one; by default all take turns")
    parser.add_argument("--shape", choices=SHAPES, default="128/20", help="with --engine")
    arguments = parser.parse_args()
    if arguments.engine:
        report(measure(arguments.engine, arguments.shards, arguments.vocab_file, SHAPES[arguments.shape]))
        return
    rates: dict[str, dict[str, float]] = {}
    runs = []
    for shape in SHAPES:
        taken: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
        for _ in range(arguments.repeats):
            for engine in ENGINES:
                options = ("--shards", str(arguments.shards), "--vocab_file", str(arguments.vocab_file))
                figures = in_fresh_process("benchmarks.bert_data", *options, "--engine", engine, "--shape", shape)
                taken[engine].append(figures)
                runs.append({"shape": shape, "engine": engine, **figures})
        for name, pass_ in (("first_s", ""), ("second_s", ", second pass")):
            of = rates[shape + pass_] = {
                engine: statistics.median(run["tokens"] / run[name] for run in taken[engine]) for engine in ENGINES
            }
            for engine in ENGINES[1:]:
                of[f"recipe / {engine}"] = statistics.median(
                    other[name] / mine[name] for mine, other in zip(taken["recipe"], taken[engine], strict=True)
                )
            print(shape + pass_, {key: round(value, 2) for key, value in of.items()})
    append_row(
        "bert_data",
        {
            "benchmark": "bert_data",
            "command": "python -m benchmarks.bert_data --shards FOLDER --vocab_file VOCAB "
            f"--repeats {arguments.repeats}",
            "shards": {path.name: path.stat().st_size for path in sorted(arguments.shards.glob("*.txt"))},
            "vocabulary": len(arguments.vocab_file.read_text(encoding="utf-8").splitlines()),
            "tokens_per_second_per_core": rates,
            "runs": runs,
            "packages": {name: version(name) for name in ("tokenizers", "h5py")},
        },
    )


if __name__ == "__main__":
    main()
