"""What a run leaves behind to be read: the journal, the curves, the report."""

from trueloop.engines.store.curves import figures, save_curves
from trueloop.engines.store.history import History
from trueloop.engines.store.journal import Journal, read
from trueloop.engines.store.report import write_report

__all__ = ["History", "Journal", "figures", "read", "save_curves", "write_report"]
