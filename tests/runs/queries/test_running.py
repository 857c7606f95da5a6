import os
import subprocess
import sys

from trueloop.app.training.run_folder import RunFolder
from trueloop.runs.queries.running import is_training


def test_a_lock_is_detected_only_while_it_is_held(tmp_path):
    assert is_training(tmp_path) is False
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"
    with RunFolder(tmp_path).lock():
        assert is_training(tmp_path) is True
    assert is_training(tmp_path) is False
    assert (tmp_path / ".lock").is_file()


def test_the_lock_of_another_process_ends_with_it(tmp_path):
    code = f"""
import sys
from pathlib import Path
from trueloop.app.training.run_folder import RunFolder
with RunFolder(Path({str(tmp_path)!r})).lock():
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert is_training(tmp_path) is True
        process.kill()
        process.wait()
    assert is_training(tmp_path) is False


def test_two_concurrent_checks_do_not_see_each_other(tmp_path):
    import fcntl

    (tmp_path / ".lock").touch()
    looking = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert is_training(tmp_path) is False
    os.close(looking)


def test_a_link_instead_of_a_lock_file_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").touch()
    (tmp_path / ".lock").symlink_to("elsewhere")
    assert is_training(tmp_path) is None
