"""Parse and validate the address of a store, and hide its password in all displayed text."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.core.formatting import did_you_mean
from trueloop.core.paths import is_folder

Kind = Literal["mlflow", "tensorboard", "wandb"]

ADDRESS_FORMS = (
    "sqlite (a file next to the runs), sqlite:///FILE, postgresql+psycopg://USER@HOST/DATABASE, http://HOST:PORT "
    "(an MLflow server), tensorboard:FOLDER, wandb:FOLDER"
)
DATABASE_NAME = "mlflow.db"

_FOLDER_KINDS: Mapping[str, Kind] = {"tensorboard": "tensorboard", "wandb": "wandb"}
_SECRET_WORDS = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_EXTRAS: Mapping[str, tuple[str, Sequence[str]]] = {  # scheme -> extra of trueloop, modules that it installs
    "sqlite": ("track", ("mlflow", "sqlalchemy", "alembic")),
    "postgresql": ("track", ("mlflow", "sqlalchemy", "alembic", "psycopg")),
    "http": ("track", ("mlflow",)),
    "https": ("track", ("mlflow",)),
    "tensorboard": ("tensorboard", ("tensorboard",)),
    "wandb": ("wandb", ("wandb",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The address of a store, in the forms that are used and displayed."""

    kind: Kind
    address: str = field(repr=False)
    """Address for MLflow, or an absolute folder. The address may contain a password, so it is never printed, written to
    a journal or passed on a command line."""
    display: str
    """Address to display, without secrets."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets in the address, each as the user typed it and URL-decoded."""

    @property
    def url(self) -> str:
        """The address in a form that `parse_target` accepts; it may contain a password."""
        return self.address if self.kind == "mlflow" else f"{self.kind}:{self.address}"

    def sync_command(self, run_dir: Path) -> str:
        """Return the command that syncs a run to this store; ``--store`` is omitted if the address has secrets."""
        store = "" if "***" in self.display else f" --store {shlex.quote(self.display)}"
        return f"trueloop runs sync {shlex.quote(str(run_dir))}{store}"

    def hide(self, text: str) -> str:
        """Replace secrets in a text, such as an error message of the store."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return mask_secrets(text)


def parse_target(url: str, runs_dir: Path) -> Target:
    """Parse the address of a store.

    Args:
        url: one of `ADDRESS_FORMS`.
        runs_dir: the folder of the runs, which contains the database file for plain "sqlite".

    Raises:
        InvalidConfig: the address is not valid for any kind of store.
        MissingExtra: the package for this kind of store is not installed.

    Cost: opens no connection and imports nothing large.
    """
    scheme, colon, location = url.strip().partition(":")
    scheme = scheme.lower()
    if scheme in _FOLDER_KINDS:
        target = _folder_target(scheme, url, location)
    elif scheme == "sqlite":
        target = _sqlite_target(url, location if colon else f"///{runs_dir / DATABASE_NAME}")
    elif scheme.partition("+")[0] in ("postgresql", "postgres"):
        scheme, target = "postgresql", _postgresql_target(url, scheme)
    elif scheme in ("http", "https"):
        target = _server_target(url)
    else:
        raise _unknown_store_error(url, scheme)
    _require_packages(scheme)
    return target


def mask_secrets(text: str) -> str:
    """Replace the credentials of URLs, and the values of secret query parameters, by "***"."""
    text = re.sub(r"(\b(?!sqlite)[a-z][a-z0-9+.-]*://)[^\s'\"]*@", r"\1***@", text, flags=re.IGNORECASE)
    return re.sub(r"([?&][^=&\s]*(?:pass|secret|token|key)[^=&\s]*=)[^&\s'\"]*", r"\1***", text, flags=re.IGNORECASE)


def _folder_target(scheme: str, url: str, location: str) -> Target:
    if not location or location.startswith("//"):
        raise InvalidConfig(
            f"The store {url!r} names no folder.", fix=f"Write {scheme}:FOLDER, for example {scheme}:runs/{scheme}."
        )
    folder = str(Path(location).absolute())
    return Target(kind=_FOLDER_KINDS[scheme], address=folder, display=f"{scheme}:{location}")


def _sqlite_target(url: str, location: str) -> Target:
    path = location.removeprefix("///")
    if not location.startswith("///") or path in ("", ":memory:"):
        raise InvalidConfig(
            f"The store {url!r} names no file.",
            why="A database in memory would be lost with the process that writes it.",
            fix="Write sqlite:///runs/mlflow.db, sqlite:////an/absolute/path.db, or only sqlite.",
        )
    file = Path(path).absolute()
    if special := [char for char in "?%" if char in str(file)]:
        raise InvalidConfig(
            f"The store {url!r} is a file with {special[0]!r} in its path: {str(file)!r}.",
            why=f"{special[0]!r} has a special meaning in a database URL, so another file would be written.",
            fix=f"Choose a path without {special[0]!r}: sqlite:///FILE.",
        )
    if is_folder(file):
        raise InvalidConfig(f"The store {url!r} is a folder.", fix=f"Name a file: sqlite:///{path}/{DATABASE_NAME}.")
    relative = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return Target(kind="mlflow", address=f"sqlite:///{file}", display=f"sqlite:///{relative}")


def _postgresql_target(url: str, scheme: str) -> Target:
    driver = scheme.partition("+")[2]
    if driver not in ("", "psycopg"):
        raise InvalidConfig(
            f"The store {mask_secrets(url)!r} requests the driver {driver!r}.", fix="Write postgresql+psycopg://..."
        )
    location = url.strip().partition(":")[2]
    parts = _split_url(url, f"postgresql:{location}")
    if not parts.path.strip("/"):
        raise InvalidConfig(
            f"The store {mask_secrets(url)!r} names no database.",
            fix="Write postgresql+psycopg://USER@HOST:PORT/DATABASE.",
        )
    return _target_with_secrets(url, f"postgresql+psycopg:{location}")


def _server_target(url: str) -> Target:
    parts = _split_url(url, url.strip())
    if not parts.hostname:
        raise InvalidConfig(f"The store {mask_secrets(url)!r} names no server.", fix="Write http://HOST:PORT.")
    return _target_with_secrets(url, url.strip().rstrip("/"))


def _split_url(url: str, address: str):
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises if it is not a number
    except ValueError:
        raise InvalidConfig(
            f"The store {mask_secrets(url)!r} is not a valid URL.",
            why="The characters : / @ # ? must be written %3A %2F %40 %23 %3F in a password.",
            fix=f"Write one of: {ADDRESS_FORMS}.",
        ) from None  # the original error quotes the password
    if not address.partition(":")[2].startswith("//"):
        raise InvalidConfig(
            f"The store {mask_secrets(url)!r} lacks the // of an address.", fix=f"Write one of: {ADDRESS_FORMS}."
        )
    return parts


def _target_with_secrets(url: str, address: str) -> Target:
    parts = urlsplit(address)
    credentials = parts.netloc.rpartition("@")[0]
    user, _, password = credentials.partition(":")
    secrets_found = [password or (user if parts.scheme in ("http", "https") else "")]
    secrets_found += [value for name, value in parse_qsl(parts.query) if _SECRET_WORDS.search(name)]
    secrets = tuple(dict.fromkeys(text for secret in secrets_found for text in (secret, unquote(secret)) if text))
    return Target(kind="mlflow", address=address, display=mask_secrets(url.strip()), secrets=secrets)


def _unknown_store_error(url: str, scheme: str) -> InvalidConfig:
    hint = did_you_mean(scheme, _EXTRAS)
    return InvalidConfig(
        f"The kind of the store {mask_secrets(url)!r} is unknown.", fix=f"{hint}Write one of: {ADDRESS_FORMS}."
    )


def _require_packages(scheme: str) -> None:
    extra, modules = _EXTRAS[scheme]
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)
