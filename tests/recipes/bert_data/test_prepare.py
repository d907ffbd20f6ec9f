"""The script as a user runs it: the whole way, bad input, a full disk, an interruption."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from corpus.hdf5 import read

RECIPE = Path(__file__).parents[3] / "recipes" / "bert"
MINUTES = 5
HDF5 = "hdf5_lower_case_1_seq_len_128_max_pred_20_masked_lm_prob_0.15_random_seed_12345_dupe_factor_2"
SHARDED = "sharded_training_shards_3_test_shards_1_fraction_0.2"
NUMBERS = ("--n_training_shards", 3, "--n_test_shards", 1)
LENGTHS = ("--max_seq_length", 128, "--max_predictions_per_seq", 20, "--dupe_factor", 2)


def prepare(
    *args: object, limit: int | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script as a user does; `limit` is the largest file, in bytes, that it may write."""
    command = [sys.executable, str(RECIPE / "prepare.py"), *map(str, args)]
    if limit is not None:
        # The shell's ulimit counts in blocks of 1,024 bytes here; Python ignores the signal and sees EFBIG.
        command = ["bash", "-c", f'ulimit -f {limit // 1024}; exec "$@"', "prepare", *command]
    settings = {**os.environ, "TERM": "dumb", "COLUMNS": "200", **(environment or {})}
    if not environment or "BERT_PREP_WORKING_DIR" not in environment:
        settings.pop("BERT_PREP_WORKING_DIR", None)
    return subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES, env=settings, check=False)


def refused(finished: subprocess.CompletedProcess[str]) -> str:
    """What a run that was refused said: one line, no traceback."""
    assert finished.returncode == 2, (finished.stdout, finished.stderr)
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    assert finished.stderr.startswith("error: ")
    return finished.stderr


def whole_way(space: Path, dump: Path, vocab_file: Path, n_processes: int) -> list[str]:
    """All actions; returns what each said."""
    common = ("--dataset", "wikicorpus_en", "--working_dir", space, "--n_processes", n_processes)
    said = []
    for action, options in (
        ("download", ("--source", dump)),
        ("text_formatting", ()),
        ("sharding", NUMBERS),
        ("create_hdf5_files", (*NUMBERS, *LENGTHS, "--vocab_file", vocab_file)),
    ):
        finished = prepare("--action", action, *common, *options)
        assert finished.returncode == 0, finished.stderr
        assert finished.stderr == ""
        said.append(finished.stdout)
    return said


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, excerpt: Path, vocab_file: Path) -> tuple[Path, list[str]]:
    space = tmp_path_factory.mktemp("space")
    return space, whole_way(space, excerpt, vocab_file, 1)


def outputs(space: Path) -> dict[str, bytes]:
    files = (path for path in space.rglob("*") if path.is_file() and path.name != "finished.jsonl")
    return {path.relative_to(space).as_posix(): path.read_bytes() for path in files}


def test_every_action_leaves_files_under_upstreams_names(prepared: tuple[Path, list[str]]) -> None:
    space, said = prepared
    names = [f"wikicorpus_en_training_{i}" for i in range(3)] + ["wikicorpus_en_test_0"]
    assert set(outputs(space)) == {
        "download/wikicorpus_en/wikicorpus_en.xml.bz2",
        "extracted/wikicorpus_en/AA/wiki_00",
        "formatted_one_article_per_line/wikicorpus_en_one_article_per_line.txt",
        "segmented/wikicorpus_en/part_00000.txt",
        *(f"{SHARDED}/wikicorpus_en/{name}.txt" for name in names),
        *(f"{HDF5}/wikicorpus_en/{name}.hdf5" for name in names),
    }
    assert "11 articles; without prose 0, redirects 5, other pages 0" in said[1]
    assert "11 articles" in said[2]
    counts = {name: len(read(space / HDF5 / "wikicorpus_en" / f"{name}.hdf5").input_ids) for name in names}
    assert f"4 files, {sum(counts.values()):,} instances" in said[3]


def test_output_does_not_depend_on_the_number_of_processes(
    prepared: tuple[Path, list[str]], tmp_path: Path, excerpt: Path, vocab_file: Path
) -> None:
    whole_way(tmp_path, excerpt, vocab_file, 2)
    assert outputs(tmp_path) == outputs(prepared[0])


def test_an_instance_is_printed_as_text(prepared: tuple[Path, list[str]], vocab_file: Path) -> None:
    file = prepared[0] / HDF5 / "wikicorpus_en" / "wikicorpus_en_training_0.hdf5"
    finished = prepare("--action", "show", "--input_files", file, "--index", 3, "--vocab_file", vocab_file)
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("wikicorpus_en_training_0.hdf5, instance 3 of ")
    assert lines[1].startswith("A: [CLS] ")
    assert lines[2].startswith("B: ")
    assert "[MASK ← " in finished.stdout
    file.with_name("torn.hdf5").write_bytes(file.read_bytes()[:5000])
    try:
        finished = prepare("--action", "show", "--input_files", file.with_name("torn.hdf5"), "--vocab_file", vocab_file)
        assert "torn.hdf5 is no HDF5 file, or is damaged" in refused(finished)
    finally:
        file.with_name("torn.hdf5").unlink()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--action", "sharding"), "--action sharding needs --dataset"),
        (("--action", "sharding", "--dataset", "wikicorpus_en"), "set BERT_PREP_WORKING_DIR, or give --working_dir"),
        (("--action", "create_tfrecord_files", "--dataset", "wikicorpus_en"), "TFRecord files are TensorFlow's"),
        (("--action", "text_formatting", "--dataset", "wikicorpus_zh", "--working_dir", "."), "bertPrep does not"),
        (("--action", "sharding", "--dataset", "squad", "--working_dir", "."), "not with squad"),
        (("--action", "text_formatting", "--dataset", "wikicorpus_en", "--working_dir", "."), "no dump at "),
        (("--action", "text_formatting", "--dataset", "books_wiki_en_corpus", "--working_dir", "."), "format these"),
        (("--action", "create_hdf5_files", "--dataset", "wikicorpus_en", "--working_dir", "."), "no vocabulary: "),
        (("--action", "download", "--dataset", "bookscorpus", "--working_dir", "."), "cannot be downloaded"),
        (("--action", "show", "--vocab_file", "nowhere"), "--vocab_file nowhere cannot be read"),
        (("--action", "show", "--interactive_json_config_generator", "x"), "declares it and never reads it"),
    ],
)  # fmt: skip
def test_a_wrong_command_ends_in_one_line(
    options: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import prepare as script
    import typer

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BERT_PREP_WORKING_DIR", raising=False)
    app = typer.Typer()
    app.command()(script.main)
    with pytest.raises(SystemExit) as caught:
        app(list(options))
    err = capsys.readouterr().err
    assert caught.value.code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_cut_dump_is_said_and_the_rest_of_it_is_taken_up(tmp_path: Path, excerpt: Path) -> None:
    environment = {"BERT_PREP_WORKING_DIR": str(tmp_path)}
    command = ("--action", "text_formatting", "--dataset", "wikicorpus_en", "--n_processes", 1)
    cut = tmp_path / "cut.bz2"
    cut.write_bytes(excerpt.read_bytes()[:-2000])
    said = refused(prepare(*command, "--input_files", cut, environment=environment))
    assert "ends in the middle after" in said
    # bzip2 packs 900 kB together and the excerpt is smaller, so nothing of it comes out before its end.
    assert "no article before it" in said
    assert "--skip_wikiextractor" not in said
    output = tmp_path / "formatted_one_article_per_line" / "wikicorpus_en_one_article_per_line.txt"
    assert not output.exists()
    finished = prepare(*command, "--skip_wikiextractor", 1, environment=environment)
    assert "no article for" in refused(finished)
    finished = prepare(*command, "--input_files", excerpt, environment=environment)
    assert finished.returncode == 0, finished.stderr
    assert len(output.read_text(encoding="utf-8").split("\n\n")) == 12


def test_a_full_disk_keeps_what_is_finished(prepared: tuple[Path, list[str]], tmp_path: Path, vocab_file: Path) -> None:
    # The training shards are small and come first, the test shard is too large for the limit.
    (tmp_path / "formatted_one_article_per_line").symlink_to(prepared[0] / "formatted_one_article_per_line")
    common = ("--dataset", "wikicorpus_en", "--working_dir", tmp_path, "--n_processes", 1)
    numbers = ("--n_training_shards", 2, "--n_test_shards", 1, "--fraction_test_set", 0.7)
    assert prepare("--action", "sharding", *common, *numbers).returncode == 0
    command = ("--action", "create_hdf5_files", *common, *numbers, *LENGTHS, "--vocab_file", vocab_file)
    whole = prepare(*command)
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / HDF5 / "wikicorpus_en"
    files = {path.name: path.read_bytes() for path in folder.glob("*.hdf5")}
    large = files["wikicorpus_en_test_0.hdf5"]
    assert max(len(content) for name, content in files.items() if "training" in name) < len(large) - 2048
    for path in folder.iterdir():
        path.unlink()
    said = refused(prepare(*command, limit=len(large) - 2048))
    assert "no space left to write" in said
    assert "give the same command again" in said
    assert sorted(path.name for path in folder.iterdir()) == [
        "finished.jsonl", "wikicorpus_en_training_0.hdf5", "wikicorpus_en_training_1.hdf5",
    ]  # fmt: skip
    again = prepare(*command)
    assert "; 2 were there" in again.stdout
    assert {path.name: path.read_bytes() for path in folder.glob("*.hdf5")} == files


def interrupted(command: list[object], space: Path) -> tuple[int, str]:
    """Interrupt the script when it has written its first file; return its exit code and its errors."""
    process = subprocess.Popen(
        [sys.executable, str(RECIPE / "prepare.py"), *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60 * MINUTES
    while not list(space.glob("hdf5*/wikicorpus_en/*.hdf5")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to the workers, too
    _, err = process.communicate(timeout=60 * MINUTES)
    return process.returncode, err


def test_an_interrupted_run_is_taken_up(prepared: tuple[Path, list[str]], tmp_path: Path, vocab_file: Path) -> None:
    (tmp_path / "formatted_one_article_per_line").symlink_to(prepared[0] / "formatted_one_article_per_line")
    common = ("--dataset", "wikicorpus_en", "--working_dir", tmp_path)
    numbers = ("--n_training_shards", 5, "--n_test_shards", 1)
    assert prepare("--action", "sharding", *common, *numbers, "--n_processes", 1).returncode == 0
    options = ("--max_seq_length", 64, "--max_predictions_per_seq", 9, "--dupe_factor", 80, "--n_processes", 2)
    command = ["--action", "create_hdf5_files", *common, *numbers, *options, "--vocab_file", vocab_file]
    for _ in range(5):  # on a machine that is busy, all may be done before the interrupt comes
        code, err = interrupted(command, tmp_path)
        if code:
            break
        shutil.rmtree(next(tmp_path.glob("hdf5*")))
    assert code == 130, err
    assert err == "\ninterrupted; what is finished stays: give the same command again\n"
    finished = prepare(*command)
    assert finished.returncode == 0, finished.stderr
    assert " were there" in finished.stdout
    assert not list(tmp_path.rglob("*.part"))


KILLED = """
import os, sys
from contextlib import suppress
from pathlib import Path
sys.path[:0] = [{recipe!r}, {recipes!r}]
from harness.jobs import Job, run
from harness.files import DataError

def work(output, number):
    if number == 3:
        os._exit(1)  # as the kernel does when memory runs out
    output.write_text(str(number))
    return {{}}

if __name__ == "__main__":
    folder = Path({folder!r})
    try:
        for _ in run((Job(folder / str(i), "key", (i,)) for i in range(6)), work, folder / "finished.jsonl", 2):
            pass
    except DataError as error:
        print(error)
"""


def test_a_worker_that_is_killed_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(recipe=str(RECIPE), recipes=str(RECIPE.parent), folder=str(tmp_path)))
    finished = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60 * MINUTES, check=False
    )
    assert "a worker process was killed, perhaps for lack of memory" in finished.stdout
    assert finished.returncode == 0


@pytest.mark.slow
def test_the_slice_of_wikipedia_in_gensims_wheel(tmp_path: Path, vocab_file: Path) -> None:
    spec = importlib.util.find_spec("gensim")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gensim is not installed: the wheel of gensim 4.4.0 carries the dump")
    name = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    dump = Path(next(iter(spec.submodule_search_locations))) / "test" / "test_data" / name
    said = whole_way(tmp_path, dump, vocab_file, 2)
    assert "105 articles; without prose 1, redirects 100, other pages 0" in said[1]
