"""MLflow as a store, spoken to by its client: a database file, PostgreSQL, or a server."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, cast

from trueloop.runs.tracking.database import check_connection, setup_lock
from trueloop.runs.tracking.run_metadata import truncate
from trueloop.runs.tracking.sink import (
    RunMetadata,
    SavedCheckpoint,
    StoreBatch,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    SyncCursor,
)
from trueloop.runs.tracking.target import Target

RUN_ID, CURSOR, STATE, RUN_DIR = "trueloop.run_id", "trueloop.mark", "trueloop.state", "trueloop.folder"
CHECKPOINT = "trueloop.checkpoint"
MAX_METRICS_PER_REQUEST, MAX_TAGS_PER_REQUEST = 1000, 100  # the most a server takes in one request
MAX_NAME_CHARS = 250  # characters
MAX_NOTES = 200  # further ones are in the journal
_STATUS = {"finished": "FINISHED", "early_stop": "FINISHED", "failed": "FAILED"}
_UNFINISHED_STATUS = {"running": "RUNNING", "unknown": "RUNNING", "rolled_back": "SCHEDULED"}
_INVALID_IN_NAME = re.compile(r"[^\w\-. :/]", re.ASCII)
_RETRYABLE_STATUS = (409, 429, 499)  # a conflict with another writer, too many requests, given up
_SETTINGS = {  # a store that is away must be heard of within seconds; a user's own settings are kept
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "PGCONNECT_TIMEOUT": "10",
}


class MlflowSink:
    """Runs in MLflow: one run per trueloop run, found by its tag; a checkpoint is a logged model.

    Args:
        target: the database or the server.

    Raises:
        StoreDown: it does not answer, or refuses to (`StoreRefused`).
        StoreError: its schema is another MLflow's.

    Cost: two seconds to import; a new database takes some more to be laid out.
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

            for name in ("mlflow", "alembic", "sqlalchemy"):  # what they have to say is raised, and told by us
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            check_connection(target.address)
            with setup_lock(target.shown):
                self._client = MlflowClient(tracking_uri=target.address, registry_uri=target.address)

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Find the run by its tag; of two, made by two writers at once, neither is trusted."""
        with self._translated_errors():
            runs = self._search_runs(run)
        if len(runs) != 1:
            return None
        self._run = runs[0]
        return SyncCursor.parse(self._run.data.tags.get(CURSOR))

    def open_run(self, run: RunMetadata) -> None:
        """Make the run, or open it again; its params and tags are those of the newest process."""
        from mlflow.entities import Param, RunTag

        with self._translated_errors():
            if self._run is None:
                self._run = self._create_run(run)
            run_id = self._run.info.run_id
            self._client.update_run(run_id, status="RUNNING", name=run.name)
            params = [Param(key, value) for key, value in _with_valid_names(run.params).items()]
            for some in _chunks(params, MAX_TAGS_PER_REQUEST):
                self._client.log_batch(run_id, params=some)
            tags = {**run.tags, STATE: "running", RUN_DIR: run.name}
            for some in _chunks([RunTag(key, value) for key, value in _with_valid_names(tags).items()], MAX_TAGS_PER_REQUEST):
                self._client.log_batch(run_id, tags=some)

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Write metrics, checkpoints and remarks, then the mark."""
        from mlflow.entities import Metric, RunTag

        metrics = [
            Metric(key, value, point.time_ms, point.step)
            for point in batch.points
            for key, value in _with_valid_names(point.values).items()
        ]
        kept = [remark for remark in batch.notes if remark.number <= MAX_NOTES]
        tags = [
            RunTag(
                f"trueloop.note.{each.number:03d}", f"update {each.step}, {each.kind}: {truncate(each.message, 4000)}"
            )
            for each in kept
        ]
        if batch.notes:
            tags.append(RunTag("trueloop.notes", str(batch.notes[-1].number)))
        with self._translated_errors():
            run_id = self._run.info.run_id
            for some in _chunks(metrics, MAX_METRICS_PER_REQUEST):
                self._client.log_batch(run_id, metrics=some)
            for saved in batch.checkpoints:
                self._log_checkpoint(saved)
            for some in _chunks(tags, MAX_TAGS_PER_REQUEST):
                self._client.log_batch(run_id, tags=some)
            self._client.set_tag(run_id, CURSOR, cursor.to_json())

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Set the state; a run that was told to stop, or was killed, is KILLED to MLflow."""
        with self._translated_errors():
            run_id = self._run.info.run_id
            self._client.set_tag(run_id, STATE, state)
            if state in _UNFINISHED_STATUS:
                self._client.update_run(run_id, status=_UNFINISHED_STATUS[state])
            else:
                self._client.set_terminated(run_id, status=_STATUS.get(state, "KILLED"), end_time=time_ms)
            self._client.set_tag(run_id, CURSOR, cursor.to_json())

    def erase(self, card: RunMetadata) -> bool:
        """Delete the run and its logged models, as MLflow deletes: `mlflow gc` removes them for good."""
        with self._translated_errors():
            runs = self._search_runs(card)
            for run in runs:
                self._client.delete_run(run.info.run_id)
            for model in self._search_logged_models(f"tags.`{RUN_ID}` = '{card.run_id}'"):
                self._client.delete_logged_model(model.model_id)
        self._run = self._models = None
        return bool(runs)

    def close(self) -> None:
        """Let go of nothing: the client holds no connection of its own."""

    def _search_runs(self, card: RunMetadata) -> list[Any]:
        wanted = f"tags.`{RUN_ID}` = '{card.run_id}'"  # 32 hex digits, see `run_id`
        experiments = self._experiment_ids()
        found: Callable[[Any], Any] = lambda token: self._client.search_runs(experiments, wanted, page_token=token)  # noqa: E731
        return list(_pages(found)) if experiments else []

    def _experiment_ids(self) -> list[str]:
        return [each.experiment_id for each in _pages(lambda token: self._client.search_experiments(page_token=token))]

    def _search_logged_models(self, wanted: str) -> list[Any]:
        experiments = self._experiment_ids()
        return list(
            _pages(lambda token: self._client.search_logged_models(experiments, wanted, page_token=token))
        )  # fmt: skip

    def _create_run(self, card: RunMetadata) -> Any:
        run = self._client.create_run(
            self._experiment_id(card.group), start_time=card.started_ms, run_name=card.name, tags={RUN_ID: card.run_id}
        )
        if len(self._search_runs(card)) > 1:
            self._client.delete_run(run.info.run_id)
            raise StoreUnavailable(f"Another process began to write this run to {self._target.shown} at the same moment.")
        return run

    def _experiment_id(self, group: str) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or group
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return self._client.create_experiment(name, artifact_location=_artifact_location(self._target.address))
        if found.lifecycle_stage != "active":
            raise StoreError(
                f"The experiment {name!r} of {self._target.shown} was deleted.",
                why="MLflow keeps the name, so that no other can be made by it.",
                fix=f"mlflow experiments restore -x {found.experiment_id}, or name another: MLFLOW_EXPERIMENT_NAME.",
            )
        return found.experiment_id

    def _log_checkpoint(self, saved: SavedCheckpoint) -> None:
        """Make a checkpoint a logged model, with its metrics; one that is ready is whole."""
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric

        run_id, name = self._run.info.run_id, re.sub(r"[^\w-]", "_", PurePath(saved.path).name) or "checkpoint"
        if self._models is None:
            mine = self._search_logged_models(f"tags.`{RUN_ID}` = '{self._run.data.tags[RUN_ID]}'")
            self._models = {model.name: model for model in mine if model.source_run_id == run_id}
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
        if model.model_id not in {each.model_id for each in (outputs.model_outputs if outputs else [])}:
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
        """Turn what MLflow, its database driver and its HTTP client raise, of kinds without number, into ours.

        What they warn of is between themselves: no user of a run could act on it.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - raised as ours, without the original, which may hold the password
            raise self._store_error(error) from None

    def _store_error(self, error: Exception) -> StoreError:
        said = re.split(r"\[SQL:|\(Background on this error", str(error))[0]  # neither statements nor links
        text = self._target.hide(f"{type(error).__name__}: {said}")
        if "out-of-date database schema" in text or "Can't locate revision" in text:
            from mlflow.version import VERSION

            return StoreError(
                f"The database {self._target.shown} has the schema of another MLflow than the {VERSION} that is "
                f"installed: {truncate(text, 300)}",
                why="To write into tables laid out otherwise could damage them, so nothing was written.",
                fix="Install the MLflow that made the database, or back it up and run `mlflow db upgrade`; the "
                "journals are whole, and `trueloop runs sync` copies them then.",
            )
        refused = _is_rejection(error)
        kind, how = (StoreRejected, "refuses what was sent") if refused else (StoreUnavailable, "does not answer")
        return kind(
            f"The store {self._target.shown} {how}: {truncate(' '.join(text.split()), 300)}",
            why="The journals are whole; only their copy there is not.",
            fix=f"When {'that is mended' if refused else 'the store is back'}: trueloop runs sync.",
        )


def _is_rejection(error: Exception) -> bool:
    """Say whether this is an answer that blames the request (HTTP 4xx), and not one that asks to wait."""
    raised: Any = sys.modules.get("mlflow.exceptions")  # not imported here: the error may be that MLflow cannot be
    if raised is None or not isinstance(error, raised.MlflowException):
        return False
    status: int = cast("Any", error).get_http_status_code()
    return 400 <= status < 500 and status not in _RETRYABLE_STATUS


def _artifact_location(address: str) -> str | None:
    """Say where MLflow would put files: beside a database file; a server and PostgreSQL decide for themselves."""
    return (
        Path(address.removeprefix("sqlite:///")).with_name("mlartifacts").as_uri() if "sqlite" in address[:6] else None
    )


def _with_valid_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give everything a name that MLflow takes; of two that become one, the last counts."""
    return {_valid_name(key): value for key, value in values.items()}


def _valid_name(key: str) -> str:
    """Return a name of its characters that leads, read as a path, to where it says: no "//", no "..", no "/" around."""
    parts = _INVALID_IN_NAME.sub("_", key).split("/")
    plain = "/".join("_" * max(1, len(part)) if part in ("", ".") or part.startswith("..") else part for part in parts)
    return plain if len(plain) <= MAX_NAME_CHARS else plain[:MAX_NAME_CHARS].rstrip("/.")


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[k : k + size] for k in range(0, len(items), size))


def _pages(search: Callable[[Any], Any]) -> Iterator[Any]:
    page = search(None)
    yield from page
    while page.token:
        page = search(page.token)
        yield from page
