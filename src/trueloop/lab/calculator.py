"""The worker process that answers the pages' queries that need PyTorch, one at a time and without state."""

from collections.abc import Mapping
from typing import Any

from trueloop.app.web.wire_format import error_body
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import parse_record
from trueloop.lab.channel import Channel
from trueloop.lab.views.load import views


def serve(read_fd: int, write_fd: int) -> None:
    """Answer ``{"view", "query"}`` with ``{"answer"}`` or ``{"error"}``, in order, until the server disconnects."""
    channel = Channel(read_fd, write_fd)
    while True:
        try:
            for message in channel.receive(None):
                channel.send_json(_reply(message))
        except EOFError:
            return


def _reply(message: Mapping[str, Any]) -> Mapping[str, Any]:
    view = views()[message["view"]]
    try:
        return {"answer": view.answer(parse_record(view.query_type, message["query"]))}
    except InvalidConfig as error:
        return {"error": error_body(error)}
