import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from trueloop.core.errors import InvalidConfig, InvalidData, MissingExtra
from trueloop.data.collate import pad_sequences
from trueloop.data.folders import ImageFolder, TextFiles


@pytest.fixture
def pictures(tmp_path):
    """A folder of two classes: dog has one red picture, cat has two in a nested folder."""
    for name in ("dog/1.png", "cat/deep/2.PNG", "cat/1.bmp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 2), (255, 0, 51)).save(path)
    (tmp_path / "dog" / "readme.md").write_text("not an image")
    (tmp_path / "list.csv").write_text("")
    return tmp_path


def test_images_are_float_channels_first_with_the_class_of_their_folder(pictures):
    data = ImageFolder(pictures)
    assert data.classes == ["cat", "dog"]
    assert [path.name for path in data.paths] == ["1.bmp", "2.PNG", "1.png"]
    assert data.labels == [0, 0, 1]
    image, label = data[2]
    assert label == 1
    assert image.dtype == torch.float32
    assert image.shape == (3, 2, 4)
    assert torch.equal(image[:, 0, 0], torch.tensor([255, 0, 51]) / torch.tensor(255.0))
    [(images, labels)] = DataLoader(data, batch_size=3)
    assert images.shape == (3, 3, 2, 4)
    assert labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("size", "shape"), [(5, (5, 5)), ((3, 7), (3, 7))])
def test_images_are_resized_to_height_and_width(pictures, size, shape):
    assert ImageFolder(pictures, size=size)[0][0].shape == (3, *shape)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_have_the_requested_channels(pictures, channels):
    image, _ = ImageFolder(pictures, channels=channels)[0]
    assert image.shape == (channels, 2, 4)
    if channels == 4:
        assert image[3].min() == 1  # opaque


def test_an_unreadable_image_is_reported_with_its_path(pictures):
    (pictures / "cat" / "1.bmp").write_bytes(b"not a picture")
    uninterrupted = (pictures / "dog" / "1.png").read_bytes()
    (pictures / "dog" / "1.png").write_bytes(uninterrupted[: len(uninterrupted) // 2])
    data = ImageFolder(pictures)
    for index, name in ((0, "1.bmp"), (2, "1.png")):
        with pytest.raises(InvalidData, match=f"{name} cannot be read as an image"):
            data[index]


def test_pixels_with_more_than_8_bits_are_refused(pictures):
    deep_image = np.full((2, 4), 40_000, dtype=np.uint16)
    Image.fromarray(deep_image).save(pictures / "dog" / "1.png")
    with pytest.raises(InvalidData, match=r"1\.png has pixels of mode I;16"):
        ImageFolder(pictures)[2]


def test_folders_without_images_are_refused(pictures, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InvalidData, match="has no folders"):
        ImageFolder(empty)
    with pytest.raises(InvalidData, match="nowhere cannot be read"):
        ImageFolder(empty / "nowhere")
    (pictures / "eel").mkdir()
    with pytest.raises(InvalidData, match="eel has no images"):
        ImageFolder(pictures)
    with pytest.raises(InvalidConfig, match="channels is 2"):
        ImageFolder(pictures, channels=2)


def test_a_missing_pillow_is_reported_with_the_install_command(pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"trueloop\[demo\]"):
        ImageFolder(pictures)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5), st.none() | st.integers(1, 12))
def test_pieces_contain_every_byte_of_every_document(tmp_path_factory, documents, length):
    folder = tmp_path_factory.mktemp("texts")
    for i, document in enumerate(documents):
        (folder / f"{i}.txt").write_bytes(document)
    if not any(documents):
        with pytest.raises(InvalidData, match="There is no text"):
            TextFiles(folder, length)
        return
    data = TextFiles(folder, length)
    pieces = [data[i] for i in range(len(data))]
    assert b"".join(bytes(piece.tolist()) for piece in pieces) == b"".join(documents)
    assert {piece.dtype for piece in pieces} == {torch.int64}
    assert max(len(piece) for piece in pieces) <= (length or 30)
    expected = sum(-(-len(d) // (length or max(len(d), 1))) for d in documents)
    assert len(pieces) == expected


def test_text_files_are_selected_by_folder_pattern_or_name(tmp_path):
    (tmp_path / "b.txt").write_text("bb")
    (tmp_path / "a.txt").write_text("ä")
    (tmp_path / "c.md").write_text("ccc")
    assert [path.name for path in TextFiles(tmp_path).paths] == ["a.txt", "b.txt"]
    assert TextFiles(tmp_path)[0].tolist() == [0xC3, 0xA4]
    assert TextFiles(tmp_path, pattern="*.md")[0].tolist() == [99, 99, 99]
    assert [piece.tolist() for piece in TextFiles([tmp_path / "b.txt", str(tmp_path / "c.md")])] == [[98] * 2, [99] * 3]
    [(padded, mask)] = DataLoader(TextFiles(tmp_path / "c.md", 2), batch_size=2, collate_fn=pad_sequences)
    assert padded.tolist() == [[99, 99], [99, 0]]
    assert mask.sum() == 3


def test_unreadable_text_files_are_reported(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(InvalidData, match=r"a\.txt cannot be read"):
        TextFiles(path)
    with pytest.raises(InvalidData, match="There is no text in 0 files"):
        TextFiles(tmp_path)
    path.write_text("abc")
    data = TextFiles(path)
    path.write_text("a")
    with pytest.raises(InvalidData, match="became shorter"):
        data[0]
    path.unlink()
    with pytest.raises(InvalidData, match="cannot be read"):
        data[0]
    with pytest.raises(InvalidConfig, match="length is 0"):
        TextFiles(path, 0)
