"""Torchvision and torchaudio are those built for this torch: their compiled code fits one version of it only.

Source: the versions each of them names in its own metadata, "Requires-Dist: torch==2.13.0".
"""

from __future__ import annotations

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, ok, warning
from trueloop.doctor.machine import Machine, Package


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Compare the version each one wants, and the kind of build, with torch's."""
    if machine.torch is None or not machine.packages:
        return None
    has = machine.torch.version
    faults = [fault for name, each in machine.packages.items() if (fault := _fault(name, each, has))]
    if faults:
        names = " ".join(machine.packages)
        index = "" if machine.torch.cuda else " --index-url https://download.pytorch.org/whl/cpu"
        return warning(
            f"{' '.join(faults)} Whatever imports it ends with an error.",
            f"Install them together: pip install --force-reinstall torch=={_plain(has)} {names}{index}; "
            f"or remove what is not needed: pip uninstall {names}.",
        )
    return ok("; ".join(f"{name} {each.version} fits torch {has}" for name, each in machine.packages.items()) + ".")


def _fault(name: str, package: Package, torch: str) -> str:
    called = f"{name} {package.version}"
    if package.wants_torch and _plain(package.wants_torch) != _plain(torch):
        return f"{called} was built for torch {package.wants_torch}, and torch is {torch}."
    mine, its = torch.partition("+")[2], package.version.partition("+")[2]
    if mine and its and mine != its:
        return f"{called} is a build for {its}, and torch is one for {mine}."
    if package.problem:
        return f"{called} cannot be imported beside torch {torch}: {package.problem.rstrip('.')}."
    return ""


def _plain(version: str) -> str:
    return version.partition("+")[0]


CHECK = Check(title="Torchvision and torchaudio", group="software", look=look)
