"""Checks of Python, PyTorch, the packages compiled for PyTorch, and settings of the environment."""

import re
from collections.abc import Mapping
from typing import Final

from trueloop.doctor.diagnosis import Diagnosis, RunRequirements, check, error, note, ok, warning
from trueloop.doctor.machine import Machine, Package

MIN_PYTHON: Final = (3, 11)
MIN_TORCH: Final = (2, 6)
DEBUG_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1",),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",),
    "PYTORCH_JIT": ("0",),
    "TORCHDYNAMO_DISABLE": ("1",),
    "PYTHONDEVMODE": ("1",),
    "PYTHONASYNCIODEBUG": ("1",),
    "PYTHONMALLOC": ("debug", "malloc_debug", "pymalloc_debug"),
}
"""Environment variables for debugging, and the values that slow a run down."""


@check("Python", "software")
def check_python(machine: Machine, run: RunRequirements) -> Diagnosis:
    """Check that the Python version is supported."""
    version = ".".join(str(part) for part in machine.python)
    if machine.python[:2] < MIN_PYTHON:
        oldest = ".".join(str(part) for part in MIN_PYTHON)
        message = f"Python {version} is too old: trueloop needs {oldest} or newer."
        return error(message, f"Install Python {oldest} or newer.")
    return ok(f"Python {version} on {machine.system}.")


@check("PyTorch", "software")
def check_torch_installed(machine: Machine, run: RunRequirements) -> Diagnosis:
    """Check that PyTorch is installed, can be imported, and is recent enough."""
    if machine.torch is None and machine.torch_problem:
        return error(
            f"torch cannot be imported: {machine.torch_problem}",
            "Install it again in a fresh environment: pip install --force-reinstall torch.",
        )
    if machine.torch is None:
        return error("torch is not installed, so no training can run.", "pip install 'trueloop[train]'")
    match = re.match(r"(\d+)\.(\d+)", machine.torch.version)
    if match and (int(match[1]), int(match[2])) < MIN_TORCH:
        return error(
            f"torch {machine.torch.version} is too old: 2.6 or newer is needed.", "pip install --upgrade torch"
        )
    return ok(f"torch {machine.torch.version}, built for {machine.torch.build}.")


@check("Torchvision and torchaudio", "software")
def check_fitting_packages(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that torchvision and torchaudio were built for the installed PyTorch: their binaries fit only one version.

    Source: the version that the metadata of each package names: "Requires-Dist: torch==2.13.0".
    """
    if machine.torch is None or not machine.packages:
        return None
    torch = machine.torch.version
    reports = (_describe_mismatch(name, package, torch) for name, package in machine.packages.items())
    mismatches = [report for report in reports if report]
    if mismatches:
        names = " ".join(machine.packages)
        index = "" if machine.torch.cuda else " --index-url https://download.pytorch.org/whl/cpu"
        return warning(
            f"{' '.join(mismatches)} Importing it fails.",
            f"Install them together: pip install --force-reinstall torch=={_without_build(torch)} {names}{index}; "
            f"or remove the packages that you do not need: pip uninstall {names}.",
        )
    fits = "; ".join(f"{name} {package.version} fits torch {torch}" for name, package in machine.packages.items())
    return ok(f"{fits}.")


def _describe_mismatch(name: str, package: Package, torch: str) -> str:
    installed = f"{name} {package.version}"
    if package.required_torch and _without_build(package.required_torch) != _without_build(torch):
        return f"{installed} was built for torch {package.required_torch}, but torch is {torch}."
    torch_build, build = torch.partition("+")[2], package.version.partition("+")[2]
    if torch_build and build and torch_build != build:
        return f"{installed} is built for {build}, but torch is built for {torch_build}."
    if package.problem:
        return f"{installed} cannot be imported with torch {torch}: {package.problem.rstrip('.')}."
    return ""


def _without_build(version: str) -> str:
    return version.partition("+")[0]


@check("Debug settings", "output")
def check_debugging(machine: Machine, run: RunRequirements) -> Diagnosis:
    """Check that no debug setting is left on: they cost time, or fill the log."""
    active_settings = [name for name, values in DEBUG_SETTINGS.items() if machine.environment.get(name, "") in values]
    if not active_settings:
        return ok("No debug setting is active.")
    settings = ", ".join(f"{name}={machine.environment[name]}" for name in active_settings)
    return warning(f"{settings}: every update takes longer.", f"unset {' '.join(active_settings)}")


@check("Output", "output")
def check_output_buffering(machine: Machine, run: RunRequirements) -> Diagnosis:
    """Check that printed lines appear immediately: a buffer delays a container's log and is lost in a kill."""
    if not machine.output_buffered:
        return ok("Standard output is not block-buffered.")
    message, remedy = "Standard output is buffered in blocks of 8 KiB", "PYTHONUNBUFFERED=1"
    if machine.container:
        return warning(f"{message}: the container's log lags, and its end is lost if the process is killed.", remedy)
    return note(f"{message}: output to a file or pipe appears late.", remedy)
