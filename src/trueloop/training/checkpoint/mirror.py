"""Mirror the checkpoints of a run to object storage, in which files cannot be renamed.

    URL/checkpoints/update-000000123/model.safetensors ... manifest.json

The manifest is uploaded last and removed first: a folder without a manifest is not a checkpoint. Uploaded files are
only used again if their manifest matches. Downloaded checkpoints are checked like all others.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from trueloop.core.errors import CheckpointError, InvalidConfig, MissingExtra
from trueloop.training.checkpoint.checkpoints import FOLDER, CheckpointFolder
from trueloop.training.checkpoint.manifest import FILE, MANIFEST, Checkpoint, NewerSchemaError, read_manifest

LoadedCheckpoint = tuple[Checkpoint, dict[str, Any]]


class MirrorError(CheckpointError):
    """The storage cannot be read or written; training continues without it, and later saves try again."""


class Mirror:
    """One run's checkpoints at one URL of an object store; only one run at a time may write there.

    Args:
        url: a URL for fsspec: "s3://bucket/run", "gs://bucket/run", "file:///mnt/backup/run".

    Raises:
        MissingExtra: fsspec is not installed.
        InvalidConfig: the protocol is unknown, or the package for it is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, path = _file_system(url)
        self._root = f"{path.rstrip('/')}/checkpoints"
        self._verified: set[str] = set()

    def sync(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Upload the checkpoints that the mirror lacks, newest first, then remove all others from it.

        Args:
            checkpoints: the local checkpoints, oldest first; those that are removed locally meanwhile are skipped.

        Raises:
            MirrorError: the storage cannot be read or written.

        Cost: blocks for the upload; if nothing is missing, only lists the files of each checkpoint.
        """
        with self._storage_errors("written"):
            for checkpoint in reversed(checkpoints):
                try:
                    self._upload(checkpoint)
                except (OSError, CheckpointError):
                    if checkpoint.path.exists():
                        raise
            for name in self._folders() - {checkpoint.path.name for checkpoint in checkpoints}:
                self._remove(name)

    def clear(self) -> None:
        """Remove every checkpoint, for a run that starts over.

        Raises:
            MirrorError: the storage cannot be read or written.
        """
        self.sync([])

    def load_newer(self, after_update: int, folder: CheckpointFolder) -> tuple[LoadedCheckpoint | None, list[str]]:
        """Download the newest complete checkpoint.

        Args:
            after_update: number of updates; only checkpoints after more updates are downloaded.
            folder: folder that imports the checkpoint.

        Returns:
            The local checkpoint and its state, if any; and a sentence on each skipped checkpoint.

        Raises:
            MirrorError: the storage cannot be read.
            NewerSchemaError: a newer trueloop wrote it.
        """
        problems: list[str] = []
        for update, name in self._complete_uploads():
            if update <= after_update:
                break
            try:
                return folder.import_checkpoint(update, partial(self._download, name)), problems
            except (MirrorError, NewerSchemaError):
                raise
            except CheckpointError as error:
                problems.append(f"{self.url}: {name} cannot be used. {error.what}")
        return None, problems

    def _upload(self, checkpoint: Checkpoint) -> None:
        name, path = checkpoint.path.name, checkpoint.path
        _, stamps = read_manifest(path)
        manifest = (path / MANIFEST).read_bytes()
        uploaded = self._sizes(name)
        if MANIFEST not in uploaded:
            uploaded = {}  # the files are from an interrupted upload, perhaps that of another run
        elif name not in self._verified and self._fs.cat_file(self._address(name, MANIFEST)) != manifest:
            self._fs.rm_file(self._address(name, MANIFEST))
            uploaded = {}
        for file, size in (*((file, stamp.size) for file, stamp in stamps.items()), (MANIFEST, len(manifest))):
            if uploaded.get(file) != size:
                self._fs.put_file(str(path / file), self._address(name, file))
        self._verified.add(name)

    def _remove(self, name: str) -> None:
        if MANIFEST in self._sizes(name):
            self._fs.rm_file(self._address(name, MANIFEST))
        with suppress(FileNotFoundError):  # in some stores a folder is only a prefix, and vanishes with its last file
            self._fs.rm(self._address(name), recursive=True)
        self._verified.discard(name)

    def _complete_uploads(self) -> list[tuple[int, str]]:
        """Return (update, name) of all checkpoints with a manifest, newest first."""
        with self._storage_errors("read"):
            names = [name for name in self._folders() if MANIFEST in self._sizes(name)]
        matches = [(match, name) for name in names if (match := FOLDER.fullmatch(name))]
        newest_first = sorted(matches, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 1)), reverse=True)
        return [(int(match[1]), name) for match, name in newest_first]

    def _download(self, name: str, target: Path) -> None:
        with self._storage_errors("read"):
            for file in self._sizes(name):
                self._fs.get_file(self._address(name, file), str(target / file))

    def _folders(self) -> set[str]:
        return {name for name in self._list_sizes(self._root) if FOLDER.fullmatch(name)}

    def _sizes(self, name: str) -> dict[str, int]:
        """Return the sizes of the uploaded files of one checkpoint, by name."""
        return {file: size for file, size in self._list_sizes(self._address(name)).items() if FILE.fullmatch(file)}

    def _list_sizes(self, path: str) -> dict[str, int]:
        self._fs.invalidate_cache()
        try:
            return {PurePosixPath(entry["name"]).name: entry["size"] for entry in self._fs.ls(path, detail=True)}
        except FileNotFoundError:
            return {}

    def _address(self, name: str, file: str = "") -> str:
        return "/".join(filter(None, (self._root, name, file)))

    @contextmanager
    def _storage_errors(self, operation: str) -> Generator[None]:
        """Convert every exception of the storage, whose type depends on its package, to a MirrorError."""
        try:
            yield
        except Exception as error:
            raise MirrorError(
                f"The mirror {self.url} could not be {operation}: {type(error).__name__}: {error}",
                why="Without the mirror, the checkpoints are only on this machine.",
                fix="Check the URL, the credentials and the network; or set checkpoint.mirror to none.",
            ) from error


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError:
        raise MissingExtra("fsspec", "train") from None
    protocol = url.partition("://")[0]
    try:
        return url_to_fs(url, **({"auto_mkdir": True} if protocol in ("file", "local") else {}))
    except ImportError as error:
        package = known_implementations[protocol]["class"].partition(".")[0]
        raise InvalidConfig(
            f"checkpoint.mirror is {url!r}, but the package {package!r} for {protocol}:// is not installed.",
            fix=f"pip install {package}",
        ) from error
    except ValueError as error:
        raise InvalidConfig(
            f"checkpoint.mirror is {url!r}: {error}.",
            fix='Set a URL that fsspec supports, such as "s3://bucket/run" or "file:///mnt/backup/run".',
        ) from error
