"""`penstock api`: run the HTTP API and the pages in the foreground."""

from penstock.api.server import run
from penstock.cli.service import print_ready, run_until_signalled, serve_metrics
from penstock.durable_files import keep_files_private
from penstock.settings import Settings

__all__ = ["serve"]


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end.

    Prints one line of JSON with the address once it is ready. The cluster may start later.
    """
    keep_files_private()
    with serve_metrics(settings.metrics_addr) as metrics:
        run_until_signalled(run(settings, ready=lambda url: print_ready({"api": url} | metrics)))
