"""A server that stores feedback, and the settings of a canary's trial."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from promptcodebook.deploy.online.canary import CanaryJudge
from promptcodebook.deploy.online.sequences import ValueCounts, difference
from promptcodebook.deploy.online.served_log import Served, ServedLog
from promptcodebook.deploy.registry.registry import Canary, Registry
from promptcodebook.deploy.serve.feedback_endpoint import Online
from promptcodebook.deploy.serve.versions import RegistrySource
from promptcodebook.routing.ranking import buckets_of
from tests.build.clock import until
from tests.build.proxied import CHAT, Setup, Up, one_call, up
from tests.build.registry import PRODUCTION


def registry_in(folder: Path) -> tuple[Registry, str, str]:
    """A ref at one version, and another version to try."""
    registry = Registry(folder / "registry.sqlite", "ada")
    for word in ("Today.", "New."):
        registry.freeze(one_call(base_prompt=word).text(), "tickets")
    today, new = (each.version for each in registry.versions())
    registry.promote(today, PRODUCTION, override="a test")
    return registry, today, new


def try_canary(
    registry: Registry,
    version: str,
    split: str = "conversation",
    share: float = 0.5,
    margin: float = 0.0,
) -> None:
    plan: dict[str, Any] = {"share": share, "margin": margin, "split": split}
    registry.promote(version, PRODUCTION, override="a test", canary=plan)


@asynccontextmanager
async def judging(folder: Path, registry: Registry, **setup: Any) -> AsyncGenerator[Up]:
    """A server of PRODUCTION that keeps feedback in the folder, and judges canaries by it."""
    # The first interval takes a second, and a judge rests long after such a look.
    difference(ValueCounts(), ValueCounts())
    log = ServedLog(folder / "requests.sqlite")
    judge = CanaryJudge(Registry(registry.file.path, "pco serve"), PRODUCTION, log)
    online = Online(PRODUCTION, log, judge=judge, judge_s=0.02)
    options = {"online": online, **setup.pop("options", {})}
    source = RegistrySource(registry, PRODUCTION)
    async with up(setup=Setup(source=source, options=options, **setup)) as served:
        yield served


@dataclass
class Trial:
    """What is up, and the registry that it serves from."""

    served: Up
    registry: Registry
    today: str
    new: str

    async def begin(self, split: str = "conversation", margin: float = 0.0) -> None:
        """Begins a canary, which the server then has taken up and found to have no feedback."""
        try_canary(self.registry, self.new, split, margin=margin)
        begun = self.canary
        await until(lambda: self.served.proxy.live.canary == begun)
        await self.ready("no feedback" if self.served.proxy.online else "without --feedback")

    async def prompted(self, key: str = "", model: str = "", **headers: str) -> tuple[str, str]:
        """A request's id and the version that it got."""
        sent = {**headers, **({"Authorization": f"Bearer {key}"} if key else {})}
        body = {"messages": CHAT, "model": model or "pco/tickets"}
        status, _, answer = await self.served.ask(json=body, headers=sent)
        assert status == 200
        return answer["x-request-id"], answer["x-pco-version"]

    async def rewarded(self, reward: Callable[[str, int], float], most: int = 150) -> None:
        """Sends requests with feedback until the canary is over or a limit is reached."""
        for n in range(most):
            asked, version = await self.prompted()
            body = {"request_id": asked, "reward": reward(version, n)}
            assert (await self.served.ask("/v1/feedback", json=body))[0] == 200
            if n > 20 and self.canary is None:
                return
            await asyncio.sleep(0.01 if n > 20 else 0)

    @property
    def canary(self) -> Canary | None:
        return self.registry.canary(PRODUCTION)

    async def ready(self, *parts: str) -> dict[str, Any]:
        """What /readyz says, once its canary's state has these parts in it."""
        async with asyncio.timeout(60):
            while True:
                _, body, _ = await self.served.ask("/readyz")
                if all(part in body.get("canary_state", "no canary") for part in parts):
                    return body
                await asyncio.sleep(0.05)


def served(
    n: int, at: float, text: str, route: tuple[int, ...] = (1,), caller: str = "", **rest: Any
) -> Served:
    version = "sha256:" + "0" * 64
    made = Served(f"req-{n:024x}", at, PRODUCTION, version, caller, "", 200, 0.1, 9, route, 1.0,
                  buckets_of(text))  # fmt: skip
    return replace(made, **rest)


@asynccontextmanager
async def serving(path: Path, explore: float = 0.0, **options: Any) -> AsyncGenerator[Up]:
    keys, records = options.pop("keys", ()), options.pop("records", None)
    placing = {"sticky": options.pop("sticky", "")}
    online = Online("tickets@live", ServedLog(path), explores=explore > 0, **options)
    placing |= {"online": online}
    setup = Setup(keys=keys, records=records, options=placing, explore=explore)
    async with up(None, setup) as served:
        yield served
