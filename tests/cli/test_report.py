import json

import pytest
from PIL import Image

from trueloop.cli.report import report_command
from trueloop.core.errors import RunFolderError
from trueloop.core.protocols import RunEnded, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs import Journal


@pytest.fixture
def run_dir(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.report(RunStarted(name="digits", epochs=1, updates=2, start_update=0, facts={}))
    rows = [UpdateRow(k, 1, 1 / k, 1.0, 0.1, 8, 0.0, 0.01, False) for k in (1, 2)]
    journal.report(UpdatesDone(rows=rows))
    journal.report(RunEnded(update=2, reason="finished", seconds=0.5))
    journal.close()
    return tmp_path


def test_both_files_are_written_and_named(run_dir, capsys):
    report_command(run_dir)
    assert capsys.readouterr().out == f"report  {run_dir / 'report.html'}\ncurves  {run_dir / 'curves.png'}\n"
    assert "2 updates in 500 ms" in (run_dir / "report.html").read_text()
    with Image.open(run_dir / "curves.png") as image:
        assert image.format == "PNG"
    assert sorted(path.name for path in run_dir.iterdir()) == ["curves.png", "journal.jsonl", "report.html"]


def test_json_is_one_object(run_dir, capsys):
    report_command(run_dir, json=True)
    assert json.loads(capsys.readouterr().out) == {
        "report": str(run_dir / "report.html"),
        "curves": str(run_dir / "curves.png"),
    }


def test_an_old_report_is_replaced(run_dir):
    (run_dir / "report.html").write_text("old")
    report_command(run_dir)
    assert (run_dir / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_missing_folder_or_journal_is_an_error(tmp_path):
    with pytest.raises(RunFolderError, match="There is no journal to read at .*absent: No such file or directory"):
        report_command(tmp_path / "absent")
    with pytest.raises(RunFolderError, match=r"There is no journal to read at .*journal\.jsonl: No such file"):
        report_command(tmp_path)
    assert list(tmp_path.iterdir()) == []
