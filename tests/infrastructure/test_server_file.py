"""How the command line finds a running server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure import server_file
from infrastructure.server_file import ServerInfo


def info(**fields: int) -> ServerInfo:
    return ServerInfo(url="http://127.0.0.1:8000", version="1.2.3", **fields)


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_server_writes_is_what_others_read(tmp_path: Path) -> None:
    written = info()
    server_file.write(tmp_path, written)
    assert server_file.read(tmp_path) == server_file.running(tmp_path) == written
    assert written.pid == os.getpid()


def test_only_its_owner_may_read_it_and_no_draft_is_left(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = server_file.write(tmp_path, info())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["server.json"]


def test_a_later_server_replaces_it(tmp_path: Path) -> None:
    server_file.write(tmp_path, info(pid=ended_process()))
    server_file.write(tmp_path, info())
    assert server_file.running(tmp_path) is not None


def test_the_file_of_a_dead_process_is_stale(tmp_path: Path) -> None:
    server_file.write(tmp_path, info(pid=ended_process()))
    assert server_file.read(tmp_path) is not None
    assert server_file.running(tmp_path) is None


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_an_impossible_process_is_stale(pid: int) -> None:
    assert server_file.is_stale(info(pid=pid))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 1}', "\udcff"])
def test_a_file_that_is_not_legible_is_no_server(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_bytes(text.encode(errors="surrogateescape"))
    assert server_file.read(tmp_path) is None


def test_no_file_is_no_server(tmp_path: Path) -> None:
    assert server_file.read(tmp_path / "nowhere") is None
    server_file.remove(tmp_path / "nowhere")


def test_a_server_removes_its_own_file_only(tmp_path: Path) -> None:
    server_file.write(tmp_path, info(pid=ended_process()))
    server_file.remove(tmp_path)
    assert server_file.read(tmp_path) is not None
    server_file.write(tmp_path, info())
    server_file.remove(tmp_path)
    assert server_file.read(tmp_path) is None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("box.example", "http://box.example:80"),
    ],
)
def test_a_listening_address_becomes_one_to_connect_to(host: str, url: str) -> None:
    assert server_file.local_url(host, 80) == url
