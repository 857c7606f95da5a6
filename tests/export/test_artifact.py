"""A damaged, exchanged or forged artifact is rejected by its checksums before anything in it is used."""

import json
import os

import pytest

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.core.sealed_json import seal
from trueloop.export import exported_model
from trueloop.export.artifact import open_artifact
from trueloop.export.exported_model import Model


@pytest.fixture
def copied(tiny_artifacts, tmp_path):
    return tiny_artifacts.copy(tmp_path / "copy")


def resealed(folder, change):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_bytes(seal(content))


def test_it_opens_by_folder_and_by_file(tiny_artifacts):
    folder = tiny_artifacts.folder()
    digests = {open_artifact(path).digest for path in (folder, folder / "manifest.json", folder / "model.pt2")}
    assert digests == {tiny_artifacts.exported["table", "pt2"].digest}
    assert open_artifact(folder).name == "table"


def test_a_flipped_bit_is_seen_before_the_file_is_opened(copied, monkeypatch):
    path = copied / "model.pt2"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(exported_model, "open_model", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(CheckpointError, match=r"model\.pt2 does not match its checksum"):
        Model.open(copied)


DAMAGES = {
    "cut short": lambda folder: os.truncate(folder / "model.pt2", 100),
    "gone": lambda folder: (folder / "model.pt2").unlink(),
    "a link": lambda folder: (
        (folder / "model.pt2").rename(folder.with_suffix(".pt2")),
        (folder / "model.pt2").symlink_to(folder.with_suffix(".pt2")),
    ),
    "edited": lambda folder: (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text().replace('"yes"', '"YES"')
    ),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "newer": lambda folder: resealed(folder, lambda content: content.update(schema=99)),
    "leads elsewhere": lambda folder: resealed(
        folder, lambda content: content.update(files={"../../secret": content["files"]["model.pt2"]})
    ),
    "another kind": lambda folder: resealed(folder, lambda content: content.update(kind="pickle")),
    "a size that is none": lambda folder: resealed(
        folder, lambda content: content["inputs"][0]["shape"][0].update(lowest=-1)
    ),
    "unknown words": lambda folder: resealed(folder, lambda content: content["answer"].update(run="rm")),
    "no object": lambda folder: (folder / "manifest.json").write_bytes(b"[]"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_not_whole_is_refused(copied, damage):
    damage(copied)
    with pytest.raises(CheckpointError):
        open_artifact(copied)


def test_another_artifact_than_expected_is_refused(tiny_artifacts):
    folder = tiny_artifacts.folder()
    digest = open_artifact(folder).digest
    assert open_artifact(folder, expected=digest).digest == digest
    assert open_artifact(folder, expected=f"sha256:{digest[:16]}").digest == digest
    with pytest.raises(CheckpointError, match="not the requested artifact"):
        open_artifact(folder, expected="0" * 64)
    with pytest.raises(InvalidConfig, match="too short"):
        open_artifact(folder, expected=digest[:4])


def test_a_folder_that_is_no_artifact_is_told_what_to_do(tmp_path):
    with pytest.raises(CheckpointError) as raised:
        open_artifact(tmp_path)
    assert "trueloop export" in raised.value.fix
