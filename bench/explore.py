"""What `--feedback` and `--explore 0.05` add to a request of `pco serve`, and what trying costs.

One policy behind three servers at once: plain, with feedback, with exploration. 50 clients ask each
in turn, ten rounds, an upstream that answers at once; the processor time and the latency of a call
are compared with the plain server's of the same run.

The reward given up is predicted from the chances: the sum over all routes of chance times what the
router expects to lose. It is measured on simulated outcomes, drawn around what the router expects.

Fixed before a figure was seen: at most 0.3 ms of processor time is added by each; the measured loss
is within three standard errors of the predicted one.

    python -m bench.explore            (PCO_BENCH_SECONDS=10 for each server)
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from bench.figures import Figure, shown
from bench.proxy import SECONDS, SELECT, SIZE, asked, cpu_s, free_port, policy, quantile, running
from promptcodebook.base.randomness import keyed_random
from promptcodebook.deploy.online.exploring import _FLOOR, Explorer
from promptcodebook.errors import require_modules
from promptcodebook.policy.file import PolicyFile
from promptcodebook.routing.ranking import Ranker, chosen
from promptcodebook.routing.router import RouteSets
from promptcodebook.types import Route

SHARE, ROUNDS, INPUTS, TIMES, NOISE = 0.05, 10, 100, 200, 0.3
MODES = {"plain": (), "feedback": ("--feedback",), "explore": ("--explore", str(SHARE))}


def explored() -> PolicyFile:
    file = policy()
    assert file.router is not None
    return file.with_router(replace(file.router.ranking, kind="outcomes"))


async def served(folder: Path) -> list[Figure]:
    os.environ["PCO_REQUESTS"] = str(folder / "requests.sqlite")
    explored().save(folder / "bench.pco.json")
    port, taken = free_port(), {mode: list[float]() for mode in MODES}
    cpu = {mode: list[float]() for mode in MODES}
    async with AsyncExitStack() as up:
        command = [sys.executable, "-m", "bench.proxy", "--upstream", str(port)]
        await up.enter_async_context(running(command, f"http://127.0.0.1:{port}"))
        servers: dict[str, tuple[str, int]] = {}
        for mode, flags in MODES.items():
            url = f"http://127.0.0.1:{(own := free_port())}"
            command = [sys.executable, "-m", "promptcodebook.cli", "serve"]
            command += [str(folder / "bench.pco.json"), "--lm", f"http://127.0.0.1:{port}/v1#m"]
            command += ["--port", str(own), "--set", "serve.records=0", *flags]
            pid = await up.enter_async_context(running(command, f"{url}/readyz"))
            servers[mode] = url, pid
            await asked(f"{url}/v1", "pco/bench", 1.0, 0.0)
        for _ in range(ROUNDS):
            for mode, (url, pid) in servers.items():
                before = cpu_s(pid)
                calls = await asked(f"{url}/v1", "pco/bench", SECONDS / ROUNDS, 0.0)
                cpu[mode].append(1e3 * (cpu_s(pid) - before) / len(calls))
                taken[mode] += calls
    figures: list[Figure] = []
    plain = statistics.median(cpu["plain"])
    figures.append(Figure("processor time of a call, plain", plain, "ms"))
    for mode in ("feedback", "explore"):
        own = statistics.median(cpu[mode])
        ratio = f"{own / plain:.2f} times the plain server's"
        name = f"processor time added by --{mode}"
        figures.append(Figure(name, own - plain, "ms", 0.3, beside=ratio))
    for share in (0.5, 0.99):
        base = 1e3 * quantile(taken["plain"], share)
        for mode in ("feedback", "explore"):
            own = 1e3 * quantile(taken[mode], share)
            beside = f"{own / base:.2f} times; 50 clients without a pause, plain {base:.1f} ms"
            name = f"added at p{100 * share:.0f} by --{mode}"
            figures.append(Figure(name, own - base, "ms", beside=beside))
    return figures


def given_up() -> list[Figure]:
    file = explored()
    assert file.router is not None
    ranking = file.router.ranking
    ranker = Ranker(ranking, [each.text for each in file.codebook])
    explorer, least = Explorer(file, SHARE), ranking.least
    sizes = RouteSets(least, SELECT, SIZE, frozenset())
    everything = [r for n in range(least, SELECT + 1) for r in combinations(range(SIZE), n)]
    predicted, losses, tries = 0.0, list[float](), 0
    for n in range(INPUTS):
        expected = ranker.expected(f"Ticket {n}: my refund is {n % 7} days late, form {n % 13}.")
        best = Route(chosen(expected.marginal, expected.more, SELECT, least))
        top = expected.of(best.indices)
        drawn = [[k for k in row if k >= 0] for row in explorer.routes(expected).tolist()]
        lost = (1 - _FLOOR) * statistics.fmean(top - expected.of(route) for route in drawn)
        lost += _FLOOR * sum(sizes.chance(r) * (top - expected.of(r)) for r in everything)
        predicted += SHARE * lost / INPUTS
        for turn in range(TIMES):
            tried = explorer.choose(best, expected, f"{n} {turn}")
            tries += tried.explored
            # One noise for both routes: what is compared is what the route does.
            noise = keyed_random("outcome", n, turn).gauss(0.0, NOISE) * tried.explored
            losses.append(top - expected.of(tried.route.indices) + noise)
    mean, error = statistics.fmean(losses), statistics.stdev(losses) / len(losses) ** 0.5
    beside = f"measured {mean:.5f} ± {error:.5f} (simulated outcomes)"
    return [
        Figure("requests explored, of 100", 100 * tries / len(losses), beside="drawn with 5"),
        Figure("reward given up a request, predicted", predicted, beside=beside),
        Figure("measured minus predicted, in errors", abs(mean - predicted) / error, goal=3.0),
    ]


def measure() -> list[Figure]:
    require_modules(("prometheus_client", "numpy"), "serving a policy", "serve")
    with tempfile.TemporaryDirectory() as name:
        return [*asyncio.run(served(Path(name))), *given_up()]


if __name__ == "__main__":
    sys.exit(shown(measure, __doc__ or ""))
