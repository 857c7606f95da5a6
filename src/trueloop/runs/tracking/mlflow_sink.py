"""Write runs to MLflow through its client: a database file, PostgreSQL, or a server."""

import hashlib
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, cast

from trueloop.runs.tracking.sink import (
    RunMetadata,
    SavedCheckpoint,
    StoreBatch,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    SyncCursor,
    truncate,
)
from trueloop.runs.tracking.target import Target


def check_connection(address: str) -> None:
    """Connect to a database once: MLflow itself would retry for a hundred seconds before it reports an error.

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
    """Let only one process of this user create the tables at a time: two processes would corrupt the schema.

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


RUN_ID, CURSOR, STATE, RUN_DIR = "trueloop.run_id", "trueloop.cursor", "trueloop.state", "trueloop.folder"
CHECKPOINT = "trueloop.checkpoint"
MAX_METRICS_PER_REQUEST, MAX_TAGS_PER_REQUEST = 1000, 100  # limits of an MLflow server
MAX_NAME_CHARS = 250
MAX_NOTES = 200  # later notes are only in the journal
_END_STATUS = {"finished": "FINISHED", "early_stop": "FINISHED", "failed": "FAILED"}
_UNFINISHED_STATUS = {"running": "RUNNING", "unknown": "RUNNING", "rolled_back": "SCHEDULED"}
_INVALID_IN_NAME = re.compile(r"[^\w\-. :/]", re.ASCII)
_RETRYABLE_STATUS = (409, 429, 499)  # conflict with another writer, too many requests, client gave up
_SETTINGS = {  # an unreachable store must be reported within seconds; the user's own settings take precedence
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "PGCONNECT_TIMEOUT": "10",
}


class MlflowSink:
    """A `Sink` that stores each run as an MLflow run, found by its tag, and each checkpoint as a logged model.

    Args:
        target: the database or the server.

    Raises:
        StoreUnavailable: the store does not answer, or rejects the request (`StoreRejected`).
        StoreError: the database has the schema of another MLflow version.

    Cost: importing MLflow takes two seconds; creating a new database takes a few more.
    """

    is_idempotent = True
    can_append = True

    def __init__(self, target: Target) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        self._target = target
        self._run: Any = None
        self._models: dict[str, Any] | None = None
        with self._translated_errors():
            from mlflow import MlflowClient

            for name in ("mlflow", "alembic", "sqlalchemy"):  # trueloop reports their errors
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            check_connection(target.address)
            with setup_lock(target.display):
                self._client = MlflowClient(tracking_uri=target.address, registry_uri=target.address)

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Find the run by its tag and return its cursor; None if two writers created the run simultaneously."""
        with self._translated_errors():
            runs = self._search_runs(run)
        if len(runs) != 1:
            return None
        self._run = runs[0]
        return SyncCursor.parse(self._run.data.tags.get(CURSOR))

    def open_run(self, run: RunMetadata) -> None:
        """Create or reopen the run; params and tags come from the newest process."""
        from mlflow.entities import Param, RunTag

        with self._translated_errors():
            if self._run is None:
                self._run = self._create_run(run)
            run_id = self._run.info.run_id
            self._client.update_run(run_id, status="RUNNING", name=run.name)
            params = [Param(key, value) for key, value in _with_valid_names(run.params).items()]
            for chunk in _chunks(params, MAX_TAGS_PER_REQUEST):
                self._client.log_batch(run_id, params=chunk)
            values = _with_valid_names({**run.tags, STATE: "running", RUN_DIR: run.name})
            for chunk in _chunks([RunTag(key, value) for key, value in values.items()], MAX_TAGS_PER_REQUEST):
                self._client.log_batch(run_id, tags=chunk)

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Write metrics, checkpoints and notes, then the cursor."""
        from mlflow.entities import Metric, RunTag

        metrics = [
            Metric(key, value, point.time_ms, point.step)
            for point in batch.points
            for key, value in _with_valid_names(point.values).items()
        ]
        notes = [note for note in batch.notes if note.number <= MAX_NOTES]
        tags = [RunTag(f"trueloop.note.{note.number:03d}", str(note)) for note in notes]
        if batch.notes:
            tags.append(RunTag("trueloop.notes", str(batch.notes[-1].number)))
        with self._translated_errors():
            run_id = self._run.info.run_id
            for chunk in _chunks(metrics, MAX_METRICS_PER_REQUEST):
                self._client.log_batch(run_id, metrics=chunk)
            for saved in batch.checkpoints:
                self._log_checkpoint(saved)
            for chunk in _chunks(tags, MAX_TAGS_PER_REQUEST):
                self._client.log_batch(run_id, tags=chunk)
            self._client.set_tag(run_id, CURSOR, cursor.to_json())

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Set the state; a run that was interrupted or killed is KILLED in MLflow."""
        with self._translated_errors():
            run_id = self._run.info.run_id
            self._client.set_tag(run_id, STATE, state)
            if state in _UNFINISHED_STATUS:
                self._client.update_run(run_id, status=_UNFINISHED_STATUS[state])
            else:
                self._client.set_terminated(run_id, status=_END_STATUS.get(state, "KILLED"), end_time=time_ms)
            self._client.set_tag(run_id, CURSOR, cursor.to_json())

    def delete_run(self, run: RunMetadata) -> bool:
        """Mark the run and its logged models as deleted; `mlflow gc` removes them permanently."""
        with self._translated_errors():
            runs = self._search_runs(run)
            for stored_run in runs:
                self._client.delete_run(stored_run.info.run_id)
            for model in self._search_logged_models(f"tags.`{RUN_ID}` = '{run.run_id}'"):
                self._client.delete_logged_model(model.model_id)
        self._run = self._models = None
        return bool(runs)

    def close(self) -> None:
        """Do nothing: the client keeps no connection open."""

    def _search_runs(self, run: RunMetadata) -> list[Any]:
        experiments = self._experiment_ids()
        if not experiments:
            return []
        query = f"tags.`{RUN_ID}` = '{run.run_id}'"  # 32 hex digits, see `read_run_id`
        return list(_pages(lambda token: self._client.search_runs(experiments, query, page_token=token)))

    def _experiment_ids(self) -> list[str]:
        experiments = _pages(lambda token: self._client.search_experiments(page_token=token))
        return [experiment.experiment_id for experiment in experiments]

    def _search_logged_models(self, query: str) -> list[Any]:
        experiments, search = self._experiment_ids(), self._client.search_logged_models
        return list(_pages(lambda token: search(experiments, query, page_token=token)))

    def _create_run(self, run: RunMetadata) -> Any:
        created = self._client.create_run(
            self._experiment_id(run.group), start_time=run.started_ms, run_name=run.name, tags={RUN_ID: run.run_id}
        )
        if len(self._search_runs(run)) > 1:
            self._client.delete_run(created.info.run_id)
            raise StoreUnavailable(f"Another process created this run in {self._target.display} at the same time.")
        return created

    def _experiment_id(self, group: str) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or group
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return self._client.create_experiment(name, artifact_location=_artifact_location(self._target.address))
        if experiment.lifecycle_stage != "active":
            raise StoreError(
                f"The experiment {name!r} of {self._target.display} was deleted.",
                why="MLflow keeps the name of a deleted experiment reserved.",
                fix=f"mlflow experiments restore -x {experiment.experiment_id}, or set MLFLOW_EXPERIMENT_NAME.",
            )
        return experiment.experiment_id

    def _log_checkpoint(self, saved: SavedCheckpoint) -> None:
        """Log a checkpoint as a model with its metrics; status READY means that it is complete."""
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric

        run_id, name = self._run.info.run_id, re.sub(r"[^\w-]", "_", PurePath(saved.path).name) or "checkpoint"
        if self._models is None:
            models = self._search_logged_models(f"tags.`{RUN_ID}` = '{self._run.data.tags[RUN_ID]}'")
            self._models = {model.name: model for model in models if model.source_run_id == run_id}
        model = self._models.get(name)
        if model is not None and model.status == LoggedModelStatus.READY:
            return
        if model is None:
            tags = {
                RUN_ID: self._run.data.tags[RUN_ID],
                CHECKPOINT: saved.path,
                "trueloop.update": str(saved.step),
                "trueloop.epoch": str(saved.epoch),
            }
            experiment = self._run.info.experiment_id
            model = self._client.create_logged_model(
                experiment, name=name, source_run_id=run_id, tags=tags, model_type="checkpoint"
            )
        outputs = self._client.get_run(run_id).outputs
        if model.model_id not in {output.model_id for output in (outputs.model_outputs if outputs else [])}:
            self._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, saved.step)])
        metrics = [
            Metric(key, value, saved.time_ms, saved.step, model_id=model.model_id)
            for key, value in _with_valid_names(saved.values).items()
        ]
        if metrics:
            self._client.log_batch(run_id, metrics=metrics)
        self._models[name] = self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        """Convert every exception of MLflow, its database driver and its HTTP client to a `StoreError`.

        Their warnings are suppressed: the user of a run could not act on them.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - re-raised without the original, which may contain the password
            raise self._store_error(error) from None

    def _store_error(self, error: Exception) -> StoreError:
        message = re.split(r"\[SQL:|\(Background on this error", str(error))[0]  # drop statements and links
        text = self._target.hide(f"{type(error).__name__}: {message}")
        if "out-of-date database schema" in text or "Can't locate revision" in text:
            from mlflow.version import VERSION

            return StoreError(
                f"The database {self._target.display} has the schema of another MLflow version than the installed "
                f"{VERSION}: {truncate(text, 300)}",
                why="Writing to tables of another schema could damage them, so nothing was written.",
                fix="Install the MLflow that created the database, or back it up and run `mlflow db upgrade`; the "
                "journals are complete, and `trueloop runs sync` copies them afterwards.",
            )
        rejected = _is_rejection(error)
        verb = "rejected the request" if rejected else "does not answer"
        return (StoreRejected if rejected else StoreUnavailable)(
            f"The store {self._target.display} {verb}: {truncate(' '.join(text.split()), 300)}",
            why="The journals are complete; only their copy in the store is not.",
            fix=f"Run `trueloop runs sync` when {'the cause is fixed' if rejected else 'the store answers again'}.",
        )


def _is_rejection(error: Exception) -> bool:
    """Return True if an error is a response that rejects the request (HTTP 4xx), so that a retry would fail too."""
    exceptions: Any = sys.modules.get("mlflow.exceptions")  # not imported here: the error may be an ImportError
    if exceptions is None or not isinstance(error, exceptions.MlflowException):
        return False
    status: int = cast("Any", error).get_http_status_code()
    return 400 <= status < 500 and status not in _RETRYABLE_STATUS


def _artifact_location(address: str) -> str | None:
    """Return the artifact location next to a database file; None for servers and PostgreSQL, which have a default."""
    if not address.startswith("sqlite:///"):
        return None
    return Path(address.removeprefix("sqlite:///")).with_name("mlartifacts").as_uri()


def _with_valid_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace all names by valid MLflow names; of two names that become equal, the last one remains."""
    return {_valid_name(key): value for key, value in values.items()}


def _valid_name(key: str) -> str:
    """Return a valid MLflow name: allowed characters, and a normalised path without "//", ".." or outer "/"."""
    parts = _INVALID_IN_NAME.sub("_", key).split("/")
    valid = "/".join("_" * max(1, len(part)) if part in ("", ".") or part.startswith("..") else part for part in parts)
    return valid if len(valid) <= MAX_NAME_CHARS else valid[:MAX_NAME_CHARS].rstrip("/.")


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[k : k + size] for k in range(0, len(items), size))


def _pages(search: Callable[[Any], Any]) -> Iterator[Any]:
    page = search(None)
    yield from page
    while page.token:
        page = search(page.token)
        yield from page
