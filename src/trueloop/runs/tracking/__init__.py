"""Runs copied from their journals into a database that answers questions over many: MLflow, TensorBoard, W&B.

The journal is the truth. A process of its own follows it and writes to the store, so that training neither waits for a
database nor imports one; what it missed, `copy_run` repairs.

    trainer -> journal.jsonl -> follow.py -> copying.py -> survey.py       which lines still count
                                                           translation.py  what they are in a store
                                                           *_sink.py       how each store takes it
"""

from trueloop.runs.tracking.sink import StoreError, StoreRejected, StoreUnavailable
from trueloop.runs.tracking.sync_client import Follower
from trueloop.runs.tracking.sync_journal import Copied, copy_run
from trueloop.runs.tracking.target import Target, target_of

__all__ = ["Copied", "Follower", "StoreUnavailable", "StoreError", "StoreRejected", "Target", "copy_run", "target_of"]
