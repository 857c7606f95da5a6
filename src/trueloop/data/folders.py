"""Datasets on disk: a folder of images per class, and text files as sequences of bytes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from trueloop.core.errors import InvalidConfig, InvalidData, MissingExtra

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images in one folder per class: ROOT/cat/1.png, ROOT/dog/deep/2.jpg.

    A sample is ``(image, class)``: float32 [channels, height, width] in [0, 1], and the index of the folder's name in
    the sorted ``classes``. Files without an image suffix are ignored.

    Args:
        root: folder that contains the class folders.
        size: (height, width) to resize to, or one number for both; None = unchanged.
        channels: number of channels: 1 (grey), 3 (colour) or 4 (with transparency).

    Raises:
        InvalidConfig: another number of channels is given.
        InvalidData: there is no class folder, or one of them has no images.
        MissingExtra: Pillow is not installed.
    """

    def __init__(self, root: str | Path, size: int | tuple[int, int] | None = None, channels: int = 3) -> None:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtra("PIL", "demo") from error
        if channels not in MODES:
            raise InvalidConfig(f"channels is {channels}.", fix="Choose 1 (grey), 3 (colour) or 4 (with transparency).")
        self._open = Image.open
        self._mode = MODES[channels]
        self.size = (size, size) if isinstance(size, int) else size
        root = Path(root)
        folders = sorted(path for path in _list_folder(root) if path.is_dir())
        if not folders:
            raise InvalidData(f"{root} has no folders.", fix="Put the images of each class into a folder of its own.")
        self.classes = [folder.name for folder in folders]
        self.paths: list[Path] = []
        self.labels: list[int] = []
        for label, folder in enumerate(folders):
            images = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
            if not images:
                raise InvalidData(
                    f"{folder} has no images.",
                    why="It would count as a class without samples.",
                    fix="Remove the folder, or put images into it.",
                )
            self.paths += images
            self.labels += [label] * len(images)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.paths[index]
        try:
            with self._open(path) as image:
                pixels = self._to_pixels(image, path)
        except (OSError, SyntaxError, ValueError) as error:  # errors of Pillow for different formats
            raise InvalidData(
                f"{path} cannot be read as an image: {error}", fix="Replace the file, or remove it from the folder."
            ) from error
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), self.labels[index]

    def _to_pixels(self, image: Any, path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return [height, width, channels] in [0, 1]."""
        if image.mode.startswith(("I", "F")):
            raise InvalidData(
                f"{path} has pixels of mode {image.mode}, with more than 8 bits.",
                why="When Pillow converts them to 8 bits, every value above 255 becomes 255.",
                fix="Convert the files, or write a dataset that rescales their range.",
            )
        image = image.convert(self._mode)
        if self.size is not None:
            image = image.resize((self.size[1], self.size[0]))
        pixels = np.asarray(image, dtype=np.float32) / np.float32(255)
        return pixels if pixels.ndim == 3 else pixels[:, :, None]


class TextFiles(Dataset[Tensor]):
    """Text files as sequences of bytes: a sample is a document, or a piece of one, as int64 [T] in [0, 255].

    The text is not decoded, so any encoding can be read, and only requested pieces are read.

    Args:
        paths: files and folders; in a folder, every file that matches ``pattern`` is used, in sorted order.
        length: largest number of bytes in a piece of a document; None = full documents.
        pattern: shell pattern for the file names in a folder.

    Raises:
        InvalidData: there is no file, or all files are empty.
    """

    def __init__(
        self, paths: str | Path | Iterable[str | Path], length: int | None = None, *, pattern: str = "*.txt"
    ) -> None:
        if length is not None and length < 1:
            raise InvalidConfig(f"length is {length}.", fix="Set 1 byte or more.")
        self.paths = _find_files(paths, pattern)
        sizes = [_size(path) for path in self.paths]
        # (file, first byte, number of bytes) per piece; an empty file has no pieces
        self._pieces = [
            (file_index, start, min(length or size, size - start))
            for file_index, size in enumerate(sizes)
            for start in range(0, size, length or size or 1)
        ]
        if not self._pieces:
            raise InvalidData(
                f"There is no text in {len(self.paths)} files: {paths}.",
                fix=f"In folders, only files that match {pattern} are read.",
            )

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> Tensor:
        file_index, start, size = self._pieces[index]
        path = self.paths[file_index]
        try:
            with path.open("rb") as stream:
                stream.seek(start)
                piece = stream.read(size)
        except OSError as error:
            raise _unreadable(path, error) from error
        if len(piece) != size:
            raise InvalidData(f"{path} became shorter during the run.", fix="Do not change the files during a run.")
        return torch.frombuffer(bytearray(piece), dtype=torch.uint8).long()


def _find_files(paths: str | Path | Iterable[str | Path], pattern: str) -> list[Path]:
    entries = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files: list[Path] = []
    for path in map(Path, entries):
        files += sorted(p for p in path.rglob(pattern) if p.is_file()) if path.is_dir() else [path]
    return files


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidData:
    return InvalidData(f"{path} cannot be read: {error.strerror or error}.", fix="Check the path and its permissions.")
