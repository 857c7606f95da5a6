"""Sync run journals to experiment trackers: MLflow, TensorBoard, W&B.

The journal is the source of truth. A separate process tails it and writes to the store, so that training neither waits
for a database nor imports one; `sync_run` adds what that process missed.

    trainer -> journal.jsonl -> sync_process.py -> sync_journal.py -> journal_index.py  which lines are current
                                                                      translation.py    journal -> store records
                                                                      *_sink.py         store records -> store
"""

from trueloop.runs.tracking.sink import StoreError, StoreRejected, StoreUnavailable
from trueloop.runs.tracking.sync_client import SyncClient
from trueloop.runs.tracking.sync_journal import SyncResult, sync_run
from trueloop.runs.tracking.target import Target, parse_target

__all__ = [
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "SyncClient",
    "SyncResult",
    "Target",
    "parse_target",
    "sync_run",
]
