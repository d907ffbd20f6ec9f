"""The uploader as a user runs it, against a small blob service on this machine: real files, real requests."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from upload import main

AZUREML = Path(__file__).parents[3] / "azureml"


class Storage(ThreadingHTTPServer):
    """What the uploader needs of Azure's Blob service (REST: Create Container, Get Blob Properties, Put Blob)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.containers: set[str] = set()
        self.blobs: dict[str, tuple[bytes, str]] = {}
        self.sent: list[str] = []
        self.refuse = False

    @property
    def connection(self) -> str:
        key = base64.b64encode(b"key").decode()
        return (
            f"DefaultEndpointsProtocol=http;AccountName=mine;AccountKey={key};"
            f"BlobEndpoint=http://127.0.0.1:{self.server_port}/mine;"
        )


class Requests(BaseHTTPRequestHandler):
    server: Storage
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": "0", "ETag": '"0x1"', **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        split = urlsplit(self.path)
        name = unquote(split.path).removeprefix("/mine/")
        if self.server.refuse:
            self.answer(403, x_ms_error_code="AuthorizationPermissionMismatch")
        elif "restype=container" in split.query:
            if name in self.server.containers:
                self.answer(409, x_ms_error_code="ContainerAlreadyExists")
            else:
                self.server.containers.add(name)
                self.answer(201, Last_Modified="Sat, 01 Jan 2022 00:00:00 GMT")
        else:
            self.server.blobs[name] = (body, self.headers["x-ms-blob-content-md5"])
            self.server.sent.append(name)
            self.answer(201, Last_Modified="Sat, 01 Jan 2022 00:00:00 GMT")

    def do_HEAD(self) -> None:
        name = unquote(urlsplit(self.path).path).removeprefix("/mine/")
        if name not in self.server.blobs:
            self.answer(404, x_ms_error_code="BlobNotFound")
            return
        body, digest = self.server.blobs[name]
        self.send_response(200)
        for header, value in (
            ("Content-Length", str(len(body))), ("Content-MD5", digest), ("ETag", '"0x1"'),
            ("Last-Modified", "Sat, 01 Jan 2022 00:00:00 GMT"), ("x-ms-blob-type", "BlockBlob"),
        ):  # fmt: skip
            self.send_header(header, value)
        self.end_headers()


@pytest.fixture
def storage() -> Iterator[Storage]:
    server = Storage()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    folder = tmp_path / "my squad"
    (folder / "more").mkdir(parents=True)
    (folder / "train-v1.1.json").write_bytes(b"{}" * 1000)
    (folder / "more" / "dev-v1.1.json").write_bytes(b"[]")
    (folder / ".cache").write_text("no")
    return folder


def upload(folder: Path, storage: Storage) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(AZUREML / "upload.py"), "squad", folder, "--account", "mine", "--container", "texts"],
        env={**os.environ, "AZURE_STORAGE_CONNECTION_STRING": storage.connection},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.thorough
def test_a_second_upload_sends_only_what_changed(storage, squad):
    first = upload(squad, storage)
    assert first.returncode == 0, first.stderr
    names = ["texts/squad/more/dev-v1.1.json", "texts/squad/train-v1.1.json"]
    assert sorted(storage.sent) == names
    body, digest = storage.blobs[names[1]]
    assert body == b"{}" * 1000
    assert base64.b64decode(digest) == hashlib.md5(body).digest()
    # Without config.json what would be registered is printed.
    assert "account_name: mine" in first.stdout
    assert "path: azureml://datastores/ontrain/paths/squad/" in first.stdout

    storage.sent.clear()
    (squad / "train-v1.1.json").write_bytes(b"[]" * 1000)  # as long as before
    second = upload(squad, storage)
    assert second.returncode == 0, second.stderr
    assert storage.sent == names[1:]
    assert "squad/more/dev-v1.1.json: was there" in second.stdout


def test_what_the_service_refuses_is_said_in_a_line(storage, squad, monkeypatch, capsys):
    storage.refuse = True
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", storage.connection)
    with pytest.raises(SystemExit) as stopped:
        main("squad", squad, account="mine")
    said = capsys.readouterr().err
    assert stopped.value.code == 1
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1, said


def test_dry_run_and_mistakes_reach_no_service(squad, tmp_path, capsys):
    main("squad", squad, account="mine", dry_run=True)
    dry = capsys.readouterr().out
    assert dry.startswith("squad/more/dev-v1.1.json: 2 bytes\nsquad/train-v1.1.json: 2,000 bytes\n")
    (tmp_path / "empty").mkdir()
    for name, folder, words in (
        ("squat", squad, "there is no data asset 'squat'; there are bert-hdf5-128"),
        ("squad", tmp_path / "nowhere", "there is no folder"),
        ("squad", tmp_path / "empty", "there are no files"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(name, folder, account="mine")
        said = capsys.readouterr().err
        assert stopped.value.code == 2
        assert words in said
        assert len(said.splitlines()) == 1, said
