"""`python -m tests.fuzz`: ask gateways odd things for some minutes; what `make fuzz` runs."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.fuzz.house import HOUSES
from tests.fuzz.play import play, playing

AT_ONCE = 300


def main() -> None:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=…", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="how long (default: 5)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="to play again")
    parser.add_argument("--house", choices=HOUSES, action="append", help="which (default: all)")
    asked = parser.parse_args()
    houses = asked.house or list(HOUSES)
    print(f"outlast: asking {', '.join(houses)} with --seed {asked.seed}", flush=True)
    for name in houses:
        ends = time.monotonic() + asked.minutes * 60 / len(houses)
        with (
            tempfile.TemporaryDirectory() as folder,
            playing(name, f"sqlite:///{Path(folder) / 'outlast.db'}") as (runner, opened),
        ):
            rounds = 0
            while rounds == 0 or time.monotonic() < ends:
                seeded = asked.seed + rounds * len(HOUSES) + list(HOUSES).index(name)
                play(runner, opened, examples=AT_ONCE, seeded=seeded)
                rounds += 1
        print(f"outlast: {name} answered {rounds * AT_ONCE} calls as it should", flush=True)


if __name__ == "__main__":
    main()
