"""kubectl's own errors are kept for one message; whatever else is written, a question too, is passed on at once."""

import os

import pytest

from gpu_device_plugin.kubernetes.kubectl_messages import Messages

PROXY = "E1130 07:12:23.155012   30066 proxy_server.go:147] "
CACHE = "E1130 07:12:29.578174   30285 memcache.go:265] "


def heard(*pieces: str) -> tuple[str, str]:
    """Return what is passed on of some pieces, and the problem."""
    reader, writer = os.pipe()
    try:
        messages = Messages(writer)
        for piece in pieces:
            messages.feed(piece.encode())
        messages.end()
    finally:
        os.close(writer)
    with os.fdopen(reader, newline="") as passed:
        return passed.read(), messages.problem


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (f"{PROXY}Error while proxying request: dial tcp: refused\n", "dial tcp: refused"),
        (f'{CACHE}"Unhandled Error" err="Get \\"http://x\\": refused" logger="L"\n', 'Get "http://x": refused'),
        ("error: stat /nope: no such file or directory\n", "stat /nope: no such file or directory"),
        (
            "Error from server: a\nError from server: b\nError from server: a\n",
            "Error from server: a; Error from server: b",
        ),
        (
            f"{CACHE}one\n" * 5 + "The connection to the server x was refused\n",
            "The connection to the server x was refused",
        ),
        ("error: no end", "no end"),
    ],
)
def test_errors_of_kubectl_become_one(written: str, problem: str) -> None:
    assert heard(written) == ("", problem)
    assert heard(*written) == ("", problem)  # in pieces


@pytest.mark.parametrize(
    "written",
    ["Password for E1: ", "Error: password\n", "\n", "W1130 07:12:23.155012 1 x.go:1] old\n", "E113", "Erro\r50 %\r"],
)
def test_all_else_is_passed_on(written: str) -> None:
    assert heard(written) == (written, "")
    assert heard(*written) == (written, "")


def test_a_question_is_not_held_back() -> None:
    reader, writer = os.pipe()
    messages = Messages(writer)
    messages.feed(b"error: \nPassword: ")
    assert os.read(reader, 100) == b"Password: "
    os.close(reader)
    messages.feed(b"nobody reads this\n")
    os.close(writer)
