"""How busy the machine is: a limit in seconds holds on a calm one, and grows with the crowd."""

from __future__ import annotations

import time

_WORK_S = 0.05


def crowding() -> float:
    """How many times longer a piece of work takes now than the processor needs for it; at least 1.

    Twice what is measured, since a crowd comes and goes; 1 where nobody else is at work.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    while time.process_time() - cpu < _WORK_S:
        sum(range(1000))
    factor = (time.perf_counter() - wall) / (time.process_time() - cpu)
    return 1.0 if factor < 1.2 else 2.0 * factor
