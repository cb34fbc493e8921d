"""webhook: changes are sent to an HTTP server."""

from penstock.consumers.webhook.consumer import Webhook, WebhookOptions, is_signed

__all__ = ["Webhook", "WebhookOptions", "is_signed"]
