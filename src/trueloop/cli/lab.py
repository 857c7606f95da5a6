"""`trueloop lab`: serve the page that shows a training loop."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from trueloop.app.option_types import Count
from trueloop.core.errors import InvalidConfig, MissingExtra


def lab_command(
    runs: Path = Path("runs"),
    *,
    port: Count = 8765,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
    idle_hours: float | None = None,
) -> None:
    """Open a page on this machine that shows a real PyTorch training loop, its failures and the arena.

    Args:
        runs: Folder of the runs that the page may show.
        port: Port on 127.0.0.1 that serves the page; 0 picks a free port.
        browser: Open the page in the browser.
        idle_hours: Stop after this many hours without a visitor or a script under `run --lab`; by default never.
    """
    if idle_hours is not None and not idle_hours > 0:
        raise InvalidConfig(f"idle_hours is {idle_hours:g}.", fix="It must be above 0.")
    try:
        from trueloop.lab.serving import bind_port, serve
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "starlette", "lab") from None

    console = Console(soft_wrap=True)
    serve(
        bind_port(port),
        runs.absolute(),
        open_browser=browser,
        idle_s=None if idle_hours is None else max(idle_hours, 0.01) * 3600,
        on_ready=lambda address: console.print(f"trueloop lab: [link={address}]{address}[/link]  (Ctrl-C ends it)"),
    )
