"""Derive the metadata of a run for a store from its start event: flat params and searchable tags."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from trueloop.core.protocols import RunStarted
from trueloop.runs.history import iter_leaves
from trueloop.runs.run_id import parse_run_id
from trueloop.runs.tracking.sink import SCHEMA, RunMetadata, truncate

MAX_PARAM_CHARS = 500  # the limit of MLflow servers since 1.0
MAX_TAG_CHARS = 5000
MAX_NESTED_TAGS = 30  # entries of a mapping that become separate tags; a larger mapping (all packages) is one tag
_NOT_TAGS = frozenset({"config", "options", "class_names", "run_id", "source", "command"})


def make_run_metadata(started: RunStarted, *, folder: str, started_s: float, first_line: bytes) -> RunMetadata:
    """Build the metadata of a run.

    Args:
        started: start event of the newest process.
        folder: name of the run folder.
        started_s: start time of the first process, in seconds since 1970.
        first_line: first line of the journal, which identifies the run.
    """
    facts = started.facts
    config, options = facts.get("config", {}), facts.get("options", {})
    params = dict(_flatten_params("", config)) | dict(_flatten_params("options.", options))
    tags = dict(_tags(facts))
    started_ms = int(started_s * 1000)
    identity = json.dumps([SCHEMA, started_ms, sorted(params.items()), sorted(tags)])
    return RunMetadata(
        run_id=parse_run_id(first_line),
        name=folder.encode(errors="replace").decode() or started.name,
        group=started.name or "run",
        started_ms=started_ms,
        params=params,
        tags=tags,
        fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16],
    )


def _flatten_params(prefix: str, tree: object) -> Iterator[tuple[str, str]]:
    if isinstance(tree, Mapping):
        for name, value in iter_leaves(cast("Mapping[str, Any]", tree), prefix):
            yield name, truncate(_text(value), MAX_PARAM_CHARS)


def _tags(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    commit = facts.get("git")
    commit = commit.get("commit") if isinstance(commit, Mapping) else commit
    if isinstance(commit, str):
        yield "mlflow.source.git.commit", commit.rstrip("+")  # the tag that MLflow's pages show
    yield from _flatten_tags("trueloop.", {key: value for key, value in facts.items() if key not in _NOT_TAGS})


def _flatten_tags(prefix: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and 0 < len(cast("Mapping[str, Any]", value)) <= MAX_NESTED_TAGS:
            yield from _flatten_tags(f"{prefix}{key}.", cast("Mapping[str, Any]", value))
        else:
            yield f"{prefix}{key}", truncate(_text(value), MAX_TAG_CHARS)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
