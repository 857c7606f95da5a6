"""Mirror the checkpoints of a run to object storage, where nothing can be renamed.

    URL/checkpoints/update-000000123/model.safetensors ... manifest.json

The manifest is uploaded last and removed first: a checkpoint without one does not exist. Files count as uploaded only
under the manifest they belong to. A downloaded checkpoint is checked like every other one.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from trueloop.core.errors import CheckpointError, InvalidConfig, MissingExtra
from trueloop.training.checkpoint.checkpoints import FOLDER, CheckpointFolder
from trueloop.training.checkpoint.manifest import FILE, MANIFEST, Checkpoint, NewerSchemaError, read_manifest

LoadedCheckpoint = tuple[Checkpoint, dict[str, Any]]


class MirrorError(CheckpointError):
    """The storage cannot be read or written now: training continues without it, and later saves try again."""


class Mirror:
    """One run's checkpoints at one URL of an object store; only one run at a time may write there.

    Args:
        url: as in fsspec: "s3://bucket/run", "gs://bucket/run", "file:///mnt/backup/run".

    Raises:
        MissingExtra: fsspec is not installed.
        InvalidConfig: the protocol is unknown, or its own package is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, path = _file_system(url)
        self._root = f"{path.rstrip('/')}/checkpoints"
        self._compared: set[str] = set()

    def sync(self, kept: Sequence[Checkpoint]) -> None:
        """Upload missing ones of these checkpoints, newest first, then remove all others.

        Args:
            kept: the local ones, oldest first; one that is removed locally meanwhile is skipped.

        Raises:
            MirrorError: the storage refuses.

        Cost: blocks for the upload; a listing per checkpoint where there is nothing to do.
        """
        with self._storage_errors("written"):
            for checkpoint in reversed(kept):
                try:
                    self._upload(checkpoint)
                except (OSError, CheckpointError):
                    if checkpoint.path.exists():
                        raise
            for name in self._folders() - {checkpoint.path.name for checkpoint in kept}:
                self._remove(name)

    def clear(self) -> None:
        """Remove every checkpoint, for a run that starts over.

        Raises:
            MirrorError: the storage refuses.
        """
        self.sync([])

    def load_newer(self, than: int, folder: CheckpointFolder) -> tuple[LoadedCheckpoint | None, list[str]]:
        """Download the newest complete checkpoint.

        Args:
            than: only checkpoints of later updates.
            folder: imports it.

        Returns:
            The local checkpoint and its state; and a sentence on each that was skipped.

        Raises:
            MirrorError: the storage does not respond.
            NewerSchemaError: a newer trueloop wrote it.
        """
        problems: list[str] = []
        for update, name in self._complete_uploads():
            if update <= than:
                break
            try:
                return folder.adopt(update, lambda into, name=name: self._download(name, into)), problems
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
            uploaded = {}  # left by an interrupted upload, of this checkpoint or of another run's
        elif name not in self._compared and self._fs.cat_file(self._address(name, MANIFEST)) != manifest:
            self._fs.rm_file(self._address(name, MANIFEST))
            uploaded = {}
        for file, size in (*((file, stamp.size) for file, stamp in stamps.items()), (MANIFEST, len(manifest))):
            if uploaded.get(file) != size:
                self._fs.put_file(str(path / file), self._address(name, file))
        self._compared.add(name)

    def _remove(self, name: str) -> None:
        if MANIFEST in self._sizes(name):
            self._fs.rm_file(self._address(name, MANIFEST))
        with suppress(FileNotFoundError):  # where folders are only prefixes, they vanish with their last file
            self._fs.rm(self._address(name), recursive=True)
        self._compared.discard(name)

    def _complete_uploads(self) -> list[tuple[int, str]]:
        """Return update and name of all checkpoints with a manifest, newest first."""
        with self._storage_errors("read"):
            names = [name for name in self._folders() if MANIFEST in self._sizes(name)]
        matches = [(match, name) for name in names if (match := FOLDER.fullmatch(name))]
        newest = sorted(matches, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 1)), reverse=True)
        return [(int(match[1]), name) for match, name in newest]

    def _download(self, name: str, into: Path) -> None:
        with self._storage_errors("read"):
            for file in self._sizes(name):
                self._fs.get_file(self._address(name, file), str(into / file))

    def _folders(self) -> set[str]:
        return {name for name in self._list_sizes(self._root) if FOLDER.fullmatch(name)}

    def _sizes(self, name: str) -> dict[str, int]:
        """Return the size of each file of one checkpoint that is there."""
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
    def _storage_errors(self, done: str) -> Generator[None]:
        """Convert every exception of the storage, whose class differs by package, to a MirrorError."""
        try:
            yield
        except Exception as error:
            raise MirrorError(
                f"The mirror {self.url} could not be {done}: {type(error).__name__}: {error}",
                why="Without it, the checkpoints are on this machine only.",
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
            f"checkpoint.mirror is {url!r}, but {package!r}, which handles {protocol}://, is not installed.",
            fix=f"pip install {package}",
        ) from error
    except ValueError as error:
        raise InvalidConfig(
            f"checkpoint.mirror is {url!r}: {error}.",
            fix='It must be a URL that fsspec supports, such as "s3://bucket/run" or "file:///mnt/backup/run".',
        ) from error
