"""The container's entrypoint and health check themselves, run by a plain shell with stand-ins for trueloop."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT, HEALTHCHECK = ROOT / "deploy" / "entrypoint.sh", ROOT / "deploy" / "healthcheck.sh"
# Says how it is called; as the doctor it ends with DOCTOR, or with FALLBACK where only that check is made.
STAND_IN = """#!/bin/sh
echo "trueloop $*" >> "$CALLS"
if [ "$1" = doctor ]; then
    echo "the doctor's page"
    case "$*" in *--only*) exit "${FALLBACK:-0}" ;; esac
    exit "${DOCTOR:-0}"
fi
echo "ran as $$: $*"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("trueloop", "torchrun"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    return tmp_path


def enter(folder: Path, *words: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    calls = folder / "calls"
    calls.write_text("")
    path = f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"
    done = subprocess.run(
        ["sh", ENTRYPOINT, *words], env={"PATH": path, "CALLS": str(calls), **environment}, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done, calls.read_text().splitlines()


def test_a_run_starts_behind_the_doctors_page_which_leaves_standard_output_alone(folder: Path):
    done, calls = enter(folder, "train", "digits", "--json", "two words", "*")
    assert (done.returncode, calls) == (0, ["trueloop doctor --quick", "trueloop train digits --json two words *"])
    assert done.stderr == "the doctor's page\n"
    assert done.stdout.endswith(": train digits --json two words *\n")


def test_no_shell_stays_in_between(folder: Path):
    (folder / "own").write_text('#!/bin/sh\necho "$$ $PPID"\n')
    (folder / "own").chmod(0o755)
    with subprocess.Popen(
        ["sh", ENTRYPOINT, "./own"],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        said, _ = process.communicate()
    assert said.split() == [str(process.pid), str(os.getpid())]


@pytest.mark.parametrize(
    "words",
    [
        ["lint", "src"],
        ["explain", "GRD001"],
        ["trueloop", "--version"],
        ["train", "--help"],
        ["ls"],
        ["export", "--help"],
    ],
)
def test_what_trains_nothing_is_not_looked_at(folder: Path, words: list[str]):
    done, calls = enter(folder, *words, TRUELOOP_REQUIRE_GPU="1", DOCTOR="1", FALLBACK="1")
    assert done.returncode == 0
    assert "trueloop doctor --quick" not in calls


def test_a_word_of_the_shell_is_a_command_of_ours(folder: Path):
    _, calls = enter(folder, "export", "run-1")
    assert calls == ["trueloop export run-1"]


def test_nothing_at_all_is_help(folder: Path):
    assert enter(folder)[1] == ["trueloop --help"]


@pytest.mark.parametrize("program", [["python", "-c", "print('ran')"], ["torchrun", "ran"], ["trueloop", "run", "ran"]])
def test_programs_that_train_are_looked_at_too(folder: Path, program: list[str]):
    done, calls = enter(folder, *program)
    assert calls[0] == "trueloop doctor --quick"
    assert (done.returncode, "ran" in done.stdout) == (0, True)


@pytest.mark.parametrize("said", ["1", "true", "yes"])
def test_without_a_gpu_nothing_starts_where_one_is_required(folder: Path, said: str):
    done, calls = enter(
        folder, "train", "digits", TRUELOOP_REQUIRE_GPU=said, TRUELOOP_DOCTOR="off", DOCTOR="1", FALLBACK="1"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"refused: TRUELOOP_REQUIRE_GPU={said}, and torch can use no GPU" in done.stderr
    assert "trueloop train digits" not in calls


@pytest.mark.parametrize("said", ["0", "false", "no", "off", ""])
def test_a_gpu_that_is_not_required_may_be_missing(folder: Path, said: str):
    done, calls = enter(folder, "train", "digits", TRUELOOP_REQUIRE_GPU=said, DOCTOR="1", FALLBACK="1")
    assert (done.returncode, calls[-1]) == (0, "trueloop train digits")
    assert "starting all the same" in done.stderr


def test_with_a_gpu_other_faults_do_not_refuse_unless_that_is_asked_for(folder: Path):
    done, calls = enter(folder, "train", "digits", TRUELOOP_REQUIRE_GPU="1", DOCTOR="1")
    assert (done.returncode, calls[-1]) == (0, "trueloop train digits")
    done, calls = enter(folder, "train", "digits", TRUELOOP_DOCTOR="strict", DOCTOR="1")
    assert (done.returncode, calls) == (1, ["trueloop doctor --quick"])
    assert "refused: TRUELOOP_DOCTOR=strict" in done.stderr
    assert enter(folder, "train", "digits", TRUELOOP_DOCTOR="off", DOCTOR="1")[1] == ["trueloop train digits"]


def test_the_real_doctor_refuses_here(folder: Path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    (folder / "trueloop").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trueloop "$@"\n')
    given = {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
    done, _ = enter(folder, "train", "digits", **given, TRUELOOP_REQUIRE_GPU="1")
    assert done.returncode == 1, done.stderr
    assert "refused: TRUELOOP_REQUIRE_GPU=1" in done.stderr
    assert "The CPU: torch can use no GPU." in done.stderr, "the device is named"
    assert not list(folder.glob("runs/*"))


# Health ----------------------------------------------------------------------------------------------------------


def healthy(folder: Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", HEALTHCHECK], env={"PATH": f"{folder}:/usr/bin:/bin", **environment}, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.strip()


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_an_address_has_to_answer(folder: Path, address: str):
    assert healthy(folder, TRUELOOP_HEALTH_URL=f"{address}/health") == (0, "")
    code, said = healthy(folder, TRUELOOP_HEALTH_URL=f"{address}/other")
    assert (code, "503" in said) == (1, True)
    assert healthy(folder, TRUELOOP_HEALTH_URL="http://127.0.0.1:9/")[0] == 1


def test_a_run_has_to_write(folder: Path):
    assert healthy(folder) == (0, "")
    assert healthy(folder, TRUELOOP_HEALTH_STALL_S="60")[0] == 1, "there is none"
    journal = folder / "runs" / "mine" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("")
    assert healthy(folder, TRUELOOP_HEALTH_STALL_S="60") == (0, "")
    os.utime(journal, (1.0, 1.0))
    code, said = healthy(folder, TRUELOOP_HEALTH_STALL_S="60")
    assert (code, said.startswith("no journal was written for ")) == (1, True)
    assert healthy(folder, TRUELOOP_HEALTH_STALL_S="60", TRUELOOP_RUNS="elsewhere")[0] == 1
