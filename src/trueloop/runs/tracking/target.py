"""Which store is meant: one address, checked before anything is trained, shown without its password."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.core.paths import is_folder

Kind = Literal["mlflow", "tensorboard", "wandb"]

ADDRESS_FORMS = (
    "sqlite (a file beside the runs), sqlite:///FILE, postgresql+psycopg://USER@HOST/DATABASE, http://HOST:PORT "
    "(an MLflow server), tensorboard:FOLDER, wandb:FOLDER"
)
DATABASE_NAME = "mlflow.db"

_FOLDER_KINDS: Mapping[str, Kind] = {"tensorboard": "tensorboard", "wandb": "wandb"}
_SECRET_WORDS = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_EXTRAS: Mapping[str, tuple[str, Sequence[str]]] = {
    "sqlite": ("track", ("mlflow", "sqlalchemy", "alembic")),
    "postgresql": ("track", ("mlflow", "sqlalchemy", "alembic", "psycopg")),
    "http": ("track", ("mlflow",)),
    "https": ("track", ("mlflow",)),
    "tensorboard": ("tensorboard", ("tensorboard",)),
    "wandb": ("wandb", ("wandb",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A store, by address."""

    kind: Kind
    address: str = field(repr=False)
    """As MLflow takes it, or an absolute folder. It may hold a password: it is never printed, journaled or passed on a
    command line."""
    display: str
    """The same for people, without what is secret."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What must not be seen, as typed and as meant."""

    @property
    def url(self) -> str:
        """The address in a form that `parse_target` reads; secret like the address."""
        return self.address if self.kind == "mlflow" else f"{self.kind}:{self.address}"

    def sync_command(self, run_dir: Path) -> str:
        """Return the line that copies a run here; the store is named in it where nothing of its address is hidden."""
        store = "" if "***" in self.display else f" --store {shlex.quote(self.display)}"
        return f"trueloop runs sync {shlex.quote(str(run_dir))}{store}"

    def hide(self, text: str) -> str:
        """Take what is secret out of a text, an error of the store's own for one."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return mask_secrets(text)


def parse_target(url: str, runs_dir: Path) -> Target:
    """Read the address of a store.

    Args:
        url: one of `ADDRESS_FORMS`.
        runs_dir: the folder that the runs lie in, where the file meant by plain "sqlite" is.

    Raises:
        InvalidConfig: no store is known by such an address.
        MissingExtra: what speaks to this kind of store is not installed.

    Cost: nothing is opened and nothing heavy imported.
    """
    scheme, colon, rest = url.strip().partition(":")
    scheme = scheme.lower()
    if scheme in _FOLDER_KINDS:
        target = _folder_target(scheme, url, rest)
    elif scheme == "sqlite":
        target = _sqlite_target(url, rest if colon else f"///{runs_dir / DATABASE_NAME}")
    elif scheme.partition("+")[0] in ("postgresql", "postgres"):
        scheme, target = "postgresql", _postgresql_target(url, scheme)
    elif scheme in ("http", "https"):
        target = _server_target(url)
    else:
        raise _unknown_store_error(url, scheme)
    _require_packages(scheme)
    return target


def mask_secrets(text: str) -> str:
    """Hide what stands before the @ of an address, and what its query calls a password."""
    text = re.sub(r"(\b(?!sqlite)[a-z][a-z0-9+.-]*://)[^\s'\"]*@", r"\1***@", text, flags=re.IGNORECASE)
    return re.sub(r"([?&][^=&\s]*(?:pass|secret|token|key)[^=&\s]*=)[^&\s'\"]*", r"\1***", text, flags=re.IGNORECASE)


def _folder_target(scheme: str, url: str, rest: str) -> Target:
    if not rest or rest.startswith("//"):
        raise InvalidConfig(
            f"The store {url!r} names no folder.", fix=f"Write {scheme}:FOLDER, for example {scheme}:runs/{scheme}."
        )
    folder = str(Path(rest).absolute())
    return Target(kind=_FOLDER_KINDS[scheme], address=folder, display=f"{scheme}:{rest}")


def _sqlite_target(url: str, rest: str) -> Target:
    path = rest.removeprefix("///")
    if not rest.startswith("///") or path in ("", ":memory:"):
        raise InvalidConfig(
            f"The store {url!r} names no file.",
            why="A database in memory would be gone with the process that writes it.",
            fix="Write sqlite:///runs/mlflow.db, sqlite:////an/absolute/path.db, or only sqlite.",
        )
    file = Path(path).absolute()
    if odd := [each for each in "?%" if each in str(file)]:
        raise InvalidConfig(
            f"The store {url!r} is a file with {odd[0]!r} in its path: {str(file)!r}.",
            why="That has a meaning of its own in the address of a database: another file would be written.",
            fix="Name a file without it: sqlite:///FILE.",
        )
    if is_folder(file):
        raise InvalidConfig(f"The store {url!r} is a folder.", fix=f"Name a file: sqlite:///{path}/{DATABASE_NAME}.")
    here = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return Target(kind="mlflow", address=f"sqlite:///{file}", display=f"sqlite:///{here}")


def _postgresql_target(url: str, scheme: str) -> Target:
    driver = scheme.partition("+")[2]
    if driver not in ("", "psycopg"):
        raise InvalidConfig(
            f"The store {mask_secrets(url)!r} asks for the driver {driver!r}.", fix="Write postgresql+psycopg://..."
        )
    rest = url.strip().partition(":")[2]
    parts = _split_url(url, f"postgresql:{rest}")
    if not parts.path.strip("/"):
        raise InvalidConfig(
            f"The store {mask_secrets(url)!r} names no database.", fix="Write postgresql+psycopg://USER@HOST:PORT/DATABASE."
        )
    return _target_with_secrets(url, f"postgresql+psycopg:{rest}")


def _server_target(url: str) -> Target:
    parts = _split_url(url, url.strip())
    if not parts.hostname:
        raise InvalidConfig(f"The store {mask_secrets(url)!r} names no server.", fix="Write http://HOST:PORT.")
    return _target_with_secrets(url, url.strip().rstrip("/"))


def _split_url(url: str, text: str):
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises where it is no number
    except ValueError:
        raise InvalidConfig(
            f"The store {mask_secrets(url)!r} cannot be read as an address.",
            why="A character with a meaning of its own (: / @ # ?) must be written %3A %2F %40 %23 %3F in a password.",
            fix=f"Write one of: {ADDRESS_FORMS}.",
        ) from None  # the error names what stands there
    if not text.partition(":")[2].startswith("//"):
        raise InvalidConfig(f"The store {mask_secrets(url)!r} lacks the // of an address.", fix=f"Write one of: {ADDRESS_FORMS}.")
    return parts


def _target_with_secrets(url: str, address: str) -> Target:
    parts = urlsplit(address)
    raw = parts.netloc.rpartition("@")[0]
    user, _, password = raw.partition(":")
    found = [password or (user if parts.scheme in ("http", "https") else "")]
    found += [value for name, value in parse_qsl(parts.query) if _SECRET_WORDS.search(name)]
    secrets = tuple(dict.fromkeys(each for secret in found for each in (secret, unquote(secret)) if each))
    return Target(kind="mlflow", address=address, display=mask_secrets(url.strip()), secrets=secrets)


def _unknown_store_error(url: str, scheme: str) -> InvalidConfig:
    near = get_close_matches(scheme, ["sqlite", "postgresql", "http", "https", "tensorboard", "wandb"], n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    return InvalidConfig(f"No store is known by the address {mask_secrets(url)!r}.", fix=f"{meant}Write one of: {ADDRESS_FORMS}.")


def _require_packages(scheme: str) -> None:
    extra, modules = _EXTRAS[scheme]
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)
