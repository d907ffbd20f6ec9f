"""Files as GLUE's archives hold them: their headers, columns and oddities, around the articles' sentences."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.bert_finetuning.texts import sentences

PARSES = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
HEADERS = {
    "CoLA": "",
    "SST-2": "sentence\tlabel",
    "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "MNLI": f"index\tpromptID\tpairID\tgenre\t{PARSES}\tsentence1\tsentence2",
    "QNLI": "index\tquestion\tsentence\tlabel",
    "RTE": "index\tsentence1\tsentence2\tlabel",
    "WNLI": "index\tsentence1\tsentence2\tlabel",
}
LABELS = {"MNLI": ("neutral", "entailment", "contradiction"), "QNLI": ("entailment", "not_entailment")}
LABELS["RTE"] = LABELS["QNLI"]


def write_archive(folder: Path, task: str) -> None:
    """Write train.tsv and the sets to evaluate on; the label says whether the first sentence has its words in order."""
    folder.mkdir()
    sets = ["dev_matched", "dev_mismatched"] if task == "MNLI" else ["dev"]
    for name in ("train", *sets):
        more = ("\tlabel1" if name == "train" else "".join(f"\tlabel{n}" for n in range(1, 6))) + "\tgold_label"
        header = HEADERS[task] + (more if task == "MNLI" else "")
        rows = [_row(task, name, number, *pair) for number, pair in enumerate(_pairs(name))]
        # MRPC is made of Microsoft's own files, which begin with a byte order mark and end their lines as Windows does.
        start, end = ("\ufeff", "\r\n") if task == "MRPC" else ("", "\n")
        text = start + "".join(line + end for line in ([header] if header else []) + rows)
        (folder / f"{name}.tsv").write_bytes(text.encode())


def _pairs(name: str) -> list[tuple[str, str, int]]:
    """Two sentences and whether the first is as it stands; the mismatched set has the words of others between."""
    labelled = sentences()
    shift = 5 if name == "dev_mismatched" else 3
    return [
        (text, labelled[(7 * number + shift) % len(labelled)][0], ordered)
        for number, (text, ordered) in enumerate(labelled)
    ]


def _row(task: str, name: str, number: int, first: str, second: str, ordered: int) -> str:
    label = LABELS.get(task, ("0", "1"))[ordered]
    if task == "CoLA":
        return f"gj04\t{label}\t{'' if ordered else '*'}\t{first}"
    if task == "SST-2":
        return f"{first.lower()} \t{label}"
    if task == "MRPC":
        quote = "" if number % 4 else '" '  # opens and never closes: it is text
        return f"{label}\t{702876 + number}\t{702977 + number}\t{quote}{first}\t{second}"
    if task == "STS-B":
        score = min(5.0, 3.0 * ordered + number / 11)
        return f"{number}\tmain-captions\tMSRvid\t2012test\t{number:04d}\tnone\tnone\t{first}\t{second}\t{score:.3f}"
    if task == "QQP":
        return f"{133273 + number}\t{213221 + number}\t{213222 + number}\t{first}?\t{second}?\t{label}"
    if task == "MNLI":
        label = LABELS[task][2 if number % 5 == 0 else ordered]
        parses = f"( {first} )\t( {second} )\t(ROOT (S {first}))\t(ROOT (S {second}))"
        labels = [label] * (2 if name == "train" else 6)
        return "\t".join([f"{number}\t{31193 + number}\t{31193 + number}n\tgovernment", parses, first, second, *labels])
    return f"{number}\t{first}\t{second}\t{label}"
