"""A channel joins the parts of lines, and reports when the server has disconnected."""

from __future__ import annotations

import json
import os
import socket
import threading

import pytest

from trueloop.app.web.wire_format import FRAME, LENGTH, TEXT
from trueloop.core.errors import InvalidConfig
from trueloop.lab.channel import MAX_LINE_BYTES, Channel


@pytest.fixture
def server_and_channel():
    server_end, worker_end = socket.socketpair()
    with server_end, worker_end:
        yield server_end, Channel(worker_end.fileno(), worker_end.fileno())


def test_lines_arrive_whole(server_and_channel: tuple[socket.socket, Channel]):
    server_end, channel = server_and_channel
    assert channel.receive() == []
    server_end.sendall(b'{"do": "ru')
    assert channel.receive(1) == []
    server_end.sendall(b'n"}\n{"do": "pause"}\n{"d')
    assert channel.receive(1) == [{"do": "run"}, {"do": "pause"}]
    server_end.sendall(b'o": "step"}\n')
    assert channel.receive(1) == [{"do": "step"}]


def test_an_invalid_line_is_refused_and_the_others_are_received(server_and_channel: tuple[socket.socket, Channel]):
    server_end, channel = server_and_channel
    server_end.sendall(b'{"do": "pause"}\nwhat?\n{"do": "run"}\n')
    assert channel.receive(1) == [{"do": "pause"}]
    with pytest.raises(InvalidConfig, match="not JSON"):
        channel.receive(1)
    assert channel.receive() == [{"do": "run"}]


def test_a_disconnected_server_is_reported(server_and_channel: tuple[socket.socket, Channel]):
    server_end, channel = server_and_channel
    server_end.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        channel.receive(None)


def test_the_length_of_a_line_is_limited(server_and_channel: tuple[socket.socket, Channel]):
    server_end, channel = server_and_channel

    def send_long_line() -> None:
        server_end.sendall(b"x" * (MAX_LINE_BYTES + (1 << 18)))
        server_end.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send_long_line)
    sender.start()
    with pytest.raises(EOFError):
        while True:
            channel.receive(1)
    refused_before_its_end = os.read(channel._read, 1 << 16)
    while os.read(channel._read, 1 << 16):
        pass
    sender.join()
    assert refused_before_its_end


def test_messages_are_prefixed_with_their_length(server_and_channel: tuple[socket.socket, Channel]):
    server_end, channel = server_and_channel
    channel.send_json({"loss": float("nan")})
    channel.send_frame(b"\x00\x01")
    data = server_end.recv(1000)
    length, kind = LENGTH.unpack_from(data)
    assert kind == TEXT
    assert json.loads(data[LENGTH.size : LENGTH.size + length]) == {"loss": "nan"}
    assert data[LENGTH.size + length :] == LENGTH.pack(2, FRAME) + b"\x00\x01"
