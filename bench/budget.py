"""Budgets against a counting proxy: what is allowed, made, billed by the server, and shown.

One run for each way in which a server can break answers, be late, lie about usage or ask for
patience (tests/attack/test_budgets.py). Shown is paid and lost: a lost attempt is booked at the
most it can have cost, so what is shown is never below the bill.

    python -m bench.budget
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.units import count_text, money
from tests.attack.test_budgets import MODES, Bill, attack
from tests.proof.served import served

_HEAD = (
    f"  {'mode':<25} {'allowed':>10} {'made':>5} {'billed':>16} {'shown':>16} "
    f"{'of it lost':>18} {'ended':>16}"
)


def measure() -> list[Figure]:
    bills: list[Bill] = []
    with served() as server, tempfile.TemporaryDirectory() as folder:
        print(_HEAD, flush=True)
        for number, mode in enumerate(MODES):
            bills.append(attack(mode, server, Path(folder) / str(number)))
            print(_line(bills[-1]), flush=True)
    passed = [bill for bill in bills if bill.over]
    return [
        Figure("modes", float(len(bills)), goal=float(len(MODES)), at_least=True),
        Figure("modes that passed a cap, or showed less than the bill", len(passed), goal=0.0),
    ]


def _line(bill: Bill) -> str:
    mode = bill.mode
    allowed = ", ".join(f"{amount:g} {unit}" for unit, amount in mode.budget.items())
    took = f"{bill.seconds:.1f} s" if "seconds" in mode.budget else ""
    amounts = [
        f"{count_text(u.tokens)} tok {money(u.cost) if mode.prices[0] else took}".rstrip()
        for u in (bill.billed, bill.shown)
    ]
    lost = f"{bill.lost.calls} calls {count_text(bill.lost.tokens)}"
    over = f"  PASSED: {', '.join(bill.over)}" if bill.over else ""
    return (
        f"  {mode.name:<25} {allowed:>14} {bill.made:>5} {amounts[0]:>16} {amounts[1]:>16} "
        f"{lost:>18} {bill.ended:>16}{over}"
    )


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
