"""Input files are read: images, texts, tables; files that do not fit have clear errors."""

import struct

import numpy as np
import pytest
from PIL import Image

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.export.artifact import Description
from trueloop.export.input_files import parse_json_samples, read_samples
from trueloop.export.io_description import Array, Reading, SizeRange


def fixed(*sizes):
    return tuple(SizeRange(lowest=size, highest=size) for size in sizes)


def describe(reading, *shape, dtype="float32", names=("input",)):
    arrays = tuple(Array(name=name, dtype=dtype, shape=(SizeRange(lowest=1), *shape)) for name in names)
    return Description(kind="pt2", inputs=arrays, outputs=arrays[:1], reading=reading)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_pictures_are_read_as_in_training(tmp_path, mode, channels):
    shape = (4, 5) if mode == "L" else (4, 5, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.PNG")
    description = describe(Reading(kind="image", mode=mode, divide=255.0), *fixed(channels, 4, 5))
    ((found,),) = read_samples(description, tmp_path / "a.PNG")
    planes = pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
    np.testing.assert_array_equal(found, (planes / 255).astype("f4"))


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (Image.new("L", (5, 5)), "5 by 5 pixels"),
        (Image.new("RGBA", (5, 4)), "mode RGBA"),
        (Image.new("P", (5, 4)), "mode P"),
    ],
)
def test_pictures_that_do_not_fit(tmp_path, picture, message):
    picture.save(tmp_path / "a.png")
    with pytest.raises(InvalidData, match=message):
        read_samples(describe(Reading(kind="image"), *fixed(1, 4, 5)), tmp_path / "a.png")


def test_what_is_no_picture(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with pytest.raises(InvalidData, match="not a readable image|cannot be read"):
        read_samples(describe(Reading(kind="image"), *fixed(1, 4, 5)), tmp_path / "a.png")


@pytest.mark.parametrize("kind", ["image", "table", "text"])
def test_a_file_is_one_input_of_a_shape_that_fits(tmp_path, kind):
    Image.new("L", (5, 4)).save(tmp_path / "a.png")
    (tmp_path / "a.csv").write_text("1\n")
    (tmp_path / "a.txt").write_text("a")
    path = tmp_path / {"image": "a.png", "table": "a.csv", "text": "a.txt"}[kind]
    reading = Reading(kind=kind, columns=("a",))
    with pytest.raises(InvalidConfig, match=r"has several inputs \(left, right\), but only one"):
        read_samples(describe(reading, *fixed(1, 4, 5), names=("left", "right")), path)
    if kind == "image":
        with pytest.raises(InvalidConfig, match="which is not an image"):
            read_samples(describe(reading, *fixed(20)), path)


def test_a_picture_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "a.bmp"
    Image.new("L", (5, 4)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:18] + struct.pack("<ii", 60_000, 60_000) + content[26:])
    with pytest.raises(InvalidData, match="decompression bomb"):
        read_samples(describe(Reading(kind="image"), *fixed(1, 4, 5)), path)


TABLE = describe(Reading(kind="table", columns=("a", "b")), *fixed(2))


@pytest.mark.parametrize(
    "text", ["b,a\n2,1\n4,3\n", "1,2\n3,4", "\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n", '"a"," b "\n1,2\n3,4\n']
)
def test_tables_with_and_without_names(tmp_path, text):
    (tmp_path / "t.csv").write_bytes(text.encode())
    found = read_samples(TABLE, tmp_path / "t.csv")
    np.testing.assert_array_equal(np.stack([row for (row,) in found]), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1\n", "Line 2 has 1 cells"),
        ("a,b\n1,x\n", "Line 2 has no number for b"),
        ("a,b\n1,nan\n", "Line 2 contains NaN"),
        ("a,a\n1,2\n", "same name"),
        ("a,b\n", "no row"),
        ("a,c\n1,2\n", "column 'c'"),
        ("a\n1\n", "lacks 1 column: b"),
        ("a,b\n1,1e39\n", "a number that float32 cannot"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InvalidData, match=rf"t\.csv: .*{message}"):
        read_samples(TABLE, tmp_path / "t.csv")


def test_texts_are_utf8(tmp_path):
    description = describe(Reading(kind="text", length=8), SizeRange(lowest=1, highest=8), dtype="int64")
    (tmp_path / "t.txt").write_text("né")
    ((found,),) = read_samples(description, tmp_path / "t.txt")
    assert found.tolist() == list("né".encode())
    (tmp_path / "t.txt").write_bytes(b"n\xe9")
    with pytest.raises(InvalidData, match="not UTF-8"):
        read_samples(description, tmp_path / "t.txt")


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ("(100000000000000,)", "<f8", "not a readable array: Unable to allocate"),
        ("(99999999999999999999,)", "<f8", "not a readable array"),
        ("(True,)", "<f8", "not a readable array"),
        ("(100000000000000, 0)", "<f8", "no number"),
        ("(100000000000000,)", "|V0", "no number"),
    ],
)
def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path, shape, kind, message):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16))
    with pytest.raises(InvalidData, match=message):
        read_samples(describe(Reading(), *fixed(2)), tmp_path / "a.npy")


def test_models_of_several_inputs_take_them_by_name(tmp_path):
    two = describe(Reading(), *fixed(2), names=("left", "right"))
    (first, second) = parse_json_samples(two, '{"inputs": {"left": [[1, 2], [3, 4]], "right": [[5, 6], [7, 8]]}}')
    assert [each.tolist() for each in first + second] == [[1, 2], [5, 6], [3, 4], [7, 8]]
    for text, message in (
        ('{"inputs": {"left": [1, 2]}}', "left, right"),
        ('{"inputs": [1, 2]}', "left, right"),
        ('{"inputs": {"left": [[1, 2]], "right": [[5, 6], [7, 8]]}}', "same number of each"),
    ):
        with pytest.raises((InvalidConfig, InvalidData)) as raised:
            parse_json_samples(two, text)
        assert message in raised.value.fix
    np.save(tmp_path / "a.npy", np.zeros((1, 2)))
    with pytest.raises(InvalidConfig, match="only one was given"):
        read_samples(two, tmp_path / "a.npy")
