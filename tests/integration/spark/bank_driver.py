"""A driver that follows the bank, says the number of each batch, and waits to be killed."""

import sys
from pathlib import Path

from support.bankstream import follow
from support.spark import local_settings, shared_session


def main(config: str, folder: str) -> None:
    def say(number: int, _marked: bool) -> None:
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()

    follow(shared_session(local_settings()), Path(config), Path(folder), say).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
