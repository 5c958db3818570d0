"""`pco feedback` and `pco learn`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from promptcodebook.assemble import Sources, plan_data
from promptcodebook.base.paths import runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import shell
from promptcodebook.base.units import plural
from promptcodebook.cli import command
from promptcodebook.data.load import read_source
from promptcodebook.data.table import SourceRow, Table, plain
from promptcodebook.deploy.online import learning
from promptcodebook.deploy.online.canary_decision import by_key, fair
from promptcodebook.deploy.online.served_log import (
    BadFeedback,
    Feedback,
    ServedLog,
    feedback_of,
    is_request_id,
    logged_name,
    seconds_of,
)
from promptcodebook.deploy.registry.log import LATEST, version_of
from promptcodebook.deploy.registry.registry import open_registry
from promptcodebook.deploy.serve.settings import ServeSettings
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.lm.stack import StackResources
from promptcodebook.method.failures import gather_all
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import deploy
from promptcodebook.policy.references import NO_VERDICT, REF, run_behind
from promptcodebook.routing.ranking import Embedder
from promptcodebook.run.subject import EvaluationOptions, Subject
from promptcodebook.store.journal import until_done
from promptcodebook.types import Example

_T = TypeVar("_T")
_MOST_READ = 20_000  # Logged requests with feedback that are read: the newest ones.


def feedback(
    words: Annotated[
        list[str], typer.Argument(metavar="FILE | erase REQUEST_ID...", help="A file of feedback.")
    ],
    as_json: command.Json = False,
) -> None:
    """Add late feedback from a file, or erase what is stored about requests.

    FILE has the columns request_id and reward, and optionally feedback and key. No row is added
    twice."""
    if words[0] == "erase":
        if wrong := [each for each in words[1:] if not is_request_id(each)]:
            raise ConfigError(f"{wrong[0]} is not a full request id", hint="use req- and 24 digits")
        with closing(ServedLog()) as log:
            erased = log.erase(words[1:])
        text = f"erased {erased} of {plural(len(words) - 1, 'request')}"
        command.show(lambda: {"erased": erased}, lambda: text, as_json=as_json)
        return
    if len(words) > 1:
        raise ConfigError("give one file at a time", hint=f"pco feedback {shell(words[0])}")
    table = read_source(Path(words[0]))
    if not isinstance(table, Table):
        raise DataError(f"{words[0]} is a folder", hint="name one file of rows")
    rows = [_row(record) for record in table.rows]
    became = Counter[str]()

    async def add() -> None:
        with closing(ServedLog()) as log:
            # Together: one of an unknown request waits a second for it.
            for at in range(0, len(rows), 1000):
                some = rows[at : at + 1000]
                became.update(await asyncio.gather(*(log.give(each, None) for each in some)))

    run_sync(add())
    kept = {name: became[name] for name in ("unknown", "erased", "conflict", "full")}
    kept = {"kept": became["kept"] + became["again"], **kept}
    text = f"kept {plural(kept['kept'], 'row')}; not kept: {kept['unknown']} for unknown requests, "
    text += f"{kept['erased']} for erased requests, {kept['conflict']} whose key was already "
    text += f"used with different content, {kept['full']} for requests with no room for more"
    command.show(lambda: kept, lambda: text, as_json=as_json)


def _row(record: SourceRow) -> Feedback:
    cells: dict[str, object] = {name: plain(value) for name, value in record.values.items()}
    if isinstance(reward := cells.get("reward"), str):  # as in a CSV file
        with suppress(ValueError):
            cells["reward"] = float(reward)
    try:
        return feedback_of({name: value for name, value in cells.items() if value is not None})
    except BadFeedback as error:
        raise DataError(f"{record.where}: {error}", hint=error.hint) from None


def learn(
    ref: command.Ref,
    half_life: str = typer.Option("14d", help="Age at which a logged request counts for half."),
    run: str = typer.Option("", help="The run that made the policy, if REF does not name it."),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The new policy file; default: NAME@latest in the registry."
    ),
    lm: command.ModelOption = None,
    budget: command.BudgetOption = None,
    sets: command.Sets = None,
    config: command.ConfigOption = None,
    trust: command.Trust = False,
    who: command.Who = "",
    as_json: command.Json = False,
) -> None:
    """Refit a served policy's router to its users' feedback; no text is rewritten.

    The router learns from the policy's training and from logged requests with feedback. The gain of
    the new routes is measured on the last third of the log. Served versions do not change.
    `serve.key_share` limits the influence of any one key. `--config` names the training data if the
    run does not. Embeddings that the run did not store are computed by the run's model, or by
    --lm."""
    if not (half := seconds_of(half_life)):
        raise ConfigError("--half-life 0 would forget everything", hint="write e.g. 14d")
    reference = command.resolved(ref, trust=trust, use=True)
    named = REF.fullmatch(ref)
    if output is None and not (named and reference.version):
        message = f"{ref} is not a NAME@REF in the registry, so -o must say where to write"
        raise ConfigError(message, hint=f"pco learn {shell(ref)} -o learned.pco.json")
    old = reference.file
    asks = bool(learning.require_router(old).center)
    data = None if config is None else plan_data(*command.gather_settings(config, {}))
    behind = run_behind(runs_dir(), run or ref)
    key_share = ServeSettings.of(command.gather_settings(config, {}, sets)[0]).key_share
    with closing(ServedLog()) as log:
        name = logged_name(ref, reference)
        traffic = log.traffic(name, 0.0)
        newest = list(islice(log.newest(name, rewarded=True), _MOST_READ))
        versions = learning.versions_of(reference, {each.version for each in traffic})
        # About the requests by which worth is judged.
        held = newest[len(newest) // 3].served.time if newest else 0.0
        explored, others = (
            fair(by_key(log.spread(f"answered, {which}", name, held), versions), key_share)
            for which in ("explored", "not explored")
        )
    logged = learning.dated(learning.within_share(newest, key_share), time.time())
    heard = sum(each.feedback for each in traffic)
    unread = {
        "without feedback": sum(each.requests for each in traffic) - heard,
        "older than the requests that were read": heard - len(newest),
        "not shown to a user, or over one key's share": len(newest) - len(logged),
    }
    if not logged:
        reasons = ", ".join(f"{count} {why}" for why, count in unread.items() if count)
        message = f"no logged request can be used for learning ({reasons or 'none is logged'})"
        raise DataError(message, hint="pco serve REF --feedback, and POST /v1/feedback")
    given = command.Typed(None, None, None, lm, budget, sets, trust).given("pco learn")
    with until_done("pco learn", ref, given.overrides) as supplies:
        embed = partial(_embedded, _models(given, behind, old, supplies)) if asks else None
        trained = learning.read_training(behind, old, data, embed, trust=trust)
        made = learning.learn(old, trained, logged, versions, half, (explored, others))
        left_out = {why: count for why, count in unread.items() if count}
        made = replace(made, left_out={**left_out, **made.left_out})
        found = made.as_json()
        learned: Any = {**found, "versions": sorted(versions)}
        # What its run was judged with had other routes.
        file = made.file.with_about(learned=learned, verdict=NO_VERDICT)
        text = file.text()
        if output is not None:
            file.save(output)
            place, then = str(output), f"pco serve {shell(output)}"
        else:
            assert named is not None
            place = f"{named[1]}@{LATEST}"
            with open_registry(who=who) as registry:
                facts = registry.version(reference.version).facts
                facts = {**facts, "parent": reference.version, "score": None, "learned": found}
                facts["verdict"] = NO_VERDICT
                registry.store(text, place, facts, f"pco learn {shell(ref)}")
            then = f"pco registry audit {shell(place)} --lm MODEL, then promote it"
    version = version_of(text.encode("utf-8", "surrogatepass"))
    text = f"{made.text()}\n\n{version[:19]} is in {place}\nnext: {then}"
    tree = {"version": version, "place": place, **found}
    command.show(lambda: tree, lambda: text, as_json=as_json)


def _models(
    given: EvaluationOptions, run: Path, file: PolicyFile, supplies: StackResources
) -> Subject:
    """The models of a policy under the settings of the run that made it."""
    behind = replace(command.resolved(str(run), trust=given.trust), file=file)
    config, base = given.settings(behind)
    config = config.model_copy(update={"executor": ""})
    supplies = replace(supplies, recorded_replies=given.recorded(str(run)))
    templates = behind.header.templates if behind.header is not None else None
    policy = deploy(file, config, Sources(base, templates=templates), supplies)
    return Subject(behind, policy.assembled)


def _embedded(models: Subject, examples: Sequence[Example]) -> Sequence[Sequence[float]]:
    asked, router = models.assembled.models, models.file.router
    embedder, images = Embedder(asked.lm), router is not None and router.images

    async def read() -> list[Sequence[float]]:
        again = "rerun it with a larger --budget"
        async with asked.at_work(again, f"{again}: everything paid for so far is kept"):
            inputs = ((each.input, each.media if images else ()) for each in examples)
            found = await gather_all(embedder.read(*each) for each in inputs)
            return [vector for vector, _ in found]

    return run_sync(read(), command.announced(asked.interrupt))
