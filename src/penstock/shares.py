"""How many of a number of places one account may hold: a floor and a cap for each. Pure."""

import sys
from dataclasses import dataclass

__all__ = ["UNLIMITED", "Shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """Places that accounts share, such as the workers of a process, and how many of them one may hold.

    While others want places, an account holds at most `account_count`: its cap. Beyond all `count`, an
    account that holds none gets one: its floor. So whatever the holders of one account do, and however long,
    every other account has a place.
    """

    count: int
    account_count: int

    @property
    def most(self) -> int:
        """The number of places that may be needed: the shared ones, and as many again for floors."""
        return 2 * self.count

    @classmethod
    def of(cls, count: int, account_count: int | None = None) -> "Shares":
        """Return the shares; without a cap in the settings, an account may hold three quarters."""
        return cls(count, max(1, min(count, account_count or count - count // 4)))

    def allow(self, held: int, total: int, *, alone: bool) -> bool:
        """Return whether an account that holds `held` of `total` places may have another one."""
        if not held:
            return total < self.most
        return total < self.count and held < (self.count if alone else self.account_count)


UNLIMITED = Shares(sys.maxsize // 2, sys.maxsize // 2)
"""Places without a limit."""
