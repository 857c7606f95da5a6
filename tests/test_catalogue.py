"""Checks that hold for every file of the catalogue; a new file needs no edit here."""

from __future__ import annotations

import random
import re
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trueloop.failures
from trueloop.analysis.project import contains_word
from trueloop.cli.explain import explain_command
from trueloop.core.findings import Finding, Report, Severity, Verdict
from trueloop.failures.load import FAMILIES, SECTIONS, Entry, catalogue
from trueloop.failures.page import split_sections
from trueloop.lint.check_file import ActiveRule, lint_text
from trueloop.lint.fix import fix_text
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch
from trueloop.tracing.saved_tensors import UNSUPPORTED_TORCH

HERE = Path(trueloop.failures.__file__).parent
ENTRIES = list(catalogue().values())
SEEDS = (0, pytest.param(1, marks=pytest.mark.slow(reason="a repetition with another seed")))
NEEDS_ACCELERATOR = {"DAT006"}  # cannot happen on a CPU
UNFIXED = {
    "CKP002",
    "CKP005",
    "CKP008",
    "CKP011",
    "CKP012",
    "CKP013",
    "CKP014",
    "CKP016",
    "CKP017",
    "CKP018",
    "DAT001",
    "DAT002",
    "DAT005",
    "DAT010",
    "DAT011",
    "DAT012",
    "DAT015",
    "DAT016",
    "DAT019",
    "DAT020",
    "DAT022",
    "DAT023",
    "DAT024",
    "DAT025",
    "DAT026",
    "DAT027",
    "DAT028",
    "DAT029",
    "DAT030",
    "DAT031",
    "DAT032",
    "DAT033",
    "DAT034",
    "DAT035",
    "DAT036",
    "DAT037",
    "DAT038",
    "DAT039",
    "DAT040",
    "DAT042",
    "DAT043",
    "DAT044",
    "DAT045",
    "DAT047",
    "DAT048",
    "DAT049",
    "DAT051",
    "DAT053",
    "DAT054",
    "DAT057",
    "DAT059",
    "DAT061",
    "DAT065",
    "DAT066",
    "DAT068",
    "DAT069",
    "ENV007",
    "ENV008",
    "ENV009",
    "ENV010",
    "ENV012",
    "EVL005",
    "EVL006",
    "EVL010",
    "EVL012",
    "EVL015",
    "EVL016",
    "EVL019",
    "EVL021",
    "EVL022",
    "EVL023",
    "EVL024",
    "EVL027",
    "EVL028",
    "EVL029",
    "EVL030",
    "EVL031",
    "EVL032",
    "EVL033",
    "EVL034",
    "EVL035",
    "EVL036",
    "EVL037",
    "GRD005",
    "GRD009",
    "GRD016",
    "GRD020",
    "GRD025",
    "GRD026",
    "GRD027",
    "GRD029",
    "GRD030",
    "GRD032",
    "GRD033",
    "GRD034",
    "GRD035",
    "GRD036",
    "GRD037",
    "LOS003",
    "LOS004",
    "LOS013",
    "LOS017",
    "LOS018",
    "LOS020",
    "LOS022",
    "LOS024",
    "LOS025",
    "LOS027",
    "LOS028",
    "LOS029",
    "LOS030",
    "LOS031",
    "LOS033",
    "LOS034",
    "LOS037",
    "LOS038",
    "LOS039",
    "LOS040",
    "LOS044",
    "LOS045",
    "LOS046",
    "LOS051",
    "LOS052",
    "LOS053",
    "LOS054",
    "LOS056",
    "LOS057",
    "LOS058",
    "LOS059",
    "LOS060",
    "LOS062",
    "LOS063",
    "LOS064",
    "LOS065",
    "LOS067",
    "LOS069",
    "LOS070",
    "LOS073",
    "LOS075",
    "LOS076",
    "LOS077",
    "LOS078",
    "LOS079",
    "LOS080",
    "LRN007",
    "MDL008",
    "MDL012",
    "MDL014",
    "MDL016",
    "MDL017",
    "MDL021",
    "MDL022",
    "MDL023",
    "MDL024",
    "MDL026",
    "MDL027",
    "MDL032",
    "MDL033",
    "MDL038",
    "MDL041",
    "MDL042",
    "MDL043",
    "MDL044",
    "MDL045",
    "MDL046",
    "MDL047",
    "MDL048",
    "OPT010",
    "OPT013",
    "OPT017",
    "OPT018",
    "OPT020",
    "OPT021",
    "OPT022",
    "PRC004",
    "PRC008",
    "SCH003",
    "SCH004",
    "SCH006",
    "SCH008",
    "SCH012",
    "SCH013",
    "SCH014",
    "SCH015",
    "SCH016",
    "SCH017",
    "SCH018",
}  # failures without a fix: the source code does not show what the author intends

every_failure = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.code}-{entry.slug}")
every_failure_with_detector = pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.failure.detector], ids=lambda entry: f"{entry.code}-{entry.slug}"
)


def file_of(entry: Entry) -> Path:
    """Return the file of a failure, or the `__init__.py` of its folder."""
    path = HERE / entry.family / entry.slug.replace("-", "_")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# The page --------------------------------------------------------------------------------------------------------


@every_failure
def test_file_code_and_slug_match(entry: Entry):
    assert re.fullmatch(FAMILIES[entry.family] + r"\d{3}", entry.code)
    assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", entry.slug)
    assert file_of(entry).is_file()
    assert entry.failure.doc == docstring(entry), "the docstring is the page"


def docstring(entry: Entry) -> str | None:
    import importlib

    return importlib.import_module(f"trueloop.failures.{entry.family}.{entry.slug.replace('-', '_')}").__doc__


@every_failure
def test_the_page_has_all_sections_in_order(entry: Entry):
    parts = list(split_sections(entry.failure.doc))
    assert [heading for heading, _ in parts] == ["", *SECTIONS]
    assert all(len(text.split()) >= 2 for _, text in parts), [heading for heading, text in parts if not text.strip()]
    assert is_one_sentence(" ".join(parts[0][1].split("\n\n")[0].split()))


def is_one_sentence(text: str) -> bool:
    return text.endswith(".") and not re.search(r"[.!?]\s+[A-Z]", text) and "\n" not in text


@every_failure
def test_title_and_fix_are_one_sentence(entry: Entry):
    title, fix = entry.failure.title, entry.failure.fix
    is_code = any(sign in title.split()[0] for sign in "._(=")
    assert title[0].isupper() or not title[0].isalpha() or is_code
    assert is_one_sentence(f"{title}."), title
    assert not title.endswith("."), "a title has no full stop"
    assert is_one_sentence(fix), fix


@every_failure
def test_explain_prints_the_page(entry: Entry, capsys: pytest.CaptureFixture[str]):
    explain_command(entry.slug)
    output = " ".join(capsys.readouterr().out.split())
    assert entry.code in output
    for text in (entry.failure.title, entry.failure.fix, *SECTIONS):
        assert " ".join(text.split()) in output
    if entry.failure.detector is None:
        assert "Only the linter finds it" in output or "found by trueloop doctor" in output, (
            "the page states how the failure is detected"
        )


# The rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.failure.rule], ids=lambda entry: f"{entry.code}-{entry.slug}"
)
def test_lint_reports_the_bad_script_and_not_the_good_one(entry: Entry):
    assert entry.failure.rule is not None
    rules = [ActiveRule(each.failure, each.slug, each.failure.rule) for each in ENTRIES if each.failure.rule]
    assert entry.failure.rule.may_match(partial(contains_word, entry.failure.bad))
    findings = lint_text(entry.failure.bad, "bad.py", rules).findings
    assert {each.code for each in findings if each.severity != Severity.NOTE} <= {entry.code}
    assert entry.code in {each.code for each in findings}
    assert all(each.message.endswith(".") and each.fix for each in findings)
    good = lint_text(entry.failure.good, "good.py", rules).findings
    assert not [each for each in good if each.code == entry.code or each.severity != Severity.NOTE]


# The detector ----------------------------------------------------------------------------------------------------


@every_failure
@pytest.mark.parametrize("name", ["bad", "good"])
def test_the_scripts_are_complete(entry: Entry, name: str):
    script: str = getattr(entry.failure, name)
    compile(script, name, "exec")
    assert "trueloop" not in re.sub(r"#.*", "", script), "scripts do not use trueloop"
    assert entry.failure.bad != entry.failure.good


@every_failure_with_detector
def test_run_reports_the_bad_script_with_this_code_only(entry: Entry, tmp_path: Path):
    if entry.code in NEEDS_ACCELERATOR and not torch.cuda.is_available():
        pytest.skip("there is no accelerator")
    path, report = run(entry, "bad", 0, tmp_path)
    if "cuda" in entry.failure.bad and not torch.cuda.is_available():
        assert [each for each in report.verdicts if each.code == entry.code and each.verdict is Verdict.NOT_JUDGED]
        return
    fired = [finding for finding in report.findings if finding.code == entry.code]
    if not fired and (UNSUPPORTED_TORCH, entry.code) in {(each.reason, each.code) for each in report.verdicts}:
        pytest.skip(UNSUPPORTED_TORCH)
    assert fired, f"{entry.code} is not found; {[str(each) for each in report.verdicts if each.code == entry.code]}"
    assert all(finding.location and finding.location.path == str(path) for finding in fired), descriptions(fired)
    assert all(finding.message.strip() and finding.fix.strip() for finding in fired)
    assert not [others for others in descriptions(serious(report)) if not others.startswith(entry.code)]


@every_failure_with_detector
@pytest.mark.parametrize("seed", SEEDS)
def test_run_accepts_the_good_script(entry: Entry, seed: int, tmp_path: Path):
    _, report = run(entry, "good", seed, tmp_path)
    assert not descriptions(serious(report))
    assert not [finding for finding in report.findings if finding.code == entry.code]


SHOWN_IN_A_RUN_BY = {"MDL006": "MDL014"}
"""Failures that only the linter names, with the failure that a run reports instead."""


@pytest.mark.parametrize("name", ["bad", "good"])
@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if not entry.failure.detector], ids=lambda entry: f"{entry.code}-{entry.slug}"
)
def test_scripts_of_lint_only_failures_run_without_findings(entry: Entry, name: str, tmp_path: Path):
    _, report = run(entry, name, 0, tmp_path)
    shown = [SHOWN_IN_A_RUN_BY[entry.code]] if name == "bad" and entry.code in SHOWN_IN_A_RUN_BY else []
    assert [each.code for each in serious(report)] == shown, descriptions(serious(report))


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.failure.rule], ids=lambda entry: f"{entry.code}-{entry.slug}"
)
def test_the_fixed_bad_script_runs_without_findings(entry: Entry, tmp_path: Path):
    assert entry.failure.rule is not None
    rules = [ActiveRule(entry.failure, entry.slug, entry.failure.rule)]
    fixed = fix_text(entry.failure.bad, "train.py", rules, unsafe=True).text
    assert (fixed == entry.failure.bad) is (entry.code in UNFIXED)
    if fixed != entry.failure.bad:
        _, report = run(entry, "fixed", 0, tmp_path, script=fixed)
        assert not descriptions(serious(report)), fixed
        assert entry.code not in {finding.code for finding in report.findings}, fixed


def run(entry: Entry, name: str, seed: int, folder: Path, script: str = "") -> tuple[Path, Report]:
    """Run a script of the page with all detectors and shifted seeds."""
    script = script or getattr(entry.failure, name)
    path = folder / f"{name}_script.py"
    path.write_text(re.sub(r"seed\((\d+)\)", lambda match: f"seed({int(match[1]) + seed})", script))
    for set_seed in (torch.manual_seed, random.seed, np.random.seed):
        set_seed(seed)
    raises = entry.failure.detector is not None and hasattr(entry.failure.detector, "on_error_raised")
    watch = Watch([WatchedFailure(each.failure, each.slug) for each in ENTRIES])
    watch.start()
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception as error:
        watch.report_error(error)
        if not raises or name != "bad":
            raise
    finally:
        report = watch.stop()
    assert not report.problems
    return path, report


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run in a temporary folder and restore the global settings of PyTorch."""
    monkeypatch.chdir(tmp_path)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def serious(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity != Severity.NOTE]


def descriptions(findings: list[Finding]) -> list[str]:
    return [f"{finding.code} {finding.location}: {finding.message}" for finding in findings]


def test_the_catalogue_is_not_empty():
    assert ENTRIES
