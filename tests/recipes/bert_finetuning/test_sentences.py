"""GLUE's files as the archives have them, a line or two of each, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from glue import TASKS, Sentences, encode, read_sentences
from harness.files import DataError

ONE, TWO = "The tide rises.", "Water, by the moon, is raised."

FILES = {
    "cola": f"gj04\t0\t*\t{ONE}\ngj04\t1\t\t{TWO}\n",
    "sst-2": f"sentence\tlabel\n{ONE}\t0\n{TWO}\t1\n",
    "mrpc": f"\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\t{ONE}\t{TWO}\n1\t9\t10\t{TWO}\t{ONE}\n",
    "sts-b": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    f"0\tmain\tMSR\t2012\t1\tnone\tnone\t{ONE}\t{TWO}\t0.000\n1\tmain\tMSR\t2012\t4\tnone\tnone\t{TWO}\t{ONE}\t3.250\n",
    "qqp": f"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\t{ONE}\t{TWO}\t0\n4\t5\t6\t{TWO}\t{ONE}\t1\n",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    f"sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n0\t1\t1c\tfiction\t( )\t( )\t( )\t( )\t{ONE}\t{TWO}\t"
    f"entailment\tcontradiction\n1\t2\t2e\tfiction\t( )\t( )\t( )\t( )\t{TWO}\t{ONE}\tneutral\tentailment\n",
    "qnli": f"index\tquestion\tsentence\tlabel\n0\t{ONE}\t{TWO}\tentailment\n1\t{TWO}\t{ONE}\tnot_entailment\n",
    "rte": f"index\tsentence1\tsentence2\tlabel\n0\t{ONE}\t{TWO}\tentailment\n1\t{TWO}\t{ONE}\tnot_entailment\n",
    "wnli": f"index\tsentence1\tsentence2\tlabel\n0\t{ONE}\t{TWO}\t0\n1\t{TWO}\t{ONE}\t1\n",
}


@pytest.mark.parametrize("task", FILES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_tasks_file_is_read(task: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(FILES[task].replace("\n", end).encode())
    rows, bad = read_sentences(path, TASKS[task])
    assert bad == 0
    assert rows.first == [ONE, TWO]
    assert rows.second == (None if task in ("cola", "sst-2") else [TWO, ONE])
    assert rows.labels == ([0.0, 3.25] if task == "sts-b" else [0, 1])


def test_all_nine_tasks_are_there() -> None:
    assert set(TASKS) == set(FILES)
    assert TASKS["mnli"].files() == {"mnli": "dev_matched.tsv", "mnli-mm": "dev_mismatched.tsv"}
    assert TASKS["cola"].files() == {"cola": "dev.tsv"}


def test_quotes_and_odd_line_ends_are_text(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes('sentence\tlabel\n"half a quote\t1\na\u2028b\x0bc\t0\n'.encode())
    assert read_sentences(path, TASKS["sst-2"])[0].first == ['"half a quote', "a\u2028b\x0bc"]


@pytest.mark.parametrize(
    ("task", "content", "said"),
    [
        ("cola", b"", "holds no example"),
        ("sst-2", b"sentence\tlabel\n", "holds no example"),
        ("sst-2", b"text\tlabel\nx\t1\n", "is no file of sst-2: its header has no column 'sentence'"),
        ("cola", b"a\t1\t\tx\na\t2\t\ty\n", r"train.tsv:2 has the label '2', not 0, 1; --skip_bad"),
        ("cola", b"a\t1\n", r"train.tsv:1 has 2 fields, column 4 is needed"),
        ("sts-b", b"sentence1\tsentence2\tscore\na\tb\t7\n", "the label '7', not a number from 0 to 5"),
        ("sts-b", b"sentence1\tsentence2\tscore\na\tb\tnan\n", "the label 'nan'"),
        ("cola", b"a\t1\t\t\xff\n", "is not UTF-8 text: byte 5"),
    ],
)
def test_what_cannot_be_read_is_named(task: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_sentences(path, TASKS[task])


def test_bad_lines_are_left_out_when_asked_for_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("a\t1\t\tx\na\t2\t\ty\nshort\n")
    rows, bad = read_sentences(path, TASKS["cola"], skip_bad=True)
    assert (rows.first, bad) == (["x"], 2)


def test_pairs_are_cut_by_hand(tmp_path: Path) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]) + "\n")
    pairs = Sentences(["A b", "a b c d e"], ["c", "f"], [0, 1])
    batch = encode(pairs, vocab, max_seq_length=7)
    assert batch["input_ids"].tolist() == [[2, 5, 6, 3, 7, 3, 0], [2, 5, 6, 7, 3, 10, 3]]  # the longer loses two
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1] * 6 + [0], [1] * 7]
    alone = encode(Sentences(["A b"], None, [0]), vocab)
    assert alone["input_ids"].tolist() == [[2, 5, 6, 3]]
