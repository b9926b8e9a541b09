"""`saveslot serve`: the store over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.options import Duration, Flag, Rules, SomeTime, port_number, positive
from saveslot.cli.screen import note, write
from saveslot.errors import InvalidInput
from saveslot.manager.keeper import TIDY
from saveslot.session.retention import DEFAULT


def serve(
    *,
    host: Annotated[
        str,
        Parameter(metavar="HOST", help="Address to listen on. Beyond this machine, callers need tokens."),
    ] = "127.0.0.1",
    port: Annotated[
        int, Parameter(validator=port_number, metavar="PORT", help="Port to listen on; 0: any free one.")
    ] = 7788,
    token_required: Annotated[bool, Flag("Ask for tokens even before the first one was created.")] = False,
    rate: Annotated[
        float, Parameter(validator=positive, metavar="N", help="Maximum requests per second and token.")
    ] = 1000.0,
    workers: Annotated[int, Parameter(validator=positive, metavar="N", help="Number of processes.")] = 1,
    tls_cert: Annotated[
        str | None, Parameter(metavar="FILE", help="Certificate chain: serve HTTPS.", show_default=False)
    ] = None,
    tls_key: Annotated[str | None, Parameter(metavar="FILE", help="The certificate's key.", show_default=False)] = None,
    log: Annotated[
        Literal["text", "json"],
        Parameter(metavar="FORM", help="text: warnings and errors; json: each request, too, as a line of JSON."),
    ] = "text",
    proxy: Annotated[
        str | None,
        Parameter(
            metavar="ADDRESS", help="Trust X-Forwarded headers of the proxy at this address.", show_default=False
        ),
    ] = None,
    traces: Annotated[bool, Flag("Send OpenTelemetry traces: run it by opentelemetry-instrument.")] = False,
    retention: Rules = None,
    gc_after: Annotated[
        Duration, Parameter(help="Keep the store, and remove sessions that ended this long ago, such as 90d.")
    ] = None,
    tidy_every: Annotated[
        SomeTime, Parameter(show_default=False, metavar="TIME", help="Interval between retention runs (default: 1h).")
    ] = timedelta(seconds=TIDY),
    common: Common = COMMON,
) -> None:
    try:
        from saveslot.server import processes
        from saveslot.server.keepers import Retaining
        from saveslot.server.run import Options
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("saveslot"):
            raise
        raise InvalidInput("serve", "the server needs the extra: pip install 'saveslot[server]'") from None

    def ready(url: str) -> None:
        write(f"listening on {url}\n".encode())
        note(f"store: {common.place} ({common.source}); stop with Ctrl-C")

    if common.url.startswith("http"):
        raise Misuse(f"serve: {common.place} is a server itself; name its store, or use its URL as it is")
    if (tls_cert is None) != (tls_key is None):
        raise Misuse("serve: --tls-cert and --tls-key belong together")
    options = Options(
        common.url,
        host,
        port,
        token_required=token_required,
        rate=rate,
        cert=tls_cert,
        key=tls_key,
        log=log,
        proxy=proxy,
        traces=traces,
        retaining=None
        if retention is gc_after is None
        else Retaining(DEFAULT if retention is None else retention, gc_after, tidy_every),
    )
    if workers > 1 and common.url.startswith("memory"):
        raise Misuse("serve: --workers needs a store that processes share, not memory:")
    if workers == 1:
        processes.serve_alone(options, ready)
    else:
        processes.serve_many(options, workers, ready)
