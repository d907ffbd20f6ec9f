"""Two runs' curves against each other, and against what one knows without context."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from tests.recipes.bert_pretraining.conftest import RECIPE


def test_unigram_entropy_is_that_of_the_masked_words(tmp_path: Path) -> None:
    from compare_runs import unigram_entropy
    from corpus.hdf5 import write
    from corpus.instances import Instances

    ids = np.full((4, 8), 3, np.int32)
    positions = np.array([[1, 2], [1, 0], [3, 0], [2, 0]], np.int32)
    words = np.array([[5, 5], [5, 0], [7, 0], [9, 0]], np.int32)  # 5 three times, 7 and 9 once, zeros are no words
    ones = np.ones((4, 8), np.int8)
    write(tmp_path / "x_training_0.hdf5", Instances(ids, ones, ones, positions, words, np.zeros(4, np.int8)))
    expected = -(0.6 * math.log(0.6) + 2 * 0.2 * math.log(0.2))
    assert unigram_entropy(tmp_path) == pytest.approx(expected)


def test_curves_that_differ_end_with_exit_code_1_and_a_picture_of_both(corpus: Path, tmp_path: Path) -> None:
    for name, shift in (("ontrain", 0.0), ("pytorch", 0.3)):
        flags = {"engine": name, "phase1_end_step": 3}
        rows = [{"step": "PARAMETER", "data": {"Config": flags}}]
        for phase, steps in ((1, 3), (2, 2)):
            for step in range(1, steps + 1):
                loss = 7.0 - step / 10 + shift * (phase == 2)
                data = {"phase": phase, "average_loss": loss, "masked_lm_loss": loss, "next_sentence_loss": 0.7}
                rows.append({"step": [0, step], "data": {**data, "learning_rate": 0.1}})
        (tmp_path / name).mkdir()
        (tmp_path / name / "dllogger.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable, str(RECIPE / "compare_runs.py"), str(tmp_path / "ontrain"), str(tmp_path / "pytorch"),
        "--data", str(corpus / "phase1"), "--data", str(corpus / "phase2"), "--output", str(tmp_path / "both"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "largest difference of the curves 0.3" in done.stdout
    report = json.loads((tmp_path / "both.json").read_text())
    assert [point[0] for point in report["runs"][1]["curve"]] == [1, 2, 3, 4, 5]
    picture = ET.parse(tmp_path / "both.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    first, second = ([float(point.split(",")[1]) for point in line.get("points", "").split()] for line in lines)
    assert first[:3] == second[:3]
    assert first[0] < first[1] < first[2]  # a falling loss goes down the page
    assert all(a > b for a, b in zip(first[3:], second[3:], strict=True))
