"""Read and write the records of a run: journal, curves, report."""

from trueloop.runs.curves import save_curves, svg_figures
from trueloop.runs.history import History
from trueloop.runs.journal import Journal, read_journal
from trueloop.runs.report import write_report

__all__ = ["History", "Journal", "read_journal", "save_curves", "svg_figures", "write_report"]
