"""What `pco doctor` examines, from the settings to the disk.

Of the models of roles it asks that a route is valid, and right for three of four inputs that name
the instinct they need; that a composed prompt keeps the instincts; that a critique parses, faults a
bad answer and does not repeat the question; that an attribution blames a part; that a rewrite
passes a run's checks; and that an audit's judge is right about five of six plain texts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from promptcodebook import assemble as assembly
from promptcodebook.base.incidents import Counts, Incident
from promptcodebook.base.text import count_words, long_words, shell, words_of
from promptcodebook.base.units import bytes_text, plural
from promptcodebook.calls import ROLES, Role
from promptcodebook.config import Budget, Config
from promptcodebook.config.loading import select_remark
from promptcodebook.config.schema import DataSettings
from promptcodebook.data import examine, independent
from promptcodebook.doctor.probe import Diagnosis, DiagnosisGroup, probe
from promptcodebook.errors import ConfigError, PcoError, registered
from promptcodebook.lm.budget import PriceTable, price_lines
from promptcodebook.lm.quirks import KnownForms
from promptcodebook.lm.spec import missing_key, parse_spec
from promptcodebook.lm.stack import (
    InProcessModels,
    StackResources,
    local_models,
    simulated_here,
    specs_of,
)
from promptcodebook.method.executor import answers_remark
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import load_templates
from promptcodebook.method.train import Learner
from promptcodebook.method.update import PendingUpdate
from promptcodebook.optimizers.pco import build_learner, initialise, with_listed_codebook
from promptcodebook.routing.ranking import Embedder
from promptcodebook.run.decision import verdict_remark
from promptcodebook.tasks.rewards.trial import RewardTable
from promptcodebook.types import Codebook, Example, Failure, Instinct, Trace, variable_name

_SHOTS = "few-shot"  # the set of templates that every model is also tried with
_TRIED = 4  # rows that the reward's table is made of
_LEAST_DISK = 500 * 10**6  # bytes of free disk below which a run may not fit


async def checkup(config: Config, base: Path, runs_dir: Path) -> AsyncIterator[DiagnosisGroup]:
    """Section by section, as they are done. A fault is a Finding, never an error."""
    # One engine for the probe and the rehearsal.
    here, plan, usable, tried = local_models(), None, True, assembly.RewardTrial()
    forms = dict[str, KnownForms]()  # what the probe learns, the rehearsal need not
    try:
        try:
            plan = assembly.plan_run(config, assembly.Sources(base, local=here)).require_training()
        except PcoError as error:
            yield DiagnosisGroup("task", (_failure_finding("task", error),))
        else:
            reward, tried = await _reward(plan)
            yield DiagnosisGroup(
                "task", (*_settled(plan), _data(plan), reward, *await _agent(plan))
            )
            if table := _table(tried.table):
                yield DiagnosisGroup("average reward by kind of answer", table)
        try:
            specs = specs_of(config)
        except ConfigError as error:
            yield DiagnosisGroup("models", (_failure_finding("model", error),))
            return
        for spec, headers in specs.items():
            section = await _model(spec, headers, plan, config, here, forms)
            usable &= section.ok
            yield section
        if plan is not None and usable:
            for section in await rehearse(plan, tried, forms):
                yield section
        yield DiagnosisGroup("money", (_prices(config, list(specs)),))
        asked = plan is not None and "untrusted" in plan.task.program.roles
        if (shared := _look_at_untrusted(config, asked)) is not None:
            yield DiagnosisGroup("untrusted", (shared,))
        yield DiagnosisGroup("disk", (_disk(runs_dir),))
    finally:
        if here is not None:
            await here.close()


def _failure_finding(name: str, error: PcoError) -> Diagnosis:
    return Diagnosis(name, "fail", str(error), error.hint)


def _settled(plan: assembly.Plan) -> list[Diagnosis]:
    """Also whether test is large enough."""
    config, judged = plan.config, len(plan.judged)
    parts = f"task {plan.task.name}, K = {config.size}, S = {config.select}"
    what = "; ".join(filter(None, (parts, select_remark(config))))
    findings = [Diagnosis("settings", "ok", what)]
    if (alone := independent(plan.judged)) < judged:
        what = f"{judged} test examples, {alone} of them independent: the verdict counts only those"
        findings.append(Diagnosis("groups", "ok", what))
    if remark := verdict_remark(judged, alone):
        step = "add rows, or give test a larger share: data.fractions"
        if len(plan.dataset.test) > judged:
            step = "raise verdict_examples"
        findings.append(Diagnosis("verdict", "warn", remark, step))
    return findings


def _data(plan: assembly.Plan) -> Diagnosis:
    report = examine(plan.dataset)
    counts = ", ".join(f"{n} {split}" for split, n in report.counts.items())
    counts = "; ".join(filter(None, (counts, plan.dataset.remark)))
    warnings = report.warnings()
    if not warnings:
        return Diagnosis("data", "ok", f"{counts}; no input appears in two splits")
    first = "" if plan.task.private else f": {warnings[0]}"  # it may quote a target
    what = f"{counts}; {plural(len(warnings), 'warning')}{first}"
    return Diagnosis("data", "warn", what, _data_check(plan))


def _data_check(plan: assembly.Plan) -> str:
    data = plan.config.data
    words = ["pco", "data", "check", os.path.relpath(plan.sources.base / data.path)]
    for name in ("input", "target", "messages", "split", "form", "group"):
        value = getattr(data, name) or ""
        if isinstance(value, str) and value != (getattr(DataSettings(), name) or ""):
            words += [f"--{name}", value]
    words += [] if data.header else ["--no-header"]
    return shell(*words) if data.path else "check the rows"


async def _agent(plan: assembly.Plan) -> list[Diagnosis]:
    try:
        tried = await assembly.try_agent(plan)
    except PcoError as error:
        return [_failure_finding("agent", error)]
    what = "a trial with dummy replies found where its prompt goes"
    return [Diagnosis("agent", "ok", what)] if tried else []


async def _reward(plan: assembly.Plan) -> tuple[Diagnosis, assembly.RewardTrial]:
    try:
        trial = await assembly.try_reward(plan, _TRIED)
    except PcoError as error:
        return _failure_finding("reward", error), assembly.RewardTrial()
    what = "not tried: it asks the judge, or reads an agent's output"
    if trial.scores:
        values = (
            f"{score.value:g} for {kind}" for kind, score in trial.scores if score is not None
        )
        what = "; ".join((*values, *trial.warnings))
    again = f"{_data_check(plan)}, and review the reward"
    level, step = ("warn", again) if trial.warnings else ("ok", "")
    return Diagnosis("reward", level, what, step), trial


def _table(table: RewardTable) -> tuple[Diagnosis, ...]:
    means = table.means.items()
    values = {kind: "it failed" if mean is None else f"{mean:.3g}" for kind, mean in means}
    rows = [Diagnosis(kind, "ok", value) for kind, value in values.items()]
    if table.fault:
        what, step = (
            f"cannot tell answers apart: {table.fault}",
            "pco init --from FILE, or write one",
        )
        rows.append(Diagnosis("reward", "warn", what, step))
    return tuple(rows)


async def _model(
    spec: str,
    headers: Mapping[str, str],
    plan: assembly.Plan | None,
    config: Config,
    here: InProcessModels | None,
    forms: dict[str, KnownForms],
) -> DiagnosisGroup:
    roles = [role for role in ROLES if config.model_of(role) == spec]
    title, key = f"{spec} ({', '.join(roles)})", _key_variable(spec, headers)
    if key is not None and key.level == "fail":
        return DiagnosisGroup(title, (key,))
    dataset = plan.dataset if plan is not None else assembly.NO_DATA
    seen = await probe(
        spec,
        timeout=min(30.0, config.timeout),
        headers=headers,
        forms=forms,
        simulated=lambda parsed: assembly.simulated_model(config.task, dataset, parsed),
        local=None if here is None else here.connect,
    )
    # In this process nothing is served side by side: how calls at once compare says nothing.
    alone = simulated_here([spec])
    kept = [each for each in seen.findings if not (alone and each.name == "concurrency")]
    return DiagnosisGroup(title, (*([key] if key else []), *kept))


def _key_variable(spec: str, headers: Mapping[str, str]) -> Diagnosis | None:
    """Whether a key is set, by the name of its variable; its value is not touched."""
    try:
        absent, names = missing_key(spec, headers.values()), parse_spec(spec).key_names
    except ConfigError:
        return None  # the probe says what is wrong with it
    if absent:
        what = f"{' or '.join(absent)} is not set, and this provider needs a key"
        return Diagnosis("key variable", "fail", what, f"export {absent[0]}=...")
    given = next((name for name in names if os.environ.get(name, "").strip()), None)
    what = f"{given} is set" if given else f"not set ({' or '.join(names)})"
    return Diagnosis("key variable", "ok", what) if names else None


def _prices(config: Config, specs: list[str]) -> Diagnosis:
    table = PriceTable(config.prices)
    unknown = [spec for spec in specs if table.price(spec) is None]
    if not unknown:
        return Diagnosis("prices", "ok", "known for every model")
    what, step = f"unknown for {', '.join(unknown)}", f"in pco.toml: {price_lines(unknown[0])}"
    if config.budget.usd is not None:
        return Diagnosis("prices", "fail", f"{what}, so budget.usd cannot be enforced", step)
    return Diagnosis("prices", "ok", f"{what}: costs are shown as unknown", step)


def _look_at_untrusted(config: Config, asked: bool) -> Diagnosis | None:
    """Method decision 13: who must not see the private input must not share an endpoint. `asked` =
    the task's executor asks the role: having no model of its own is a fault too."""

    def address(text: str) -> str:
        try:
            parsed = parse_spec(text)
        except ConfigError:
            return text
        return parsed.base_url or parsed.text.partition("?")[0]

    settings = config.roles.get("untrusted")
    spec = (settings.model if settings is not None else None) or (config.lm if asked else "")
    if not spec:
        return None
    others: list[Role] = [role for role in ROLES if role != "untrusted"]
    shared = [role for role in others if address(config.model_of(role)) == address(spec)]
    if not shared:
        return Diagnosis("endpoint", "ok", "no other role shares its endpoint")
    what = f"shared with {', '.join(shared)}: it also gets all their messages, even the input"
    step = "give the untrusted role its own endpoint: roles.untrusted.model"
    return Diagnosis("endpoint", "warn", what, step)


def _disk(runs_dir: Path) -> Diagnosis:
    folder = runs_dir.resolve()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        what = f"cannot write to {folder}: {error.strerror}"
        return Diagnosis("runs", "fail", what, "set PCO_RUNS to a folder you own")
    what = f"{bytes_text(free)} free at {runs_dir}"
    if free < _LEAST_DISK:
        return Diagnosis("runs", "warn", what, "free some space, or set PCO_RUNS to another disk")
    return Diagnosis("runs", "ok", what)


# One example goes through every part of the method.

# Which part it was, by the stage at which a chain broke.
_PARTS = {
    "route": "encoder", "compose": "generator", "prompt": "generator", "execute": "executor",
    "critique": "critic", "attribute": "attribution", "adversary": "critic",
}  # fmt: skip


async def rehearse(
    plan: assembly.Plan, tried: assembly.RewardTrial, forms: dict[str, KnownForms]
) -> tuple[DiagnosisGroup, ...]:
    """What each part made of the first training example, and which roles its model can carry (not
    of a simulated one) with which set of templates; about twelve calls a set. `tried` is what the
    reward gave other answers, and `forms` what each endpoint is known to take."""
    title, config = "one example, from route to gradients", with_listed_codebook(plan.config)
    # A solved example is critiqued too: there is only this one to see the critic at work.
    critic = config.critic.model_copy(update={"skip_solved": False})
    config = config.model_copy(update={"critic": critic, "cache": False, "budget": Budget()})
    plan = replace(plan, config=config)
    carried = dict[str, Mapping[Role, str | None]]()
    try:
        async with _rehearsed(plan, forms) as rehearsed:
            if not rehearsed.assembled.models.simulated:
                own = await _weigh_roles(rehearsed)
                carried[config.templates] = {**own, **await _weigh_others(rehearsed)}
        if any(carried.get(config.templates, {}).values()) and config.templates != _SHOTS:
            shots = replace(plan, templates=load_templates(_SHOTS))
            async with _rehearsed(shots, forms) as other:
                carried[_SHOTS] = {**carried[config.templates], **await _weigh_roles(other)}
    except PcoError as error:
        return (DiagnosisGroup(title, (_failure_finding("example", error),)),)
    trace, counts = rehearsed.trace, rehearsed.counts
    found = [*_forward(trace, plan, tried), *_backward(trace, config)]
    if count := counts.values[Incident.MALFORMED]:
        what = f"malformed: {count}, each repaired or requested again"
        found.append(Diagnosis("replies", "warn", what, "a more capable model needs fewer calls"))
    if counts.values[Incident.PROMPT_FALLBACKS]:
        what = "its reply was truncated or empty twice; the prompt uses the instincts verbatim"
        step = "raise roles.generator.max_tokens, or set compose = verbatim"
        found.append(Diagnosis("generator", "warn", what, step))
    groups = [DiagnosisGroup(title, tuple(found))]
    if carried:
        roles = _carried(carried, config)
        groups.append(DiagnosisGroup("which roles the models can fill", roles))
    return tuple(groups)


@asynccontextmanager
async def _rehearsed(
    plan: assembly.Plan, forms: dict[str, KnownForms]
) -> AsyncGenerator[Rehearsed]:
    """The parts after one example, with the templates of the plan; their models stay open."""
    counts, router, train = Counts(), plan.config.router, plan.dataset.train
    assembled = plan.connect(StackResources(tally=counts, forms=forms))
    try:
        if plan.config.learns_routes and router.features != "words":
            shown = next((e for e in train if router.images and e.media), train[0])
            media = shown.media if router.images else ()
            await Embedder(assembled.models.lm).read(shown.input, media)
        learner, state = build_learner(assembled), await initialise(assembled)
        trace = await learner.trace(train[0], state, epsilon=0.0)
        yield Rehearsed(assembled, learner, state, trace, counts)
    finally:
        await assembled.models.close()


def _forward(trace: Trace, plan: assembly.Plan, tried: assembly.RewardTrial) -> list[Diagnosis]:
    config, rollout, findings = plan.config, trace.rollout, list[Diagnosis]()
    route = rollout.route
    if config.learns_routes:
        by = "without model calls" if config.router.features == "words" else "using embeddings"
        what = f"its routes are learned from outcomes, {by}"
        findings.append(Diagnosis("router", "ok", what))
    elif route is not None and route.fallback:
        what = "no reply contained a valid route; the best-rated instincts are used instead"
        step = "try a different model: roles.encoder.model"
        findings.append(Diagnosis("encoder", "warn", what, step))
    elif route is not None:
        when = "after being asked again" if route.repaired else "at once"
        findings.append(Diagnosis("encoder", "ok", f"routes {when}"))
    if rollout.failure is not None:
        return [*findings, _broken(rollout.failure)]
    asked = "" if config.compose == "generator" else ", the instincts verbatim"
    length = f"a prompt of {count_words(rollout.prompt)} words{asked}"
    answer = f"an answer of {plural(count_words(rollout.output), 'word')}"
    answered = Diagnosis("executor", "ok", answer)
    cap = config.roles["executor"].max_tokens if "executor" in config.roles else None
    if remark := answers_remark(1, cut=int(rollout.truncated), empty=int(rollout.empty), cap=cap):
        what, _, step = remark.rstrip(".").partition(": ")
        answered = Diagnosis("executor", "warn", f"{answer}; {what}", step)
    reward = Diagnosis("reward", "ok", f"{rollout.reward:g} for this answer")
    values = {rollout.reward, *(score and score.value for _, score in tried.scores)}
    if len(tried.scores) > 1 and values == {config.reward_range[0]}:
        what = f"{reward.what}; the reference and nonsense get the lowest reward too"
        step = f"{_data_check(plan)}, and review the reward"
        reward = Diagnosis("reward", "warn", what, step)
    return [*findings, Diagnosis("generator", "ok", length), answered, reward]


def _backward(trace: Trace, config: Config) -> list[Diagnosis]:
    if trace.rollout.failure is not None:
        return []
    if config.learns_routes and not config.update.text_updates:
        return [Diagnosis("critic", "ok", "not asked, since no text is rewritten")]
    if trace.failure is not None:
        return [_broken(trace.failure)]
    verdict, gradients = trace.verdict, trace.gradients
    score = f"score {verdict.score:g}" if verdict is not None else "no verdict"
    blamed = [part for part in ("encoder", "generator") if getattr(gradients, part)]
    blamed += [variable_name(k) for k in gradients.codebook]
    return [
        Diagnosis("critic", "ok", f"a verdict: {score}"),
        Diagnosis("attribution", "ok", f"it blames {', '.join(blamed) or 'no part'}"),
    ]


def _broken(failure: Failure) -> Diagnosis:
    part = _PARTS.get(failure.stage, failure.stage)
    another = f"nothing can be learned from such replies; try a different model: roles.{part}.model"
    what = f"{failure.kind}: {failure.message}"
    return Diagnosis(part, "fail", what, failure.hint or another)


# Which roles a model can carry. A weak one may give valid JSON and no judgement: so we look at what
# the method needs of each role's reply, in the trace of that example and in a few more calls.

# Instincts that say where they belong, each with an input that belongs there.
_PLAIN = {
    "Where a poem is asked for, write in rhyme.": "Write me a poem about the sea.",
    "Where a sum is asked for, show each step of the arithmetic.": "What is the sum of 17 and 25?",
    "Where a translation is asked for, keep names as they are.": "Translate into French: I am Tom.",
    "Where a recipe is asked for, list the ingredients first.": "Give me a recipe for soup.",
}
# Least share of such inputs that are routed right, and of the instincts that a prompt keeps.
_FOUND, _KEPT = 0.75, 0.75
# Least share of an instinct's long words that its prompt has, and the letters of a long word.
_SHARED, _LONG = 1 / 3, 5
_ADVICE = "It does not say what to do where the input asks for two things; say that both are done."


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What the rehearsal leaves: the parts, the state it began from, its trace and its counts."""

    assembled: assembly.Assembled
    learner: Learner
    state: State
    trace: Trace
    counts: Counts

    @property
    def failed(self) -> bool:
        reward = self.trace.rollout.reward
        return reward is not None and reward < self.assembled.config.reward_range[1]

    def repeats(self, texts: Sequence[str], template: str) -> bool:
        """Whether half of what one says, three words at a time, is the template's own."""
        asked = set(_threes(self.assembled.plan.templates.sources[template]))
        runs = [run for run in map(_threes, texts) if run]
        return any(2 * sum(three in asked for three in run) >= len(run) for run in runs)


async def _weigh_roles(rehearsed: Rehearsed) -> dict[Role, str | None]:
    """What is weak about each role that is asked; None = its model carries it."""
    config, rollout = rehearsed.assembled.config, rehearsed.trace.rollout
    faults: dict[Role, str | None] = {}
    if config.has_encoder and rollout.route is not None:
        faults["encoder"] = await _encoder(rehearsed)
    if config.compose == "generator" and rollout.prompt:
        faults["generator"] = _generator(rehearsed)
    if rollout.reward is not None and config.update.text_updates:
        faults["critic"] = _critic(rehearsed)
        if config.critic.stages == 2:
            faults["attribution"] = _attribution(rehearsed)
        elif faults["critic"] is None:  # one call says what is wrong and who is to blame
            faults["critic"] = _attribution(rehearsed)
        faults["updater"] = await _updater(rehearsed)
    return faults


async def _weigh_others(rehearsed: Rehearsed) -> dict[Role, str | None]:
    """The same of the roles that only an outer part asks, without a set of templates."""
    entries, ask = registered("promptcodebook.roles"), rehearsed.assembled.models.ask
    return {cast("Role", entry.name): await entry.load()(ask) for entry in entries}


def _carried(
    by_set: Mapping[str, Mapping[Role, str | None]], config: Config
) -> tuple[Diagnosis, ...]:
    """A finding for each role, weak ones as warnings; which set of templates serves the models
    better, and what to do about roles that are weak with both."""
    own, shots, findings = by_set[config.templates], by_set.get(_SHOTS, {}), list[Diagnosis]()
    for role, fault in own.items():
        what = fault or "its model can fill this role"
        if fault and role in shots and shots[role] is None:
            what += f"; can fill this role with the {_SHOTS} templates"
        findings.append(Diagnosis(f"role {role}", "warn" if fault else "ok", what))
    weak = {name: [r for r, fault in each.items() if fault] for name, each in by_set.items()}
    best = min(weak, key=lambda name: len(weak[name]))  # the user's own, where both are alike
    if not weak[config.templates]:
        return tuple(findings)
    what, steps = f"weak roles: {', '.join(weak[config.templates])}", list[str]()
    if best != config.templates:
        what += f"; with the {best} templates: {', '.join(weak[best]) or 'none'}"
        steps.append(f"--set templates={best}")
    if weak[best]:
        models = " ".join(f"--set roles.{role}.model=SPEC" for role in weak[best])
        small = "" if config.preset == "small" else "; or pco train --preset small"
        steps.append(f"name a stronger model: {models}{small}")
    findings.append(Diagnosis("roles", "warn", what, "; ".join(steps)))
    return tuple(findings)


async def _encoder(rehearsed: Rehearsed) -> str | None:
    route = rehearsed.trace.rollout.route
    if route is not None and route.fallback:
        return f"weak: no valid route ({route.fault})"
    assembled, state = rehearsed.assembled, rehearsed.state
    composer = replace(assembled.composer(), select=1)
    book = Codebook(tuple(map(Instinct, _PLAIN)))
    plain, fresh = replace(state.parameters, codebook=book), RoutingStatistics.fresh(len(book))
    right = 0
    for index, asked in enumerate(_PLAIN.values()):
        draws = rehearsed.learner.config.randomness.at(0, f"doctor {index}")
        found, _, _ = await composer.route(plain, fresh, Example(f"doctor {index}", asked), draws)
        right += not found.fallback and found.indices == (index,)
    if right < _FOUND * len(_PLAIN):
        few = f"{right} of {len(_PLAIN)} plain inputs"
        return f"weak: its routes are valid, but correct for only {few}"
    return None


def _generator(rehearsed: Rehearsed) -> str | None:
    rollout = rehearsed.trace.rollout
    if rehearsed.counts.values[Incident.PROMPT_FALLBACKS]:
        return "weak: its prompt was truncated or empty twice"
    assert rollout.route is not None, "a prompt was composed for a route"
    texts, words = rehearsed.state.parameters.codebook.texts, long_words(rollout.prompt, _LONG)
    kept, count = 0, len(rollout.route.indices)
    for k in rollout.route.indices:
        long = long_words(texts[k], _LONG)
        kept += len(long & words) >= _SHARED * len(long)
    return f"weak: its prompt keeps {kept} of {count} instincts" if kept < _KEPT * count else None


def _critic(rehearsed: Rehearsed) -> str | None:
    trace = rehearsed.trace
    if trace.verdict is None:
        return f"weak: {trace.failure.kind if trace.failure else 'no verdict'}"
    one = rehearsed.assembled.config.critic.stages == 1
    if rehearsed.repeats([trace.verdict.feedback], "critic_one" if one else "critic"):
        return "weak: its critique repeats the words of the request"
    if rehearsed.failed and not trace.verdict.feedback.strip():
        return "weak: it finds nothing wrong with an answer below the full reward"
    return None


def _attribution(rehearsed: Rehearsed) -> str | None:
    trace, gradients = rehearsed.trace, rehearsed.trace.gradients
    if trace.verdict is None or trace.failure is not None:
        return f"weak: {trace.failure.kind if trace.failure else 'no verdict to attribute'}"
    complaints = [gradients.encoder, gradients.generator, *gradients.codebook.values()]
    if rehearsed.failed and not any(complaints):
        return "weak: it blames no part for an answer below the full reward"
    if rehearsed.repeats(complaints, "attribution"):
        return "weak: its blame repeats the words of the request"
    return None


async def _updater(rehearsed: Rehearsed) -> str | None:
    first, *others = rehearsed.state.parameters.codebook.texts
    asked = PendingUpdate(0, first, (_ADVICE,), tuple(others))
    written = await rehearsed.learner.updater.write(asked, step=0)
    if not written.kept:
        return f"weak: its rewrite is refused: {written.reason.partition(':')[0]}"
    same = words_of(written.after) == words_of(written.before)
    return "weak: it returns an instinct unchanged" if same else None


def _threes(text: str) -> list[tuple[str, ...]]:
    words = words_of(text)
    return list(zip(words, words[1:], words[2:], strict=False))
