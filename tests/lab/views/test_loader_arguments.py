"""The arguments are read from the installed PyTorch."""

from __future__ import annotations

import torch

from trueloop.app.web.wire_format import decode_object, encode_json
from trueloop.lab.views.loader_arguments import Query, answer


def test_the_arguments_are_those_of_the_installed_torch():
    reply = decode_object(encode_json(answer(Query())))
    assert reply["torch"] == torch.__version__
    arguments = {each["name"]: each["default"] for each in reply["arguments"]}
    assert {"dataset": "", "batch_size": "1", "drop_last": "False"}.items() <= arguments.items()
