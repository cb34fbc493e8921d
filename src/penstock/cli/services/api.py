"""`penstock api`: run the HTTP API and the pages in the foreground."""

from penstock.api.server import run
from penstock.audit import open_audit_file
from penstock.cli.service import print_ready, run_until_signalled, serve_metrics
from penstock.durable_files import keep_files_private
from penstock.settings import Settings, with_tokens

__all__ = ["serve"]


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end.

    Prints one line of JSON with the address once it is ready, and with the file of the admin's token unless
    the settings have accounts. The cluster may start later.
    """
    settings = with_tokens(settings, make=True)
    token_path = settings.admin_token_path
    facts = {} if token_path is None else {"admin_token_path": str(token_path)}
    keep_files_private()
    if settings.api.audit_path is not None:
        open_audit_file(settings.api.audit_path, "api")
    with serve_metrics(settings.metrics_addr, settings.api.hosts) as metrics:
        run_until_signalled(run(settings, ready=lambda url: print_ready({"api": url} | facts | metrics)))
