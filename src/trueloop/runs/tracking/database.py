"""Prepare a database before MLflow opens it: check the connection, and serialise the creation of its tables."""

import hashlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def check_connection(address: str) -> None:
    """Connect once: MLflow itself would retry for a hundred seconds before it reports an error.

    Args:
        address: URL of a database; other addresses are not checked.

    Raises:
        Exception: the error of the database driver.
    """
    if address.startswith(("http://", "https://")):
        return
    if address.startswith("sqlite:///"):
        Path(address.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    from mlflow.store.db.utils import create_sqlalchemy_engine

    engine = create_sqlalchemy_engine(address)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


@contextmanager
def setup_lock(display: str) -> Generator[None]:
    """Let only one process of this user create the tables at a time: two would corrupt the schema.

    Args:
        display: the address of the store without its password.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    name = f"trueloop-{os.getuid()}-{hashlib.sha256(display.encode()).hexdigest()[:16]}.lock"
    handle = os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
