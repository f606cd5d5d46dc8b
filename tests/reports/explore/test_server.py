"""The explorer's server on a real socket: what it serves, whom it refuses, and how it stops."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from paretograd.cli.app import app
from paretograd.errors import InputError
from paretograd.reports.explore import serving
from paretograd.reports.explore.server import LARGEST

BODY = json.dumps({"gradients": [[3, 0], [-1, 1]], "rules": ["mgda"]})
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as address:
        found = urlsplit(address)
        assert found.hostname == "127.0.0.1"
        assert found.port is not None
        yield found.port


def send(port: int, method: str, path: str, body: str | bytes | None = None, **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        text = response.read().decode()
        kind = response.getheader("Content-Type", "")
        return response.status, json.loads(text) if kind == "application/json" else text
    finally:
        connection.close()


def test_it_serves_the_page_with_a_policy(port: int) -> None:
    with urlopen(f"http://127.0.0.1:{port}/") as response:
        text = response.read().decode()
        policy = response.headers["Content-Security-Policy"]
    assert text.startswith("<!DOCTYPE html>")
    assert "$" not in text.partition("<script")[0]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]


def test_it_answers(port: int) -> None:
    status, found = send(port, "POST", "/answer", BODY, **JSON)
    assert status == 200
    assert found["gamma"] == "0.7276"


def test_one_connection_has_many_answers(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(3):
        connection.request("POST", "/answer", BODY, JSON)
        assert json.loads(connection.getresponse().read())["gamma"] == "0.7276"
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:1234", "Origin": "http://127.0.0.1:1234"}, 403),
        ({"Host": "localhost:1234", "Origin": "http://localhost:1234"}, 200),
        ({"Host": "LOCALHOST"}, 200),
    ],
    ids=str,
)
def test_only_its_own_page_may_talk_to_it(port: int, headers: dict[str, str], status: int) -> None:
    found = send(port, "POST", "/answer", BODY, **JSON, **headers)
    assert found[0] == status
    if status == 403:
        assert "127.0.0.1 or localhost" in found[1]["error"]
        assert send(port, "GET", "/", **headers)[0] == 403


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("[" * 30000, "not JSON"),
        ("1" * 5000, "not JSON"),
        ('{"gradients": [[NaN, 0], [0, 1]], "rules": []}', "NaN is no number"),
        ('{"gradients": [[1e999, 0], [0, 1]], "rules": []}', "gradient 0 is inf"),
        ('{"gradients": [[1, 0]], "rules": []}', "got 1 of them"),
        ("null", '"gradients"'),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_request_gets_words_and_no_traceback(
    port: int, body: str | bytes, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, found = send(port, "POST", "/answer", body, **JSON)
    assert status == 422
    assert words in found["error"]
    assert capfd.readouterr() == ("", "")


def test_other_paths_kinds_and_sizes_are_refused(port: int) -> None:
    assert send(port, "GET", "/etc/passwd")[0] == 404
    assert send(port, "GET", "/../page.py")[0] == 404
    assert send(port, "POST", "/", BODY, **JSON)[0] == 404
    assert send(port, "POST", "/answer", BODY, Content_Type="text/plain")[0] == 415
    assert send(port, "POST", "/answer", Content_Length="-1", **JSON)[0] == 411
    # Refused by the header alone: nothing of that size is read.
    status, found = send(port, "POST", "/answer", Content_Length="9" * 30, **JSON)
    assert status == 413
    assert f"at most {LARGEST} bytes" in found["error"]
    assert send(port, "POST", "/answer", Content_Length=str(LARGEST + 1), **JSON)[0] == 413


def test_a_port_that_is_taken(port: int) -> None:
    with pytest.raises(InputError, match=f"cannot serve on port {port}"), serving(port):
        pass


def test_the_command_says_in_words_that_a_port_is_taken(port: int) -> None:
    done = CliRunner().invoke(app, ["explore", "--no-browser", "--port", str(port)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: cannot serve on port {port}")


def test_it_stops(port: int) -> None:
    with serving() as address:
        other = urlsplit(address).port
        assert other != port
    with pytest.raises(ConnectionRefusedError):
        send(other or 0, "GET", "/")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for a process")
def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-u", "-m", "paretograd", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert send(urlsplit(address).port or 0, "POST", "/answer", BODY, **JSON)[0] == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert out.endswith("stopped\n")
