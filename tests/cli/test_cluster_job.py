"""Files for clusters are what their readers accept: bash, the schema of Kubernetes, submitit itself."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from trueloop.cli.app import main
from trueloop.cli.cluster_job import ClusterJob
from trueloop.core.errors import InvalidConfig

WORDS = ("--config", "my run.toml", "--options.note", "it's $HOME and $(HOME)", "--epochs", "3")


def job(**changes: Any) -> ClusterJob:
    fields: dict[str, Any] = {
        "recipe": "recipes/My_net.py:build", "train_arguments": WORDS,
        "nodes": 2, "processes": 4, "gpus": 4, "cpus": 16,
        "hours": 1.5, "image": "registry.local/team/net:1.2", "generated_by": 'trueloop template "a b" \'\'\'"""\\',
    }  # fmt: skip
    return ClusterJob(**{**fields, **changes})


# SLURM -----------------------------------------------------------------------------------------------------------


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ").split("#")[0].strip() for line in text.splitlines() if "#SBATCH" in line]


def test_the_script_is_bash_with_the_requested_resources(tmp_path: Path):
    text = job().text("slurm")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert directives(text) == [
        "--job-name=my-net", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16", "--gpus-per-node=4",
        "--time=1:30:00", "--signal=TERM@300", "--requeue", "--open-mode=append", "--output=%x-%j.log",
    ]  # fmt: skip
    assert "--gpus" not in job(gpus=0).text("slurm")
    assert "export TRUELOOP_REQUIRE_GPU=1\n" in text
    assert "TRUELOOP_REQUIRE_GPU" not in job(gpus=0).text("slurm")


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (1, False), (143, True)])
def test_the_script_passes_arguments_on_and_requeues_a_stopped_job(tmp_path: Path, code: int, requeued: bool):
    for name, does in {"srun": f'printf "%s\\n" "$@"; exit {code}', "scontrol": 'echo "scontrol $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "16", "SLURM_JOB_ID": "7"}
    process = subprocess.run(
        ["bash"], input=job().text("slurm"), env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == code
    lines = process.stdout.splitlines()
    assert (lines[-1] == "scontrol requeue 7") is requeued
    launch = ["--run-dir", "runs/my-net", "--processes", "4"]
    command = ["--kill-on-bad-exit=1", "trueloop", "train", "recipes/My_net.py:build", *launch, *WORDS]
    assert lines[: len(command)] == command


# Kubernetes ------------------------------------------------------------------------------------------------------


def manifest(**changes: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(job(**changes).text("kubernetes")))


def test_the_manifest_is_valid_in_kubernetes_schema():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for changes in ({}, {"gpus": 0}, {"nodes": 1, "processes": 1}):
        for part in manifest(**changes):
            for version in ("1.31", kubernetes_validate.latest_version()):
                kubernetes_validate.validate(part, version, strict=True)


def test_the_pods_connect_to_the_first_and_have_no_privileges():
    service, job_manifest = manifest()
    spec = job_manifest["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job_manifest["metadata"]["name"]}
    # The name of a pod of an indexed Job is NAME-INDEX, in the domain of the headless service.
    meeting = f"{job_manifest['metadata']['name']}-0.{pod['subdomain']}:{service['spec']['ports'][0]['port']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    words = [word.replace("$$(", "$(") for word in container["command"]]
    launch = ["--run-dir", "/runs/my-net", "--processes", "4", "--nodes", "2", "--rendezvous", meeting]
    assert words == ["trueloop", "train", "recipes/My_net.py:build", *launch, *WORDS]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not re.search("privileged|hostPath|hostNetwork", json.dumps(job_manifest))
    assert container["resources"] == {"requests": {"cpu": "16"}, "limits": {"nvidia.com/gpu": "4"}}
    assert {"name": "TRUELOOP_REQUIRE_GPU", "value": "1"} in container["env"], "no GPU, no run"
    assert "TRUELOOP_REQUIRE_GPU" not in job(gpus=0).text("kubernetes")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"runs": "/runs", "shm": "/dev/shm"}
    assert "--rendezvous" not in manifest(nodes=1)[1]["spec"]["template"]["spec"]["containers"][0]["command"]


# submitit --------------------------------------------------------------------------------------------------------


def test_the_script_for_submitit_is_python_with_the_same_command():
    tree = ast.parse(job().text("submitit"))
    [command] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMAND"
    ]
    launch = ["--run-dir", "runs/my-net", "--processes", "4"]
    assert command == ["trueloop", "train", "recipes/My_net.py:build", *launch, *WORDS]


@pytest.mark.slow(reason="submits a job through submitit")
def test_submitit_runs_stops_and_resumes_the_job(tmp_path: Path):
    """With its local executor: the real one that follows where there is no SLURM, its signal included."""
    for needed in ("submitit", "pkg_resources"):  # submitit 1.5.3 wants the second, which setuptools 82 has no more
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    fake_trueloop = (  # for trueloop: works until it is told to stop, saves, and at the second start is done
        f"#!{sys.executable}\n"
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "if Path('saved').exists(): Path('done').touch(); sys.exit(0)\n"
        "def stop(*_): Path('saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "Path('task').write_text(str(os.getppid())); Path('ready').touch()\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "trueloop").write_text(fake_trueloop)
    (tmp_path / "trueloop").chmod(0o755)
    (tmp_path / "submit.py").write_text(job(nodes=1, gpus=0, name="net").text("submitit"))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "submit.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as run:
        wait_for(tmp_path / "ready")
        os.kill(int((tmp_path / "task").read_text()), signal.SIGUSR2)
        assert run.wait(60) == 0
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "done").exists()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# The command -----------------------------------------------------------------------------------------------------


def test_the_command_never_overwrites_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "digits.sh"
    line = ["template", "slurm", "digits", "--processes", "2", "--output", str(path), "--", "--epochs", "3"]
    assert main(line) == 0
    assert shlex.join(["srun", "--kill-on-bad-exit=1", "trueloop", "train", "digits"]) in path.read_text()
    assert "--processes 2 --epochs 3\n" in path.read_text()
    assert "#SBATCH --cpus-per-task=16\n#SBATCH --gpus-per-node=2\n" in path.read_text()
    assert capsys.readouterr().out == ""
    assert main(line) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"nodes": 0}, "--nodes is 0"),
        ({"processes": 0}, "--processes is 0"),
        ({"gpus": -1}, "--gpus is -1"),
        ({"cpus": 0}, "--cpus is 0"),
        ({"hours": float("nan")}, "--hours is nan"),
        ({"name": "Net_1"}, "The job's name would be 'Net_1'."),
        ({"name": "7b"}, "The job's name would be '7b'."),
        ({"image": "a b"}, "--image is 'a b'."),
        ({"image": "a\nb"}, "--image is 'a\\nb'."),
        ({"recipe": " "}, "RECIPE is ' '."),
    ],
)
def test_invalid_jobs_are_refused(changes: dict[str, Any], word: str):
    with pytest.raises(InvalidConfig) as error:
        job(**changes).text("kubernetes")
    assert word in error.value.what
