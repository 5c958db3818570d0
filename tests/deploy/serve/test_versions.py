"""The version of now: what fails passes, and what was there to be served is served in the end."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.calls import Reply, Request
from promptcodebook.deploy.registry.log import version_of
from promptcodebook.deploy.registry.registry import Facts
from promptcodebook.deploy.serve.versions import (
    Composing,
    FileSource,
    Live,
    Patience,
    RegistrySource,
    ServedVersion,
)
from promptcodebook.errors import ConfigError, EndpointDown
from promptcodebook.policy.file import PolicyFile
from promptcodebook.routing.ranking import Vocabulary
from tests.build.clock import Clock, until
from tests.build.method import talkative
from tests.build.online import try_canary
from tests.build.policy import RANKING, file_of
from tests.build.proxied import CHAT, Setup, deployed, one_call, three_call, up
from tests.build.registry import PRODUCTION, sqlite


def version(word: str) -> ServedVersion:
    return ServedVersion.of(one_call(base_prompt=word).text().encode(), "the test")


def at_work(made: ServedVersion) -> Composing:
    return Composing(deployed(made.file), made.name)


class Failing:
    """A source that fails as often as is said before it has another version."""

    def __init__(self, first: ServedVersion, then: ServedVersion, *errors: Exception) -> None:
        self._first, self._then, self._errors = first, then, list(errors)

    def read(self, known: str) -> ServedVersion | None:
        if not known:
            return self._first
        if self._errors:
            raise self._errors.pop(0)
        return None if known == self._then.name else self._then


async def test_no_error_ends_the_following_of_a_ref(caplog: pytest.LogCaptureFixture) -> None:
    a, b = version("a"), version("b")
    private = KeyError("private-text"), KeyError("x"), OSError("private-text")
    live = Live(Failing(a, b, *private, ConfigError("no such thing")), at_work)
    watching = asyncio.ensure_future(live.watch(0.001))
    await until(lambda: bool(live.moves) or watching.done())
    assert not watching.done()
    watching.cancel()
    await live.close()
    assert (live.version, live.failures, live.moves) == (b.name, 4, 1)
    assert caplog.text.count("KeyError (test_versions.py:") == 1, "what lasts is told once"
    assert "no such thing" in caplog.text
    assert "private-text" not in caplog.text


async def test_a_file_that_could_not_be_put_to_work_is_tried_again(tmp_path: Path) -> None:
    path, broken = tmp_path / "tickets.pco.json", False

    def make(made: ServedVersion) -> Composing:
        if broken:
            raise ConfigError("a variable is missing")
        return at_work(made)

    one_call(base_prompt="a").save(path)
    live = Live(FileSource(path), make)
    broken = True
    one_call(base_prompt="b").save(path)
    assert not await live.look() and not await live.look()
    assert live.version == version("a").name
    broken = False
    assert await live.look() and not await live.look()
    await live.close()
    assert (live.version, live.failures) == (version("b").name, 2)


async def test_a_replaced_file_is_taken_up_and_no_request_fails(tmp_path: Path) -> None:
    path = tmp_path / "tickets.pco.json"
    before, after = one_call(), one_call(base_prompt="You answer tickets.")
    before.save(path)
    names = [version_of(file.text().encode()) for file in (before, after)]
    starts = {names[0]: "Instinct", names[1]: "You answer tickets."}
    seen: list[str] = []
    begun = asyncio.Event()
    async with up(setup=Setup(source=FileSource(path))) as served:

        async def asks() -> None:
            while seen[-1:] != names[1:]:
                status, _, headers = await served.ask(json={"messages": CHAT})
                assert status == 200
                seen.append(headers["x-pco-version"])
                begun.set()

        async def moves() -> None:
            await begun.wait()
            after.save(path)

        await asyncio.wait_for(asyncio.gather(asks(), moves()), 20)
        prompts = [body["messages"][0]["content"] for body in served.upstream.bodies]
        served.upstream.bodies.clear()
        path.write_text("{ half of a policy")
        await until(lambda: served.proxy.live.failures > 0)
        kept, _, headers = await served.ask(json={"messages": CHAT})
        counts = await served.metrics()
    assert set(seen) == set(names) and seen == sorted(seen, key=names.index)
    changed = [prompt.startswith(starts[names[1]]) for prompt in prompts]
    assert changed == [name == names[1] for name in seen], "each has the prompt of its version"
    assert (kept, headers["x-pco-version"]) == (200, names[1])
    assert counts["pco_version_moves"] == 1 and counts["pco_version_failures"] > 0


async def test_a_ref_is_followed_back_and_a_damaged_registry_changes_nothing(
    tmp_path: Path,
) -> None:
    with sqlite(tmp_path) as registry:
        a, b = (
            registry.freeze(one_call(base_prompt=f"{n}.").text(), "tickets").version for n in "ab"
        )
        registry.promote(a, PRODUCTION, override="a test")
        registry.promote(b, PRODUCTION, override="a test")
        async with up(setup=Setup(source=RegistrySource(registry, PRODUCTION))) as served:

            async def answered() -> str:
                status, _, headers = await served.ask(json={"messages": CHAT})
                assert status == 200
                return headers["x-pco-version"]

            assert await answered() == b
            registry.rollback(PRODUCTION)
            await served.proxy.live.look()
            assert await answered() == a
            (tmp_path / "registry.sqlite").unlink()
            (tmp_path / "registry.sqlite").write_text("no database")
            await until(lambda: served.proxy.live.failures > 0)
            assert await answered() == a


async def test_a_ref_that_moves_to_a_version_without_a_good_verdict_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [one_call(base_prompt=word).text() for word in "abc"]
    unjudged = one_call(base_prompt="d").with_about(verdict="").text()
    verdicts = ("Deploy", "", "Do not deploy")
    with sqlite(tmp_path) as registry:
        a, b, c = (
            registry.freeze(text, "tickets", Facts(verdict=verdict)).version
            for text, verdict in zip(texts, verdicts, strict=True)
        )
        d = registry.freeze(unjudged, "tickets").version
        registry.promote(a, PRODUCTION, override="a test")
        live = Live(RegistrySource(registry, PRODUCTION), at_work)
        plan = {"share": 0.5, "margin": 0.0, "split": "caller"}
        registry.promote(d, PRODUCTION, override="a test", canary=plan)
        await live.look_for_canary()
        for version in (b, c, d):
            registry.promote(version, PRODUCTION, override="a test", despite_verdict=True)
            assert await live.look()
        await live.look_for_canary()
        await live.close()
    assert [each.getMessage() for each in caplog.records] == [
        f"the canary is {d}; verdict: none is known: {d}",
        f"now serving {b}",
        f"now serving {c}; verdict: Do not deploy: {c}",
        f"now serving {d}; verdict: none is known: {d}",
        "the canary is over",
    ]


async def test_a_canary_that_cannot_be_served_ends_the_work_of_the_one_before(
    tmp_path: Path,
) -> None:
    ended = list[str]()

    class Closing(Composing):
        async def close(self) -> None:
            ended.append(self.version)
            await super().close()

    def make(made: ServedVersion) -> Composing:
        if made.name == c:
            raise ConfigError("a variable is missing")
        return Closing(deployed(made.file), made.name)

    with sqlite(tmp_path) as registry:
        a, b, c = (
            registry.freeze(one_call(base_prompt=word).text(), "tickets").version for word in "abc"
        )
        registry.promote(a, PRODUCTION, override="a test")
        live = Live(RegistrySource(registry, PRODUCTION), make)
        for tried in (b, c):
            try_canary(registry, tried)
            await live.look_for_canary()
        assert live.tried is None and live.canary and live.canary.version == c
        await live.close()
    assert ended == [b, a]


PATIENCE_S = 600.0


class FailingModel:
    """A model whose role fails: 'error', 'timeout' (it says nothing for long) or 'reply' (it says
    what is of no use)."""

    def __init__(self, role: str = "", how: str = "") -> None:
        self.history: list[Request] = []
        self._role = role
        self._how = how

    async def __call__(self, request: Request) -> Reply:
        self.history.append(request)
        if self._role not in (request.role, "any"):
            reply = talkative(request)
            assert isinstance(reply, str)
            return Reply(reply)
        if self._how == "error":
            raise EndpointDown("nothing answers")
        if self._how == "timeout":
            Clock().skip(PATIENCE_S)
            await asyncio.sleep(10 * PATIENCE_S)
        return Reply("")


def composing(
    file: PolicyFile, role: str = "", how: str = "", kept: int = 100
) -> tuple[Composing, FailingModel]:
    lm = FailingModel(role, how)
    return Composing(deployed(file, lm), "sha256:0", Patience(PATIENCE_S, PATIENCE_S, kept)), lm


@pytest.mark.parametrize("role", ["encoder", "generator"])
@pytest.mark.parametrize("how", ["error", "timeout", "reply"])
async def test_a_role_that_fails_is_replaced_by_the_best_rated_or_by_the_instincts(
    role: str, how: str
) -> None:
    made, lm = composing(three_call(base_prompt="Base."), role, how)
    composed = await made.compose("Where is it?")
    assert composed.fallbacks == (f"{role}:{how}",)
    if role == "encoder":
        # r̄ of the four entries is 0.1, 0.4 and twice untried, which stand at the mean.
        assert composed.route.indices == made.policy.fallback_route().indices == (1, 2)
    else:
        texts = [made.policy.codebook[k].text for k in composed.route.indices]
        assert composed.prompt.startswith("Base.\n\n" + "\n".join(texts))
    asked = len(lm.history)
    assert (await made.compose("Where is it?")).cached == "", "a failure is never kept"
    assert len(lm.history) > asked


async def test_both_may_fail_and_no_text_needs_no_model() -> None:
    made, lm = composing(three_call(), "any", "error")
    composed = await made.compose("Where is it?")
    assert composed.fallbacks == ("encoder:error", "generator:error") and composed.prompt
    lm.history.clear()
    composed = await made.compose(" \n")
    assert composed.fallbacks == ("input:empty",) and composed.prompt and not lm.history


async def test_words_that_the_router_never_saw_are_told_and_kept() -> None:
    """Nothing failed: the prompt is kept, and feedback teaches (`Served.fallback` is of models)."""
    rarity = Vocabulary.of(["Where is it?", "How far is it?"] * 20).rarity
    made, lm = composing(file_of(ranking=replace(RANKING, rarity=rarity)))
    composed = await made.compose("Wann bekomme ich mein Geld?")
    assert composed.fallbacks == ("router:unseen",) and not composed.failed
    assert (await made.compose("Wann bekomme ich mein Geld?")).cached == "input"
    assert len(lm.history) == 1 and not (await made.compose("Is it far?")).fallbacks


@pytest.mark.parametrize(("file", "mode"), [
    (three_call(), "three-call"),
    (file_of(compose="verbatim"), "two-call"),
    (file_of(ranking=RANKING), "two-call"),
    (one_call(), "one-call"),
])  # fmt: skip
async def test_the_mode_says_how_many_calls_an_answer_takes(file: PolicyFile, mode: str) -> None:
    made, lm = composing(file)
    composed = await made.compose("Where is it?")
    assert made.mode == mode and not composed.fallbacks
    assert len(lm.history) + 1 == ["one-call", "two-call", "three-call"].index(mode) + 1
    assert composed.prompt == await deployed(file, FailingModel()).aprompt("Where is it?"), (
        "the prompts that were judged"
    )


async def test_a_generator_that_never_sees_the_input_is_asked_once_a_route() -> None:
    file = file_of(ranking=RANKING)
    text = file.templates.generator.replace("{task}", "any")
    blind = file.templates.model_copy(update={"generator": text})
    made, lm = composing(file.model_copy(update={"templates": blind}))
    first, other = [await made.compose(text) for text in ("Where is it?", "When does it come?")]
    assert (first.cached, other.cached, len(lm.history)) == ("", "route", 1)
    assert first.prompt == other.prompt


async def test_no_more_prompts_are_kept_than_allowed() -> None:
    made, lm = composing(three_call(), kept=2)
    for text in ("a", "b", "a", "c", "b", "a"):
        await made.compose(text)
    # a, b, (a), c instead of b, b instead of a, a instead of c
    assert len(lm.history) == 2 * 5
