"""Files that appear whole or not at all, and the memory of what is finished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus.workspace import Settings, Workspace
from harness.files import DataError, digest, written
from harness.jobs import Job, run


def work(output: Path, text: str) -> dict[str, int]:
    if text == "bad":
        raise DataError("a bad one")
    with written(output) as file:
        file.write(text.encode())
    return {"letters": len(text)}


def jobs(folder: Path, *texts: str) -> list[Job]:
    return [Job(folder / f"{number}.txt", digest(text), (text,)) for number, text in enumerate(texts)]


def reused(folder: Path, *texts: str, n_processes: int = 1) -> list[bool]:
    done = list(run(jobs(folder, *texts), work, folder / "finished.jsonl", n_processes))
    assert [(folder / f"{number}.txt").read_text() for number in range(len(texts))] == list(texts)
    return [step.kept for step in done]


def test_a_job_is_done_again_when_its_key_or_its_file_changed(tmp_path: Path) -> None:
    assert reused(tmp_path, "a", "b") == [False, False]
    assert reused(tmp_path, "a", "b") == [True, True]
    assert reused(tmp_path, "a", "c") == [True, False]
    (tmp_path / "0.txt").write_text("torn")
    assert reused(tmp_path, "a", "c") == [False, True]
    (tmp_path / "1.txt").unlink()
    assert reused(tmp_path, "a", "c") == [True, False]


def test_figures_of_finished_jobs_are_remembered(tmp_path: Path) -> None:
    for _ in range(2):
        done = list(run(jobs(tmp_path, "abc"), work, tmp_path / "finished.jsonl"))
        assert done[0].figures == {"letters": 3}


@pytest.mark.parametrize("torn", ['{"output": "1.txt", "ke', "\x00\xff", "[]\n5\n"])
def test_a_torn_line_costs_one_job(tmp_path: Path, torn: str) -> None:
    assert reused(tmp_path, "a", "b") == [False, False]
    ledger = tmp_path / "finished.jsonl"
    ledger.write_text(ledger.read_text().splitlines()[0] + "\n" + torn, encoding="latin-1")
    assert reused(tmp_path, "a", "b") == [True, False]
    assert reused(tmp_path, "a", "b") == [True, True]


def test_what_came_before_a_failure_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a bad one"):
        list(run(jobs(tmp_path, "a", "bad", "c"), work, tmp_path / "finished.jsonl"))
    assert not (tmp_path / "1.txt").exists()
    assert reused(tmp_path, "a", "b") == [True, False]


def test_a_failure_of_the_list_of_jobs_itself_is_passed_on(tmp_path: Path) -> None:
    def broken() -> Iterator[Job]:
        yield from jobs(tmp_path, "a")
        raise DataError("the dump ends here")

    with pytest.raises(DataError, match="the dump ends here"):
        list(run(broken(), work, tmp_path / "finished.jsonl"))
    assert reused(tmp_path, "a") == [True]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("before")
    with pytest.raises(KeyboardInterrupt), written(tmp_path / "x") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "before"


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"), written(tmp_path / "file" / "x"):
        pass
    with pytest.raises(DataError, match="cannot be written"):
        list(run([], work, tmp_path / "file" / "finished.jsonl"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is always a full disk")
def test_a_disk_that_fills_up_under_the_memory_is_said(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "finished.jsonl")
    with pytest.raises(DataError, match="finished.jsonl cannot be written: No space left on device; what is finished"):
        list(run(jobs(tmp_path, "a"), work, tmp_path / "finished.jsonl"))
    assert (tmp_path / "0.txt").read_text() == "a"


def test_digests_keep_the_borders_of_their_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab", "c") == digest(b"ab", "c")


def test_folders_are_named_as_bertprep_names_them() -> None:
    space = Workspace(Path("w"))
    settings = Settings(128, 20)
    assert space.hdf5("wikicorpus_en", settings) == Path(
        "w/hdf5_lower_case_1_seq_len_128_max_pred_20_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5/wikicorpus_en"
    )
    assert space.sharded("wikicorpus_en", 256, 256, 0.2) == Path(
        "w/sharded_training_shards_256_test_shards_256_fraction_0.2/wikicorpus_en"
    )
    assert space.formatted("bookscorpus") == Path("w/formatted_one_article_per_line/bookscorpus_one_book_per_line.txt")


def test_a_ledger_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger")
    with pytest.raises(DataError, match="is no regular file"):
        list(run([], lambda *_: {}, tmp_path / "ledger"))
