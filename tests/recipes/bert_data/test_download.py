"""Fetching from a real server on this machine that breaks off, changes its mind and publishes hashes."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import download as downloads
from corpus.download import download
from harness import fetch as fetching
from harness.fetch import fetch
from harness.files import DataError

CONTENT = bytes(range(256)) * 4000  # about a megabyte
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files with ranges and tags; `break_after` bytes an answer it hangs up, `breaks` times."""

    breaks = 0
    break_after = 300_000
    ranges = True
    tag: str | None = '"one"'
    asked: list[str | None] = []
    status = 200

    def do_GET(self) -> None:
        cls = type(self)
        cls.asked.append(self.headers.get("Range"))
        path = Path(self.translate_path(self.path))
        if cls.status != 200 or not path.is_file():
            self.send_error(cls.status if cls.status != 200 else 404)
            return
        body = path.read_bytes()
        start = 0
        if cls.ranges and (wanted := self.headers.get("Range")) and self.headers.get("If-Range") == cls.tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        if cls.tag:
            self.send_header("ETag", cls.tag)
        self.end_headers()
        if cls.breaks:
            cls.breaks -= 1
            self.wfile.write(body[start : start + cls.break_after])
            return
        self.wfile.write(body[start:])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path, type[Handler]]]:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.bin").write_bytes(CONTENT)
    handler = type("Fresh", (Handler,), {"asked": []})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", folder, handler
    running.shutdown()
    thread.join()
    running.server_close()


Server = tuple[str, Path, type[Handler]]


def test_a_broken_connection_is_taken_up_where_it_stopped(tmp_path: Path, server: Server) -> None:
    address, _, handler = server
    handler.breaks = 2
    fetch(f"{address}/file.bin", tmp_path / "out.bin", SHA256)
    assert (tmp_path / "out.bin").read_bytes() == CONTENT
    assert handler.asked == [None, "bytes=300000-", "bytes=600000-"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.bin", "served"]


def test_another_call_goes_on_from_what_an_earlier_one_left(tmp_path: Path, server: Server) -> None:
    address, _, handler = server
    handler.breaks = 5
    handler.break_after = 1000
    with pytest.raises(DataError, match="5 times; 5,000 bytes are here: the same command goes on from there"):
        fetch(f"{address}/file.bin", tmp_path / "out.bin", SHA256)
    assert not (tmp_path / "out.bin").exists()
    fetch(f"{address}/file.bin", tmp_path / "out.bin", SHA256)
    assert handler.asked[-1] == "bytes=5000-"
    assert (tmp_path / "out.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("server_changes", ["tag", "no ranges", "no tag"])
def test_what_cannot_be_resumed_begins_anew(tmp_path: Path, server: Server, server_changes: str) -> None:
    address, folder, handler = server
    if server_changes == "no tag":
        handler.tag = None
    handler.breaks = 5
    handler.break_after = 1000
    with pytest.raises(DataError, match="5 times"):
        fetch(f"{address}/file.bin", tmp_path / "out.bin")
    if server_changes == "tag":
        handler.tag = '"two"'
        (folder / "file.bin").write_bytes(CONTENT[::-1])
    handler.ranges = server_changes != "no ranges"
    fetch(f"{address}/file.bin", tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == (folder / "file.bin").read_bytes()


def test_a_part_that_is_the_whole_file_is_taken(tmp_path: Path, server: Server) -> None:
    address, _, _ = server
    (tmp_path / "out.bin.part").write_bytes(CONTENT)
    (tmp_path / "out.bin.part.json").write_text(f'{{"address": "{address}/file.bin", "version": "\\"one\\""}}')
    fetch(f"{address}/file.bin", tmp_path / "out.bin", SHA256)
    assert (tmp_path / "out.bin").read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing(tmp_path: Path, server: Server) -> None:
    address, _, _ = server
    with pytest.raises(DataError, match="its sha256 is .*, not 0000"):
        fetch(f"{address}/file.bin", tmp_path / "out.bin", "sha256:" + "0" * 64)
    assert [path.name for path in tmp_path.iterdir()] == ["served"]


def test_an_answer_that_no_retry_can_mend_is_said_at_once(tmp_path: Path, server: Server) -> None:
    address, _, handler = server
    with pytest.raises(DataError, match="the server answers 404"):
        fetch(f"{address}/nowhere", tmp_path / "out.bin")
    assert len(handler.asked) == 1
    handler.status = 503
    with pytest.raises(DataError, match="503.*5 times"):
        fetch(f"{address}/file.bin", tmp_path / "out.bin")


def test_a_local_file_is_copied_and_checked(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(CONTENT)
    said = download("wikicorpus_en", tmp_path / "download", str(tmp_path / "dump"), SHA256)
    target = tmp_path / "download" / "wikicorpus_en" / "wikicorpus_en.xml.bz2"
    assert target.read_bytes() == CONTENT
    assert said == [f"{target}: fetched, hash matches"]
    assert download("wikicorpus_en", tmp_path / "download", str(tmp_path / "dump"), SHA256) == [
        f"{target}: there, hash matches"
    ]
    with pytest.raises(DataError, match="its md5 is"):
        download("wikicorpus_en", tmp_path / "download", str(tmp_path / "dump"), "md5:" + "0" * 32)
    with pytest.raises(DataError, match="nowhere: no such file"):
        download("wikicorpus_en", tmp_path / "other", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="write sha256:…, sha1:… or md5:…"):
        fetch(str(tmp_path / "dump"), tmp_path / "out", "crc32:12345678")


@pytest.mark.parametrize("kind", ["address", "folder"])
def test_a_mirror_is_checked_against_the_hashes_that_lie_beside(tmp_path: Path, server: Server, kind: str) -> None:
    address, folder, _ = server
    (folder / "enwiki-latest-pages-articles.xml.bz2").write_bytes(CONTENT)
    sums = folder / "enwiki-latest-sha1sums.txt"
    good = hashlib.sha1(CONTENT).hexdigest()
    sums.write_text(
        f"{'1' * 40}  enwiki-20261101-pages-articles-multistream.xml.bz2\n"
        f"{good}  enwiki-20261101-pages-articles.xml.bz2\n"
    )
    source = f"{address}/" if kind == "address" else str(folder)
    target = tmp_path / "download" / "wikicorpus_en" / "wikicorpus_en.xml.bz2"
    assert download("wikicorpus_en", tmp_path / "download", source) == [f"{target}: fetched, hash matches"]
    sums.write_text(sums.read_text().replace(good, "2" * 40))
    with pytest.raises(DataError, match=f"its sha1 is {good}, not 2222"):
        download("wikicorpus_en", tmp_path / "download", source)
    sums.unlink()
    if kind == "address":
        with pytest.raises(DataError, match="the list of hashes, does not come: .*; --source"):
            download("wikicorpus_en", tmp_path / "download", source)
    else:
        assert download("wikicorpus_en", tmp_path / "download", source) == [
            f"{target}: there, no hash published to compare"
        ]


def test_an_archive_is_unpacked_by_the_names_and_hashes_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"vocab.txt": hashlib.sha256(b"words").hexdigest()}
    files = [{"url": "https://publisher/m.zip", "path": "weights/m.zip", "members": members}]
    monkeypatch.setitem(downloads.SOURCES, "google_pretrained_weights", {"files": files})
    for content in (b"words", b"other"):
        with zipfile.ZipFile(tmp_path / "m.zip", "w") as packed:
            packed.writestr("m/vocab.txt", content)
            packed.writestr("../escaped.txt", "x")
        if content == b"words":
            download("google_pretrained_weights", tmp_path / "in", str(tmp_path / "m.zip"))
            assert (tmp_path / "in" / "weights" / "m" / "vocab.txt").read_bytes() == b"words"
            assert not list(tmp_path.rglob("escaped.txt"))
            assert download("google_pretrained_weights", tmp_path / "in")[0].endswith("there, hashes match")
        else:
            with pytest.raises(DataError, match="vocab.txt: its sha256 is"):
                download("google_pretrained_weights", tmp_path / "other", str(tmp_path / "m.zip"))
    (tmp_path / "m.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="is no archive of m"):
        download("google_pretrained_weights", tmp_path / "third", str(tmp_path / "m.zip"))


def test_every_dataset_has_a_source_or_a_reason() -> None:
    assert set(downloads.SOURCES) == {
        "bookscorpus", "wikicorpus_en", "wikicorpus_zh", "google_pretrained_weights", "nvidia_pretrained_weights",
        "mrpc", "squad",
    }  # fmt: skip
    for about in downloads.SOURCES.values():
        assert ("refused" in about) != ("files" in about)
        for file in about.get("files", ()):
            assert file["url"].startswith("https://")
            assert all(len(value) == 64 for value in file.get("members", {}).values())


@pytest.mark.parametrize("name", ["file.part", "file.part.json"])
def test_a_part_that_is_a_pipe_is_refused_at_once(name: str, tmp_path: Path, server: Server) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="is no regular file"):
        fetch(f"{server[0]}/file.bin", tmp_path / "file")
