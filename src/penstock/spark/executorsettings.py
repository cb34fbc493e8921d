"""Settings that mean the same on the driver and on every executor."""

from penstock.settings import Settings
from penstock.spark.options import shared_url


def for_executors(settings: Settings) -> Settings:
    """Settings without what only this process knows: paths relative to it, and token files.

    Raises Invalid when storage cannot be shared, or the token cannot be read.
    """
    capture = settings.capture.model_copy(
        update={
            "storage": shared_url(settings.capture.storage),
            "flight_token": settings.capture.read_flight_token(),
            "flight_token_path": None,
        }
    )
    return settings.model_copy(update={"capture": capture})
