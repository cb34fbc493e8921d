"""`penstock api`: the HTTP API and the pages in the foreground."""

from penstock.api.server import run
from penstock.cli.service import metrics_shown, run_until_signalled, say_ready
from penstock.settings import Settings

__all__ = ["serve"]


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests that are under way then may end.

    Prints one line of JSON with the address when it is ready; the cluster need not be there yet.
    """
    with metrics_shown(settings.metrics_addr) as shown:
        run_until_signalled(run(settings, ready=lambda url: say_ready({"api": url} | shown)))
