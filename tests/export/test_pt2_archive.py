"""Archives that torch.export.load would unpickle or evaluate are rejected; torch would run code from each of them."""

import contextlib
import io
import json
import logging
import os
import pickle
import zipfile

import pytest
import torch

from trueloop.core.errors import CheckpointError
from trueloop.export.pt2_archive import refuse_code


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture
def rewritten(tiny_artifacts, tmp_path):
    """Return a function that copies the archive of a text model, with changed and added members."""

    def write(change=lambda name, content: content, added=()):
        source, path = tiny_artifacts.folder("text") / "model.pt2", tmp_path / "model.pt2"
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
            top = old.namelist()[0].partition("/")[0]
            for name in old.namelist():
                inner = name.partition("/")[2]
                new.writestr(name, change(inner, old.read(name)))
            for name, content in added:
                new.writestr(f"{top}/{name}", content)
        return path

    return write


def pickled(mark):
    buffer = io.BytesIO()
    torch.save(Bomb(mark), buffer)
    return buffer.getvalue()


def test_what_trueloop_wrote_passes(tiny_artifacts, rewritten):
    for what in ("table", "text"):
        refuse_code(tiny_artifacts.folder(what) / "model.pt2")
    refuse_code(rewritten())


@pytest.mark.parametrize("operator", ["_operator.floordiv", "math.ceil", "torch.sym_max"])
def test_arithmetic_with_sizes_passes(rewritten, operator):
    refuse_code(rewritten(replaced(b"torch.ops.aten.embedding.default", operator.encode())))


def test_example_inputs_are_never_unpickled(rewritten, tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    path = rewritten(lambda name, content: pickled(mark) if name == "data/sample_inputs/model.pt" else content)
    with pytest.raises(CheckpointError, match="example inputs"):
        refuse_code(path)
    assert not mark.exists()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with contextlib.suppress(AssertionError):  # raised after unpickling, because the object is not a tuple
        torch.export.load(path)
    assert mark.exists(), "torch itself runs the pickle, which is why it is rejected"


def replaced(old, new):
    def change(name, content):
        return content.replace(old, new) if name.endswith(".json") else content

    return change


HOSTILE = {
    "a pickled weight": lambda write: write(replaced(b'"use_pickle": false', b'"use_pickle": true')),
    "an object among the constants": lambda write: write(
        lambda name, content: (
            json.dumps({"config": {"x": {"path_name": "opaque_obj_0", "use_pickle": True}}}).encode()
            if name == "data/constants/model_constants_config.json"
            else content
        )
    ),
    "weights of the old kind": lambda write: write(added=[("data/weights/model.pt", pickle.dumps({}))]),
    "the oldest format": lambda write: write(added=[("serialized_exported_program.json", b"{}")]),
    "a compiled library": lambda write: write(added=[("data/aotinductor/model/code.so", b"\x7fELF")]),
    "a second member of one name": lambda write: write(added=[("models/model.json", b"{}")]),
    "torch.os.system": lambda write: write(replaced(b"torch.ops.aten.embedding.default", b"torch.os.system")),
    "torch.hub.load": lambda write: write(replaced(b"torch.ops.aten.embedding.default", b"torch.hub.load")),
    "a method by name": lambda write: write(replaced(b"torch.ops.aten.embedding.default", b"_operator.methodcaller")),
    "a size that runs": lambda write: write(replaced(b"Symbol('", b"__import__('os').system('")),
    "a size with an attribute": lambda write: write(replaced(b"Symbol('", b"Symbol.__class__.mro('")),
    "a size with a lambda": lambda write: write(replaced(b"Symbol('", b"(lambda x: x)('")),
    "a symbol that is code": lambda write: write(replaced(b"Symbol('s", b"Symbol('__import__")),
    "a tree that imports": lambda write: write(replaced(b"builtins.tuple", b"collections.defaultdict")),
    "a tree with an enumeration": lambda write: write(
        replaced(rb"\"context\": \"null\"", rb"\"context\": \"{\\\"__enum__\\\": 1}\"")
    ),
    "a graph that is no JSON": lambda write: write(
        lambda name, content: b"[" * 200_000 if name == "models/model.json" else content
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_what_would_run_is_refused(rewritten, hostile):
    with pytest.raises(CheckpointError, match="was not opened: it contains"):
        refuse_code(hostile(rewritten))


def test_an_archive_whose_members_cannot_be_read_is_refused(rewritten):
    path = rewritten()
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    while at >= 0:
        content[at + 8] |= 1  # marks the member as encrypted
        at = content.rfind(b"PK\x01\x02", 0, at)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="no readable archive"):
        refuse_code(path)


def test_no_archive_is_refused(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(CheckpointError, match="no readable archive"):
        refuse_code(path)
