"""Tests of `trueloop lint` through its command line."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trueloop.cli.app import main
from trueloop.failures.load import catalogue

BAD, GOOD = catalogue()["GRD001"].failure.bad, catalogue()["GRD001"].failure.good


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lint(capsys):
    def lint(*command):
        code = main(["lint", *command])
        out, err = capsys.readouterr()
        return code, out, err

    return lint


def test_the_exit_code_says_clean_findings_or_not_checked(project, lint):
    assert lint("good.py")[0] == 0
    assert lint("bad.py", "good.py")[0] == 1
    (project / "broken.py").write_text("x = (\n")
    assert lint(".", "--strict")[0] == lint("broken.py")[0] == 2
    assert lint("good.py", "broken.py")[0] == 0
    code, out, err = lint(".")
    assert code == 1
    assert "GRD001" in out
    assert "broken.py: not checked: line 1" in err
    code, _, err = lint("gone.py")
    assert code == 1
    assert "There is no file or folder 'gone.py'" in err


def test_an_empty_folder_is_reported(project, lint):
    (project / "empty").mkdir()
    assert lint("empty") == (0, "Nothing checked: no Python file and no notebook found.\n", "")


def test_text_output_has_source_lines_and_fix_hints(project, lint):
    _, out, _ = lint("bad.py")
    assert "error GRD001  Gradients are never cleared" in out
    assert "│ optimizer.step()" in out
    assert "1 error in 1 file." in out
    assert "1 finding can be fixed by --fix." in out
    assert lint("good.py", "--quiet") == (0, "", "")


def test_the_documented_problem_matcher_parses_every_line(project, lint):
    page = (Path(__file__).parents[3] / "docs" / "linter.md").read_text()
    (tasks,) = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if "regexp" in block)
    (task,) = tasks["tasks"]
    pattern = task["problemMatcher"]["pattern"]
    (project / "deep folder").mkdir()
    for code in ("GRD001", "EVL004", "EVL007"):
        (project / "deep folder" / f"{code}: one.py").write_text(catalogue()[code].failure.bad)
    program, *command, file = task["command"].split()
    assert (program, command.pop(0), file) == ("trueloop", "lint", "${relativeFile}")
    arguments = ["--select", "GRD001,EVL004,EVL007", "."]
    expected = json.loads(lint("--format", "json", *arguments)[1])["findings"]
    matches = [re.match(pattern["regexp"], line) for line in lint(*command, *arguments)[1].splitlines()]
    assert len(matches) == len(expected) >= 3
    read = {tuple(match[pattern[name]] for name in ("file", "line", "column", "code", "severity")) for match in matches}
    assert {
        (os.path.relpath(each["path"]), str(each["line"]), each["code"], each["severity"]) for each in expected
    } == {(file, line, code, severity) for file, line, _, code, severity in read}
    assert all(match[pattern["message"]] for match in matches)
    assert {"error", "warning"} <= {severity for *_, severity in read} <= {"error", "warning", "info", "note"}


@pytest.mark.parametrize(
    ("form", "start"), [("concise", "bad.py:13:5: GRD001 error [*] "), ("github", "::error file=bad.py,line=13,")]
)
def test_one_finding_per_line(project, lint, form, start):
    _, out, _ = lint(".", "--format", form)
    (line,) = out.splitlines()
    assert line.startswith(start), line


def test_json_output_has_the_schema_of_a_run(project, lint):
    code, out, _ = lint(".", "--format", "json")
    content = json.loads(out)
    assert (code, content["schema"], content["verdict"], content["files"]) == (1, 1, "findings", 2)
    (finding,) = content["findings"]
    assert (finding["path"], finding["line"], finding["column"]) == ("bad.py", 13, 5)
    assert finding["autofix"]["edits"][0]["text"].strip() == "optimizer.zero_grad()"


def test_fixes_are_written_only_on_request(project, lint):
    os.chmod("bad.py", 0o751)
    code, out, _ = lint(".", "--diff")
    assert code == 1
    assert "+    optimizer.zero_grad()\n" in out
    assert (project / "bad.py").read_text() == BAD
    code, out, _ = lint(".", "--fix")
    assert code == 0
    assert "1 finding fixed." in out
    assert (project / "bad.py").stat().st_mode & 0o777 == 0o751
    assert (project / "good.py").read_text() == GOOD
    assert lint(".", "--diff")[:2] == (0, "")
    assert sorted(os.listdir()) == ["bad.py", "good.py"], "no temporary file is left"


def test_a_baseline_hides_only_listed_findings(project, lint):
    assert lint(".", "--write-baseline", "known.json")[0] == 0
    code, out, _ = lint(".", "--baseline", "known.json")
    assert code == 0
    assert "1 finding listed in the baseline" in out
    (project / "bad.py").write_text("\n\n" + BAD + BAD.replace("optimizer", "opt"))
    code, out, _ = lint(".", "--baseline", "known.json", "--format", "concise")
    assert code == 1
    assert len(out.splitlines()) == 1


def test_add_ignore_suppresses_all_findings(project, lint):
    code, out, _ = lint(".", "--add-ignore")
    assert code == 0
    assert "1 finding suppressed by a new comment" in out
    assert "optimizer.step()  # trueloop: ignore[GRD001]" in (project / "bad.py").read_text()
    code, out, _ = lint(".")
    assert code == 0
    assert "1 finding suppressed by comments" in out
    (project / "good.py").write_text(GOOD.replace("optimizer.step()", "optimizer.step()  # trueloop: ignore[GRD001]"))
    assert "good.py:14: `# trueloop: ignore[GRD001]` suppresses no finding" in lint(".")[1]


def test_codes_are_selected_by_options_and_settings(project, lint):
    assert lint(".", "--ignore", "GRD001")[0] == 0
    assert lint(".", "--select", "evaluation")[0] == 0
    assert lint(".", "--select", "never-cleared")[0] == 1
    assert lint(".", "--select", "XYZ")[0] == 1
    (project / "pyproject.toml").write_text('[tool.trueloop]\nexclude = ["bad.py"]\n')
    assert lint(".")[0] == 0
    (project / "pyproject.toml").write_text('[tool.trueloop]\nignore = ["GRD"]\n')
    assert lint(".")[0] == 0


def test_statistics_and_explain(project, lint):
    assert lint(".", "--statistics", "--quiet")[1] == "1  GRD001  [*]  never-cleared: Gradients are never cleared\n"
    assert "Why it happens" in lint("--explain", "GRD001")[1]


def test_standard_input(project, lint, monkeypatch):
    def set_stdin(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    set_stdin(BAD)
    code, out, _ = lint("-", "--stdin-filename", "x/y.py", "--format", "concise")
    assert (code, out.split()[0]) == (1, "x/y.py:13:5:")
    set_stdin("x = (")
    assert lint("-")[0] == 2
    set_stdin(GOOD)
    assert lint("-")[0] == 0
    assert lint("-", "bad.py")[0] == 1


def test_standard_input_is_fixed_to_standard_output(project):
    process = subprocess.run(
        [sys.executable, "-m", "trueloop", "lint", "-", "--fix"], input=BAD.encode(), capture_output=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "optimizer.zero_grad()" in process.stdout.decode()
    assert process.stdout.decode().replace("    optimizer.zero_grad()\n", "") == BAD
    assert b"1 finding fixed" in process.stderr


def test_neither_torch_nor_numpy_is_imported(project):
    code = (
        "import sys; from trueloop.cli.app import main; main(['lint', '.']); "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
