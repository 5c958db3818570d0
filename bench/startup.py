"""Start-up: importing the package, and `pco --help`; medians of fresh processes.

python -m bench.startup
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from bench.figures import Figure, shown

REPEATS = 15
BARE = (sys.executable, "-c", "pass")
IMPORT = (sys.executable, "-c", "import promptcodebook")
HELP = (sys.executable, "-c", "import sys; sys.argv = ['pco', '--help']; "
        "from promptcodebook.cli import main; main()")  # fmt: skip


def seconds(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def measure() -> list[Figure]:
    commands = {"bare": BARE, "import": IMPORT, "help": HELP}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(REPEATS):  # in turn, so that a busy moment hits all
        for name, command in commands.items():
            taken[name].append(seconds(command))
    bare, imported, helped = (statistics.median(taken[name]) for name in commands)
    beside = f"bare python {bare:.3f} s"
    return [
        Figure(
            "import promptcodebook, beyond bare python", imported - bare, "s", 0.15, beside=beside
        ),
        Figure("pco --help, whole process", helped, "s", 0.4, beside=beside),
    ]


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
