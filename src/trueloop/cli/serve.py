"""`trueloop serve`: serve an exported model over HTTP."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.app.option_types import Count, Flag
from trueloop.app.serving.limits import Limits
from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.training.validate import MAX_THREADS


def serve_command(
    artifact: Path,
    *,
    port: Count = 8000,
    host: str = "127.0.0.1",
    threads: Count | None = None,
    digest: str = "",
    limits: Annotated[Limits | None, Parameter(name="*")] = None,
    quiet: Flag = False,
) -> None:
    """Serve an exported model: POST /predict; GET /health, /ready, /metrics. Ctrl-C or SIGTERM stops it.

    Args:
        artifact: Folder that `trueloop export` wrote.
        port: Port to listen on; 0 picks a free port.
        host: Address to listen on. The server has no password: to listen on anything but 127.0.0.1, put a proxy that
            authenticates in front of it.
        threads: CPU threads of the model; by default PyTorch's choice.
        digest: Digest that `trueloop export` printed, or its first 12 digits; a different artifact is refused.
        quiet: Do not print a line for each request.
    """
    try:
        from trueloop.app.serving.server import create_server, is_loopback, run
        from trueloop.app.serving.service import Service
        from trueloop.export.exported_model import Model
        from trueloop.lab.serving import bind_port
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "starlette", "serve") from None
    import torch

    limits = limits or Limits()
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise InvalidConfig(f"threads is {threads}.", fix=f"Pass 1 to {MAX_THREADS}.")
    if threads:
        torch.set_num_threads(threads)
    listener = bind_port(port, host=host, command="trueloop serve")
    if not is_loopback(host):
        print(f"warning: {host} accepts requests from other machines, without a password.", file=sys.stderr)

    def log(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    with contextlib.closing(listener):
        model = Model.open(artifact, expected=digest, threads=threads)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/predict"
        banner = f"trueloop serve: {model.artifact.name} ({model.description.kind}) on {address}"
        server = create_server(Service(model, limits, log=log), host=host, timeout_s=limits.timeout_s)
        run(server, listener, on_ready=lambda: print(banner, flush=True))
    print("trueloop serve: stopped.", flush=True)
