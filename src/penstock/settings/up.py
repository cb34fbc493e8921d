"""Settings of `penstock up`: a whole deployment on one machine."""

from pathlib import Path

from pydantic import Field

from penstock.settings.frozen import Frozen


class UpSettings(Frozen):
    """What `penstock up` runs, and how it looks after it.

    The embedded store runs when its address, store.pd_addr, is among pd_addrs. One with port 0 does when
    pd_addrs name no other cluster; the other parts are told the port that it got.
    """

    data: Path = Path("penstock-data/up")
    """Directory where it says what runs; `penstock status` and the pages look there."""
    captures: int = Field(1, ge=1, le=64)
    """Captures that share the tables; of several, each has its own folder in capture.data and a free port."""
    changefeeds: bool = True
    """Whether changefeeds run."""
    jobs: bool = True
    """Whether jobs run."""
    api: bool = True
    """Whether the API and the pages run."""
    backoff_s: float = Field(1.0, gt=0)
    """Wait before a part that ended is started again; it doubles each time, up to backoff_max_s."""
    backoff_max_s: float = Field(30, gt=0)
    """Longest such wait."""
    steady_s: float = Field(60, gt=0)
    """How long a part has to run for the wait to be backoff_s again."""
    stop_s: float = Field(60, gt=0)
    """How long a part may take to end before it is killed."""
