"""`trueloop lint` as people use it."""

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
    def lint(*words):
        code = main(["lint", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return lint


def test_the_exit_code_says_clean_found_or_not_judged(project, lint):
    assert lint("good.py")[0] == 0
    assert lint("bad.py", "good.py")[0] == 1
    (project / "broken.py").write_text("x = (\n")
    code, out, err = lint(".")
    assert code == 2
    assert "GRD001" in out
    assert "broken.py: not judged: line 1" in err
    code, _, err = lint("gone.py")
    assert code == 1
    assert "There is no file or folder 'gone.py'" in err


def test_a_folder_with_nothing_to_read_is_said_to_be_one(project, lint):
    (project / "empty").mkdir()
    assert lint("empty") == (0, "Not judged: there is no Python file and no notebook.\n", "")


def test_people_see_the_lines_and_what_can_be_done(project, lint):
    _, out, _ = lint("bad.py")
    assert "error GRD001  Gradients are never cleared" in out
    assert "│ optimizer.step()" in out
    assert "1 error in 1 file." in out
    assert "1 finding can be fixed by --fix." in out
    assert lint("good.py", "--quiet") == (0, "", "")


def test_the_problem_matcher_of_the_docs_reads_every_line(project, lint):
    page = (Path(__file__).parents[2] / "docs" / "linter.md").read_text()
    (tasks,) = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if "regexp" in block)
    (task,) = tasks["tasks"]
    pattern = task["problemMatcher"]["pattern"]
    (project / "deep folder").mkdir()
    for code in ("GRD001", "EVL004", "EVL007"):
        (project / "deep folder" / f"{code}: one.py").write_text(catalogue()[code].failure.bad)
    program, *words, file = task["command"].split()
    assert (program, words.pop(0), file) == ("trueloop", "lint", "${relativeFile}")
    given = ["--select", "GRD001,EVL004,EVL007", "."]
    expected = json.loads(lint("--format", "json", *given)[1])["findings"]
    matches = [re.match(pattern["regexp"], line) for line in lint(*words, *given)[1].splitlines()]
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
def test_findings_one_per_line(project, lint, form, start):
    _, out, _ = lint(".", "--format", form)
    (line,) = out.splitlines()
    assert line.startswith(start), line


def test_programs_get_the_same_shape_as_of_a_run(project, lint):
    code, out, _ = lint(".", "--format", "json")
    content = json.loads(out)
    assert (code, content["schema"], content["verdict"], content["files"]) == (1, 1, "findings", 2)
    (finding,) = content["findings"]
    assert (finding["path"], finding["line"], finding["column"]) == ("bad.py", 13, 5)
    assert finding["autofix"]["edits"][0]["text"].strip() == "optimizer.zero_grad()"


def test_fixes_are_written_only_where_they_are_wanted(project, lint):
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
    assert sorted(os.listdir()) == ["bad.py", "good.py"], "nothing is left behind"


def test_a_baseline_hides_what_was_there_and_nothing_new(project, lint):
    assert lint(".", "--write-baseline", "known.json")[0] == 0
    code, out, _ = lint(".", "--baseline", "known.json")
    assert code == 0
    assert "1 finding known to the baseline" in out
    (project / "bad.py").write_text("\n\n" + BAD + BAD.replace("optimizer", "opt"))
    code, out, _ = lint(".", "--baseline", "known.json", "--format", "concise")
    assert code == 1
    assert len(out.splitlines()) == 1


def test_an_old_code_base_is_silenced_line_by_line(project, lint):
    code, out, _ = lint(".", "--add-ignore")
    assert code == 0
    assert "1 finding silenced by a comment" in out
    assert "optimizer.step()  # trueloop: ignore[GRD001]" in (project / "bad.py").read_text()
    code, out, _ = lint(".")
    assert code == 0
    assert "1 finding silenced by comments" in out
    (project / "good.py").write_text(GOOD.replace("optimizer.step()", "optimizer.step()  # trueloop: ignore[GRD001]"))
    assert "good.py:14: `# trueloop: ignore[GRD001]` silences nothing" in lint(".")[1]


def test_codes_are_chosen_by_options_and_settings(project, lint):
    assert lint(".", "--ignore", "GRD001")[0] == 0
    assert lint(".", "--select", "evaluation")[0] == 0
    assert lint(".", "--select", "never-cleared")[0] == 1
    assert lint(".", "--select", "XYZ")[0] == 1
    (project / "pyproject.toml").write_text('[tool.trueloop]\nexclude = ["bad.py"]\n')
    assert lint(".")[0] == 0
    (project / "pyproject.toml").write_text('[tool.trueloop]\nignore = ["GRD"]\n')
    assert lint(".")[0] == 0


def test_statistics_and_the_page_of_a_failure(project, lint):
    assert lint(".", "--statistics", "--quiet")[1] == "1  GRD001  [*]  never-cleared: Gradients are never cleared\n"
    assert "Why it happens" in lint("--explain", "GRD001")[1]


def test_standard_input(project, lint, monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    give(BAD)
    code, out, _ = lint("-", "--stdin-filename", "x/y.py", "--format", "concise")
    assert (code, out.split()[0]) == (1, "x/y.py:13:5:")
    give("x = (")
    assert lint("-")[0] == 2
    give(GOOD)
    assert lint("-")[0] == 0
    assert lint("-", "bad.py")[0] == 1


def test_standard_input_is_fixed_to_standard_output(project):
    done = subprocess.run(
        [sys.executable, "-m", "trueloop", "lint", "-", "--fix"], input=BAD.encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "optimizer.zero_grad()" in done.stdout.decode()
    assert done.stdout.decode().replace("    optimizer.zero_grad()\n", "") == BAD
    assert b"1 finding fixed" in done.stderr


def test_neither_torch_nor_numpy_is_imported(project):
    code = (
        "import sys; from trueloop.cli.app import main; main(['lint', '.']); "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
