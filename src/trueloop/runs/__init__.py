"""What a run leaves behind to be read: the journal, the curves, the report."""

from trueloop.runs.curves import figures, save_curves
from trueloop.runs.history import History
from trueloop.runs.journal import Journal, read
from trueloop.runs.report import write_report

__all__ = ["History", "Journal", "figures", "read", "save_curves", "write_report"]
