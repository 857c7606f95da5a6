"""A worker hears whole lines however they were cut, and knows when the server has hung up."""

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
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Channel(theirs.fileno(), theirs.fileno())


def test_lines_arrive_whole(ends: tuple[socket.socket, Channel]):
    ours, channel = ends
    assert channel.receive() == []
    ours.sendall(b'{"do": "ru')
    assert channel.receive(1) == []
    ours.sendall(b'n"}\n{"do": "pause"}\n{"d')
    assert channel.receive(1) == [{"do": "run"}, {"do": "pause"}]
    ours.sendall(b'o": "step"}\n')
    assert channel.receive(1) == [{"do": "step"}]


def test_a_line_that_is_none_is_refused_and_those_around_it_are_heard(ends: tuple[socket.socket, Channel]):
    ours, channel = ends
    ours.sendall(b'{"do": "pause"}\nwhat?\n{"do": "run"}\n')
    assert channel.receive(1) == [{"do": "pause"}]
    with pytest.raises(InvalidConfig, match="not JSON"):
        channel.receive(1)
    assert channel.receive() == [{"do": "run"}]


def test_the_end_is_noticed(ends: tuple[socket.socket, Channel]):
    ours, channel = ends
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        channel.receive(None)


def test_a_line_without_end_is_not_kept_for_ever(ends: tuple[socket.socket, Channel]):
    ours, channel = ends

    def talk() -> None:
        ours.sendall(b"x" * (MAX_LINE_BYTES + (1 << 18)))
        ours.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=talk)
    sender.start()
    with pytest.raises(EOFError):
        while True:
            channel.receive(1)
    refused_before_its_end = os.read(channel._read, 1 << 16)
    while os.read(channel._read, 1 << 16):
        pass
    sender.join()
    assert refused_before_its_end


def test_texts_and_frames_stand_behind_their_length(ends: tuple[socket.socket, Channel]):
    ours, channel = ends
    channel.send_json({"loss": float("nan")})
    channel.send_frame(b"\x00\x01")
    data = ours.recv(1000)
    length, kind = LENGTH.unpack_from(data)
    assert kind == TEXT
    assert json.loads(data[LENGTH.size : LENGTH.size + length]) == {"loss": "nan"}
    assert data[LENGTH.size + length :] == LENGTH.pack(2, FRAME) + b"\x00\x01"
