import re
from html.parser import HTMLParser

import pytest

from trueloop.core.errors import RunFolderError
from trueloop.core.html import CONTENT_POLICY
from trueloop.core.protocols import Notice, RunEnded, RunStarted, UpdatesDone
from trueloop.runs.journal import Journal, read_journal
from trueloop.runs.report import describe_outcome, write_report

VOID = {"meta", "br", "hr", "img", "input", "link", "path"}
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x' \x1b[31m"


class Page(HTMLParser):
    """Collects text and tags, and checks that every element is closed."""

    def __init__(self, markup):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def names(self):
        return [tag for tag, _ in self.tags]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def page_of(run_dir):
    return Page(write_report(run_dir).read_text(encoding="utf-8"))


def test_a_complete_run_is_shown_on_one_page(run, synthetic):
    run_dir = run(synthetic.finished_run(skipped=(40, 41)))
    assert write_report(run_dir) == run_dir / "report.html"
    page = page_of(run_dir)
    assert page.names.count("svg") == 6
    assert page.names.count("figcaption") == 6
    assert [page.names.count(tag) for tag in ("html", "head", "body", "main", "h1", "script", "link", "img")] == [
        1, 1, 1, 1, 1, 0, 0, 0
    ]  # fmt: skip
    for words in (
        "digits", "Finished", "12 epochs, 276 updates in 12.3 s.", "test accuracy 0.9833",
        "val loss 0.1204 best: epoch 10, update 230",
        "skipped updates 2", "Update 40 was not finite", "effective_batch 64", "betas 0.9, 0.999", "torch 2.13.0+cpu",
        "warmup 0.05", "waiting for data:", "27,722", "digit 8", "updates_per_epoch 23",
    ):  # fmt: skip
        assert words in page.words


def test_no_external_resources_are_loaded(run, synthetic):
    page = page_of(run(synthetic.finished_run()))
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": CONTENT_POLICY}) in page.tags
    values = [(name, value) for _, attributes in page.tags for name, value in attributes.items()]
    assert {value for _, value in values if value and "://" in value} == {"http://www.w3.org/2000/svg"}
    assert all(value.startswith("#") for name, value in values if name in {"src", "href", "xlink:href"})
    assert not re.search(r"@import|url\((?!#)", "".join(page.text))


def test_ids_are_unique_over_the_whole_page(run, synthetic):
    ids = [attributes["id"] for _, attributes in page_of(run(synthetic.finished_run())).tags if "id" in attributes]
    assert ids
    assert len(ids) == len(set(ids))


def test_hostile_names_stay_text(run, synthetic):
    facts = {
        "config": {HOSTILE: HOSTILE, "optim": {HOSTILE: [HOSTILE]}}, "options": {HOSTILE: {HOSTILE: None}},
        "class_names": [HOSTILE] * 10, "device": HOSTILE, "versions": {HOSTILE: HOSTILE},
    }  # fmt: skip
    events = list(synthetic.finished_run(facts=facts, name=HOSTILE, reason=HOSTILE))
    events.insert(5, Notice(update=5, kind=HOSTILE, message=HOSTILE, details={HOSTILE: HOSTILE}))
    path = write_report(run(events))
    raw = path.read_text(encoding="utf-8")
    assert "<script" not in raw
    assert "<img" not in raw
    assert "\x1b" not in raw
    page = Page(raw)
    assert "script" not in page.names
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert(1)</script>" in page.words  # present as text


@pytest.mark.parametrize("updates", [0, 1])
def test_a_run_that_was_killed_early_has_a_page(run, updates):
    start = RunStarted(name="x", epochs=1, updates=None, start_update=0, facts={})
    rows = [UpdatesDone(rows=[])] if not updates else []
    page = page_of(run([start, *rows]))
    assert "No end recorded" in page.words
    assert "svg" not in page.names


@pytest.mark.parametrize(
    ("reason", "tone", "word"),
    [("finished", "good", "Finished"), ("early_stop", "good", "Stopped early"), ("interrupted", "warn", "Interrupted"),
     ("failed", "bad", "Failed"), ("else", "warn", "else")],
)  # fmt: skip
def test_the_outcome_says_how_the_run_ended(run, synthetic, reason, tone, word):
    history = read_journal(run(synthetic.finished_run(epochs=1, reason=reason)))
    assert describe_outcome(history) == (tone, word, "1 epoch, 23 updates in 12.3 s.")


def test_a_resumed_run_counts_the_time_of_all_its_processes(run, synthetic):
    run_dir = run([*synthetic.finished_run(), synthetic.started(start_update=276)])
    journal = Journal(run_dir / "journal.jsonl")
    journal.report(RunEnded(update=276, reason="finished", seconds=0.001))
    journal.close()
    history = read_journal(run_dir)
    assert describe_outcome(history)[2].endswith(", in 2 processes.")
    assert "in 0.00 s" not in describe_outcome(history)[2]


def test_the_same_journal_makes_the_same_page(run, synthetic):
    run_dir = run(synthetic.finished_run())
    first = write_report(run_dir).read_bytes()
    assert write_report(run_dir, read_journal(run_dir)).read_bytes() == first


def test_a_missing_run_raises_a_clear_error(tmp_path):
    with pytest.raises(RunFolderError, match="There is no journal to read at"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_findings_memory_packages_and_source_are_shown(run, synthetic):
    facts = {**synthetic.FACTS, "packages": {"torch": "2.13.0"}, "source": {"mine.py": f"x = 1  # {HOSTILE}"}}
    found = {"code": "GRD001", "severity": "error", "path": f"/a/{HOSTILE}.py", "line": 7, "fix": "Clear them."}
    rows = list(synthetic.rows(1, 4))
    events = [
        synthetic.started(facts=facts),
        *(UpdatesDone(rows=[row], memory_mib=100.0 + row.update) for row in rows),
        Notice(update=3, kind="finding", message=f"GRD001 Never cleared: {HOSTILE}", details=found),
        Notice(update=4, kind="early_stop", message="enough", details={}),
    ]
    page = page_of(run(events))
    for words in ("Findings", "GRD001 Never cleared", "Fix: Clear them.", ":7", "Memory (MiB)", "1 installed package",
                  "The recipe's source: mine.py", "between 101 and 104 MiB"):  # fmt: skip
        assert words in page.words, words
    assert page.words.count("GRD001") == 1, "a finding is not a note, too"
    assert not {"script", "img"} & set(page.names)
