"""The executor's calls as batches, held until nothing else happens. `Held` is below the journal and
the cache, where every call that must be paid for arrives; calls of other roles pass. Once no such
call is under way and no new one has come, all become one batch at a `Provider`. Each result is
booked and returned as its call's reply. A row's `custom_id` is the key of its request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from promptcodebook.base.incidents import Incident, Tally
from promptcodebook.base.paths import unfinished_folder
from promptcodebook.calls import LM, Reply, Request, Usage, request_key
from promptcodebook.config import Budget, Config
from promptcodebook.config.schema import Price
from promptcodebook.config.secrets import secret_variables
from promptcodebook.deploy.batch.provider import BatchRefused, BatchReply, Provider
from promptcodebook.errors import ConfigError, LMError, PcoError, Stop, StoreError
from promptcodebook.lm import wire
from promptcodebook.lm.budget import Attempted, BudgetGate, PriceTable
from promptcodebook.lm.quirks import FormSearch, Quirks, request_body
from promptcodebook.lm.spec import Spec, parse_spec
from promptcodebook.run.subject import EvaluationOptions

_SETTLE_S = 0.5  # how long nothing new must have come before a batch is submitted
_REMEMBERED = 100_000  # replies that equal calls find while the cache may not have them yet


def by_batches(options: EvaluationOptions) -> EvaluationOptions:
    """The options, with the executor's calls asked as batches: `pco eval --batch-api`."""
    maker = batches_in(unfinished_folder() / "batches", options.tell)
    return replace(options, resources=replace(options.resources, outer=[maker]))


def batches_in(folder: Path, tell: Callable[[str], None]) -> Callable[[Config, bool], Held]:
    """Makes a `Held`. What is submitted is noted in the folder, and `tell` hears how far it is."""

    def make(config: Config, private: bool) -> Held:
        text, settings = config.model_of("executor"), config.roles["executor"]
        spec = parse_spec(text)
        if spec.kind != "http":
            message = f"{text} takes no batches: these need a server, such as openai/NAME"
            raise ConfigError(message, hint="leave out --batch-api")
        if secrets := secret_variables(settings.extra):
            message = f"roles.executor.extra would write {secrets[0]} into the file of a batch"
            raise ConfigError(message, hint="leave that field out, or ask without --batch-api")
        found = spec.credentials(settings.headers)
        place = partial(
            Provider, spec, found, folder, tell=tell, timeout=config.timeout, private=private
        )
        return Held(spec, place, config.retries)

    return make


class BatchPrices(PriceTable):
    """What batches cost: the share of the usual price that is stated for them, else unknown."""

    def __init__(self, usual: PriceTable) -> None:
        super().__init__()
        self._usual = usual

    def price(self, model: str) -> Price | None:
        usual = self._usual.price(model)
        if usual is None or usual.prompt == usual.completion == 0:
            return usual
        if (share := usual.batch) is None:
            return None
        each = usual.model_dump(exclude={"batch"}, exclude_none=True)
        return Price.model_validate({name: share * amount for name, amount in each.items()})


class Held:
    """Middleware that asks the executor's calls to one spec as batches. Equal calls
    share a row. A row that failed fails again at once when it is asked again. One whose reply the
    model broke off is in the next batch too, up to `retries` times."""

    def __init__(self, spec: Spec, place: Callable[..., Provider], retries: int) -> None:
        self._spec, self._make_place, self._retries = spec, place, retries
        self._quirks, self._live, self._broken = Quirks(), 0, Counter[str]()
        self._waiting: dict[str, Request] = {}
        self._flights: dict[str, asyncio.Future[Reply]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = set[asyncio.Task[None]]()

    def around(self, inner: LM, budget: BudgetGate, tally: Tally) -> LM:
        """Raises ConfigError for a money budget where no price of a batch is known."""
        self._inner, self._budget, self._tally = inner, budget, tally
        self._place, name = self._make_place(stop=budget.stop_signal), self._spec.text
        self._prices = BatchPrices(budget.prices)
        if budget.limits.usd is not None and self._prices.price(name) is None:
            message = f"a money budget needs the price of a batch, and none is known for {name!r}"
            share = "batch = 0.5 (the share of its price that a batch costs)"
            raise ConfigError(message, hint=f'in pco.toml: [prices."{name}"] and below it {share}')
        # What was submitted is paid for: its cost is booked, and no limit refuses that.
        self._books = BudgetGate(Budget(), self._prices, budget.ledger, stop=budget.stop_signal)
        budget.stop_signal.on_give(self._give_up)
        return self

    async def __call__(self, request: Request) -> Reply:
        if request.role != "executor" or request.embeds or request.model != self._spec.text:
            self._live += 1
            try:
                return await self._inner(request)
            finally:
                self._live -= 1
                self._wait()
        self._budget.stop_signal.check()
        key = request_key(request).hex()
        if first := key not in self._flights:
            self._flights[key] = asyncio.get_running_loop().create_future()
            self._waiting[key] = request
            self._wait()
        # Shielded: one caller's cancellation must not cancel the others' wait.
        reply = await asyncio.shield(self._flights[key])
        return reply if first else replace(reply, source="journal")

    def hear(self, event: object) -> None:
        """Nothing: batches are of no run."""

    async def close(self) -> None:
        """Lets go of the batches; those whose replies are all kept by now are forgotten."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await self._place.close()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_SETTLE_S, self._submit)

    def _submit(self) -> None:
        if self._waiting and not self._live:
            rows, self._waiting = self._waiting, {}
            task = asyncio.ensure_future(self._ask(rows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, rows: dict[str, Request]) -> None:
        """A batch of them, and one more of those with a refused field, which is left out then."""
        left = rows
        try:
            await self._place.open()
            while left:
                left = await self._ask_once(left)
        except PcoError as error:
            reason = error
            if not isinstance(error, Stop | StoreError):
                kind = BatchRefused if isinstance(error, ConfigError) else Stop
                reason = kind(str(error), hint=error.hint)
            self._end(rows, reason)
            self._budget.stop_signal.give(reason)
        except Exception as error:
            self._end(rows, error)
            raise

    async def _ask_once(self, rows: Mapping[str, Request]) -> dict[str, Request]:
        again, name = dict[str, Request](), self._place.where.model
        before = self._quirks
        bodies = {k: request_body(r, name, before)[0] for k, r in rows.items()}

        async def land(key: str, result: BatchReply) -> None:
            search = FormSearch(before)
            error = wire.read_error_body(result.raw) if result.status != 200 else None
            newer = self._quirks is not before
            refused = error is not None and search.refused(bodies[key], result.status, error)
            # One form further for all rows; a batch is too dear to search for what is unnamed.
            if refused and (newer or search.advance(blind=False)):
                self._quirks = self._quirks if newer else search.quirks
                again[key] = rows[key]
                return
            self._broken[key] += result.broken
            last = not result.broken or self._broken[key] > self._retries
            if not await self._deliver(key, rows[key], result, last):
                again[key] = rows[key]

        most = self._bound(r for key, r in rows.items() if not self._place.knows(key))
        if most.calls:
            await self._budget.enter(most)
        try:
            await self._place.answer(bodies, land)
        finally:
            if most.calls:
                self._budget.leave(most)
        return again

    def _bound(self, requests: Iterable[Request]) -> Usage:
        """The most that a batch of them can cost. Raises ConfigError where there is no bound."""
        total = Usage()
        for request in requests:
            most = self._budget.most(request)
            if most.cost is not None:
                cost = self._prices.bound(request.model, most.prompt_tokens, most.completion_tokens)
                most = replace(most, cost=cost)
            total += most
        return total

    async def _deliver(self, key: str, request: Request, result: BatchReply, last: bool) -> bool:
        """Books what came back, and whether it is the row's end: only a `last` failure is."""

        async def read(request: Request) -> Reply:
            return self._read(request, result)

        try:
            reply = await Attempted(read, self._books, self._tally)(request)
        except LMError as error:
            if result.broken:
                self._tally(Incident.BROKEN_OFF)
            if last:
                self._end([key], error)
            return last
        self._flights[key].set_result(reply)
        if len(self._flights) > _REMEMBERED:
            del self._flights[key]
        return True

    def _read(self, request: Request, result: BatchReply) -> Reply:
        where = self._place.where
        if result.status == 200:
            try:
                reply = wire.read_reply(result.raw, request, result.seconds)
            except wire.Malformed as error:
                body = wire.read_misfit(result.raw, str(error))
            else:
                dropped = tuple(request_body(request, where.model, self._quirks)[1])
                return replace(reply, text=where.scrub(reply.text), dropped=dropped)
        else:
            body = wire.read_error_body(result.raw)
        error = wire.refusal_of(body.status or result.status, body, where)
        # A row without an answer is not billed.
        error.lost, error.role = body.worked, request.role
        raise error

    def _give_up(self) -> None:
        rows, self._waiting = self._waiting, {}
        try:
            self._budget.stop_signal.check()
        except PcoError as reason:
            self._end(rows, reason)

    def _end(self, rows: Iterable[str], reason: Exception) -> None:
        for key in rows:
            if (flight := self._flights.get(key)) is not None and not flight.done():
                flight.set_exception(reason)
                flight.exception()  # there may be no caller left to look at it
