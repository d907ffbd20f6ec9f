"""An installed package's files are told from the user's own, whichever way it was installed."""

import csv

import pytest

from ontrain.capture import is_installed, is_users
from ontrain.capture.installed import path_in_packages

NAMES = ["trainers/__init__.py", "trainers/loop.py", "trainers/data.bin", "trainer_types.py", "odd,name.py"]


@pytest.fixture
def target(tmp_path, monkeypatch):
    """A folder that pip installed into (`--target`) beside the user's own files."""
    information = tmp_path / "trainers-1.0.dist-info"
    information.mkdir()
    with (information / "RECORD").open("w", newline="") as record:
        csv.writer(record).writerows([name, "sha256=x", 1] for name in NAMES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["trainers/loop.py", "trainer_types.py", "odd,name.py"])
def test_what_a_record_lists_is_installed(target, name):
    file = str(target / name)
    assert is_installed(file) and not is_users(file)
    assert path_in_packages(file) == name


@pytest.mark.parametrize("name", ["train.py", "trainers/mine.py", "trainers_of_mine/loop.py"])
def test_what_lies_beside_an_installed_package_is_the_users(target, name):
    assert is_users(str(target / name))


def test_a_package_that_comes_later_is_seen(target):
    assert is_users(str(target / "models/late.py"))
    information = target / "models-1.0.dist-info"
    information.mkdir()
    (information / "RECORD").write_text("models/late.py,,\nmodels/later.py,,\n")
    assert is_installed(str(target / "models/later.py"))


def test_a_record_counts_where_its_folder_is_imported_from(target, monkeypatch):
    monkeypatch.setattr("sys.path", [])
    assert is_users(str(target / "trainers/loop.py"))


@pytest.mark.parametrize("folder", ["/usr/lib/python3/dist-packages", "/home/x/.local/lib/python3.12/site-packages"])
def test_folders_of_packages_are_known_by_their_names(folder):
    assert path_in_packages(f"{folder}/trainers/loop.py") == "trainers/loop.py"
    assert not is_installed(f"{folder}.py")


def test_a_folder_that_may_no_longer_be_read_has_no_records(target, monkeypatch):
    """Of a daemon that gave up its rights after it had imported everything."""
    file = target / "trainers" / "unread.py"
    stat = type(target).stat

    def refused(path, **kwargs):
        if path == target:
            raise PermissionError(13, "Permission denied")
        return stat(path, **kwargs)

    monkeypatch.setattr(type(target), "stat", refused)
    assert is_users(str(file))
