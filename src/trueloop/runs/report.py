"""The report of a run: one HTML file that needs no network and no script, for a screen, a phone or paper."""

from __future__ import annotations

from pathlib import Path
from time import localtime, strftime

from trueloop.core.errors import RunFolderError
from trueloop.core.formatting import format_count, duration, format_number, short
from trueloop.core.html import Markup, element, section
from trueloop.runs.confusion import confusion_section
from trueloop.runs.curves import svg
from trueloop.runs.history import History
from trueloop.runs.html_page import page
from trueloop.runs.journal import FILE_NAME, read
from trueloop.runs.panels import panels
from trueloop.runs.report_sections import checkpoints, environment, evaluations, findings, notes, settings, time_split

REPORT_NAME = "report.html"

VERDICTS = {
    "finished": ("good", "Finished"),
    "early_stop": ("good", "Stopped early"),
    "interrupted": ("warn", "Interrupted"),
    "preempted": ("warn", "Preempted"),
    "failed": ("bad", "Failed"),
}


def write_report(run_dir: Path, history: History | None = None) -> Path:
    """Write RUN/report.html from the journal; written beside and renamed, so never half there.

    Args:
        run_dir: the run's folder, with its journal.
        history: what `read` returned for it, where that is at hand already.

    Returns:
        The path of the report.

    Raises:
        RunFolderError: there is no journal, or the report cannot be written.
        InvalidData: the journal is damaged.
        MissingExtra: matplotlib is not installed.
    """
    path = run_dir / REPORT_NAME
    page = document(history or read(run_dir), run_dir)
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise RunFolderError(f"The report cannot be written to {path}: {error.strerror or error}.") from error
    return path


def document(history: History, run_dir: Path) -> str:
    """Lay the whole page out; ``run_dir`` tells which checkpoints are still there."""
    parts = [
        _header(history),
        _cards(history),
        findings(history),
        _curves(history),
        confusion_section(history),
        evaluations(history),
        time_split(history),
        checkpoints(history, run_dir),
        notes(history),
        settings(history),
        environment(history),
        element("footer", f"Written by trueloop from {FILE_NAME}, which holds every number shown here."),
    ]
    return page(f"{history.started.name}: trueloop run", parts)


def verdict(history: History) -> tuple[str, str, str]:
    """Say how the run ended: a tone ("good", "warn", "bad"), a word or two, and a sentence."""
    end, done = history.end, history.last_update
    epochs = history.updates.epoch[-1] if len(history.updates) else 0
    far = f"{format_count(epochs, 'epoch')}, {format_count(done, 'update')}"
    if end is None:
        return "warn", "No end recorded", f"Still running, or killed after {far}; the same command resumes it."
    tone, word = VERDICTS.get(end.reason, ("warn", end.reason))
    seconds = end.seconds if history.processes == 1 else history.time_split().total
    resumed = f", in {format_count(history.processes, 'process')}" if history.processes > 1 else ""
    return tone, word, f"{far} in {duration(seconds)}{resumed}."


def _header(history: History) -> Markup:
    tone, word, sentence = verdict(history)
    began = strftime("%Y-%m-%d %H:%M", localtime(history.started_at))
    return element(
        "header",
        element("p", f"trueloop run, begun {began}", class_="kicker"),
        element("h1", history.started.name),
        element("p", element("span", word, class_=f"pill {tone}"), " ", sentence, class_="verdict"),
    )


def _cards(history: History) -> Markup:
    shown: list[tuple[str, str, str]] = []
    test, best = history.latest("test"), history.best or history.latest("val")
    if test:
        shown += [(f"test {name}", short(value, 4), "with the final weights") for name, value in test.metrics.items()]
    if best:
        word = "at the best" if best.best else "newest"
        shown += [
            (f"{best.split} {name}", short(value, 4), f"{word}: epoch {best.epoch}, update {best.update}")
            for name, value in best.metrics.items()
        ]
    trained = sum(history.updates.total_s)
    if trained > 0:
        shown.append(("speed", f"{sum(history.updates.examples) / trained:,.0f}", "examples per second"))
    if history.skipped:
        shown.append(("skipped updates", format_number(len(history.skipped)), "not finite, not stepped"))
    if history.end and history.end.peak_memory_mib is not None:
        shown.append(("peak memory", f"{history.end.peak_memory_mib:,.0f} MiB", "tensors on the GPU, else the process"))
    if isinstance(parameters := history.facts.get("parameters"), int):
        shown.append(("parameters", f"{parameters:,}", "trainable"))
    cards = (
        element("div", element("dt", name), element("dd", value), element("dd", unit, class_="unit"))
        for name, value, unit in shown
    )
    return element("dl", *cards, class_="cards")


def _curves(history: History) -> Markup:
    drawn = (
        element("figure", element("h3", panel.title), Markup(svg(panel)), element("figcaption", panel.caption))
        for panel in panels(history)
    )
    return section("Curves", element("div", *drawn, class_="curves")) if len(history.updates) else Markup()
