"""The stack that every call passes: roles, addresses, retries, limits; and the scripted model."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from promptcodebook import errors
from promptcodebook.base.randomness import keyed_int
from promptcodebook.calls import Chat, Message, Reply, Request, Sampling, Schema, Usage, request_key
from promptcodebook.config import Config, load_config
from promptcodebook.config.schema import RoleSettings
from promptcodebook.lm.limit import AdaptiveLimit, Backoff
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.stack import Endpoints, Models, Roles, StackResources
from promptcodebook.lm.structured import Ask
from promptcodebook.lm.wire import estimate_tokens
from promptcodebook.method.executor import BoundChat
from tests.build.method import Counts
from tests.build.server import Server, drops, fails, says

ASK = Request("executor", (Message("user", "hi"),))
HI = (Message("user", "hi"),)
QUICK = Backoff(retries=5, first=0.001)


@asynccontextmanager
async def endpoints(tally: Counts, environment: dict[str, str] | None = None, **fields):
    settings = {"timeout": 5.0, "backoff": QUICK, **fields}
    made = Endpoints(tally=tally, environment=environment or {}, **settings)
    try:
        yield made
    finally:
        await made.close()


async def test_every_incident_is_counted_and_made_good(server: Server, tally: Counts):
    server.script(fails(429), fails(503), fails(500), drops(), says("hal", finish="error"))
    server.script(says("at last"))
    async with endpoints(tally) as opened:
        reply = await opened.connect(server.spec)(ASK)
    assert reply.text == "at last"
    once = ("rate_limited", "unavailable", "server_error", "dropped", "broken_off")
    assert tally == dict.fromkeys(once, 1) and server.calls == 6


@pytest.mark.parametrize(("step", "kind", "counted", "calls"), [
    (fails(429), errors.RateLimited, {"rate_limited": 3}, 3),
    (fails(502), errors.ServerFault, {"server_error": 3}, 3),
    (drops(), errors.ServerFault, {"dropped": 3}, 3),
    (says(delay=60.0), errors.CallTimeout, {"timeout": 3}, 3),
    (fails(401), errors.AuthRefused, {}, 1),
])  # fmt: skip
async def test_retries_end_and_what_will_not_get_better_has_none(
    server: Server, tally: Counts, step, kind, counted: dict[str, int], calls: int
):
    server.default = step
    timeout = 0.3 if kind is errors.CallTimeout else 20.0
    async with endpoints(tally, timeout=timeout, backoff=Backoff(2, 0.001)) as opened:
        with pytest.raises(kind):
            await opened.connect(server.spec)(ASK)
    assert (server.calls, tally) == (calls, counted)


async def test_an_address_that_never_answered_is_given_up_soon(tally: Counts):
    async with endpoints(tally) as opened:
        with pytest.raises(
            errors.EndpointDown, match=r"nothing answers at http://127\.0\.0\.1:9"
        ) as caught:
            await opened.connect("http://127.0.0.1:9/v1#m")(ASK)
    assert "pco doctor --lm http://127.0.0.1:9/v1#m" in caught.value.hint
    assert tally == {"refused_connection": 2}


async def test_https_to_a_server_without_tls_is_named(server: Server, tally: Counts):
    async with endpoints(tally) as opened:
        with pytest.raises(errors.EndpointDown) as caught:
            await opened.connect(server.spec.replace("http:", "https:"))(ASK)
    assert caught.value.hint == "write http:// in its address: the server does not speak https"


async def test_an_endpoint_that_went_away_gets_every_retry(server: Server, tally: Counts):
    async with endpoints(tally) as opened:
        lm = opened.connect(server.spec)
        await lm(ASK)
        await server.stop()
        with pytest.raises((errors.EndpointDown, errors.ServerFault)):
            await lm(ASK)
    assert tally.total() == 6


async def test_an_endless_retry_after_fails_its_call_at_once_and_holds_up_no_other(
    server: Server, tally: Counts
):
    server.script(fails(429, headers={"Retry-After": "86400"}))
    async with endpoints(tally) as opened:
        lm = opened.connect(server.spec)
        with pytest.raises(errors.RateLimited):
            await asyncio.wait_for(lm(ASK), 20)
        assert (await asyncio.wait_for(lm(ASK), 60)).text == "ok"
    assert server.calls == 2


async def test_a_waiting_retry_holds_no_slot(server: Server, tally: Counts):
    server.script(fails(500), says("other"))
    slow = Backoff(retries=1, first=30.0)
    async with endpoints(tally, concurrency=1, backoff=slow) as opened:
        lm = opened.connect(server.spec)
        first = asyncio.create_task(lm(ASK))
        await server.seen(1)
        second = await asyncio.wait_for(lm(ASK), 60)
        assert second.text == "other"
        assert not first.done()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_models_at_one_address_share_one_limit(server: Server, tally: Counts):
    server.default = says(delay=0.01)
    async with endpoints(tally, concurrency=3) as opened:
        a, b = opened.connect(f"{server.url}#a"), opened.connect(f"{server.url}#b")
        await asyncio.gather(*(lm(ASK) for lm in (a, b) for _ in range(10)))
    assert server.peak == 3
    assert {body["model"] for body in server.bodies} == {"a", "b"}


async def test_headers_are_sent_and_their_keys_come_from_the_environment(
    server: Server, tally: Counts
):
    headers = {"CF-Id": "$PCO_ID", "CF-Secret": "$PCO_SECRET", "X-Team": "blue"}
    server.script(says(), fails(401, "who is id-hush with secret-hush and blue?"))
    environment = {"PCO_ID": "id-hush", "PCO_SECRET": "secret-hush"}
    async with endpoints(tally, environment) as opened:
        lm = opened.connect(server.spec, headers)
        await lm(ASK)
        with pytest.raises(errors.AuthRefused) as caught:
            await lm(ASK)
    sent = ["id-hush", "secret-hush", "blue", None]
    assert [server.headers[0].get(name) for name in (*headers, "Authorization")] == sent
    message = f"{caught.value}{caught.value.hint}"
    assert "hush" not in message and "PCO_ID" in message


@pytest.mark.parametrize(("headers", "message"), [
    ({"api-key": "$MISSING"}, "MISSING, which is not set"),
    ({"a": "$SET", "b": "$B"}, "'b' takes its key from B, which is not set"),
])  # fmt: skip
async def test_a_key_that_cannot_be_found_is_said_before_any_call(
    tally: Counts, headers: dict[str, str], message: str
):
    async with endpoints(tally, {"SET": "x"}) as opened:
        with pytest.raises(errors.ConfigError, match=message):
            opened.connect("http://127.0.0.1:9/v1#m", headers)


def test_the_same_key_gives_the_same_jitter():
    backoff = Backoff(first=1.0, longest=4.0)
    waits = [backoff.seconds(n, b"k") for n in range(5)]
    assert waits == [backoff.seconds(n, b"k") for n in range(5)]
    assert waits != [backoff.seconds(n, b"other") for n in range(5)]
    for n, wait in enumerate(waits):
        assert min(4.0, 2**n) / 2 <= wait <= min(4.0, 2**n)


def roles(lm: ScriptedLM, **settings: RoleSettings) -> Roles:
    return Roles(lm, {**Config().roles, **settings}, "http://h/v1#shared")


async def test_model_and_sampling_come_from_the_role():
    lm = ScriptedLM().reply_with(lambda r: "ok")
    own = RoleSettings(model="openai/x", temperature=0.3, top_p=0.8, max_tokens=9, extra={"k": 1})
    asked = roles(lm, critic=own)
    await asked(Request("critic", HI, sample=4))
    await asked(Request("generator", HI, sample=4))
    critic, generator = lm.history
    assert critic.model == "openai/x"
    assert critic.sampling == Sampling(0.3, 0.8, 9, {"k": 1})
    assert critic.sample == 4
    assert generator.model == "http://h/v1#shared"
    assert generator.sampling.temperature == 0.6
    assert asked.model_of("critic") == "openai/x"
    assert asked.model_of("untrusted") == "http://h/v1#shared"


async def test_equal_greedy_requests_share_one_key_and_drawn_ones_keep_their_sample():
    lm = ScriptedLM().reply_with(lambda r: "ok")
    asked = roles(lm)
    for sample in (1, 2):
        await asked(Request("executor", HI, sample=sample, greedy=True))
        await asked(Request("encoder", HI, sample=sample))
        await asked(Request("generator", HI, sample=sample))
    by_role = {role: [r for r in lm.history if r.role == role] for role in ("executor", "encoder")}
    for requests in by_role.values():
        assert len({request_key(r) for r in requests}) == 1
        assert {(r.sampling.temperature, r.sampling.top_p) for r in requests} == {(0.0, None)}
    assert len({request_key(r) for r in lm.history if r.role == "generator"}) == 2


async def test_a_role_without_a_temperature_sends_none_where_others_send_zero():
    lm = ScriptedLM().reply_with(lambda r: "ok")
    asked = roles(lm, executor=RoleSettings(temperature=None, top_p=0.9, max_tokens=9))
    for sample in (1, 2):
        await asked(Request("executor", HI, sample=sample, greedy=True))
    await asked(Request("executor", HI, sample=3))
    assert [r.sampling.temperature for r in lm.history] == [None] * 3
    assert [(r.sample, r.sampling.top_p) for r in lm.history] == [(0, None), (0, None), (3, 0.9)]


async def test_a_tool_call_in_place_of_a_text_is_an_error_unless_tools_were_offered():
    """For every role: an empty text would pass for an answer."""
    call = Reply(
        "", tool_calls=({"function": {"name": "f", "arguments": "{}"}},), usage=Usage(1, 5)
    )
    roles = Roles(ScriptedLM().reply_with(lambda request: call), {}, "m")
    with pytest.raises(
        errors.ParseError, match="the critic reply from m calls a tool where text"
    ) as caught:
        await Ask(roles, Counts()).text(replace(ASK, role="critic"))
    assert caught.value.usage == call.usage and caught.value.answered
    offered = replace(ASK, sampling=Sampling(extra={"tools": [{}]}))
    assert (await roles(offered)).tool_calls == call.tool_calls
    told = Roles(ScriptedLM().enqueue(replace(call, text="so")), {}, "m")
    assert (await told(ASK)).text == "so"


async def test_a_request_goes_to_the_model_that_it_names(tally: Counts):
    async with endpoints(tally, simulated=lambda spec: ScriptedLM().enqueue(spec.text)) as opened:
        for name in ("simulated?a=1", "simulated?b=1"):
            opened.connect(name)
        assert (await opened(Request("executor", HI, model="simulated?b=1"))).text.endswith("b=1")
        with pytest.raises(errors.ConfigError, match="openai/c") as caught:
            await opened(Request("executor", HI, model="openai/c"))
    assert "connected: simulated?a=1" in caught.value.hint


async def test_a_body_field_takes_its_secret_from_the_environment(server: Server, tally: Counts):
    """It is sent, and neither journaled nor quoted."""
    fields = {"top_k": 20, "auth": {"api_key": "$PCO_BODY"}}
    ask = replace(ASK, sampling=replace(ASK.sampling, extra=fields))
    server.script(says("your key is k-hush"), fails(401, "no such key: k-hush"))
    async with endpoints(tally, {"PCO_BODY": "k-hush"}) as opened:
        lm = opened.connect(server.spec)
        reply = await lm(ask)
        with pytest.raises(errors.AuthRefused) as caught:
            await lm(ask)
    assert server.bodies[0]["auth"] == {"api_key": "k-hush"} and server.bodies[0]["top_k"] == 20
    assert reply.text == "your key is ***"
    assert "hush" not in f"{caught.value}{caught.value.hint}"
    assert ask.sampling.extra == fields


async def test_replies_are_cached_between_stacks_but_not_the_users_own_nor_the_simulated(
    server: Server,
):
    async def sources(supplies: StackResources, **settings: object) -> list[str]:
        found: list[str] = []
        for _ in range(2):
            stack = Models.build(load_config({"lm": server.spec, **settings}), supplies)
            found.append((await stack.lm(ASK)).source)
            assert stack.keeps is (settings.get("cache", True) and supplies == StackResources())
            await stack.close()
        return found

    roles = {"critic": {"extra": {"api_key": "$PCO_BODY"}}}
    with pytest.raises(errors.ConfigError, match="PCO_BODY, which is not set"):
        await sources(StackResources(), roles=roles)
    with pytest.raises(errors.ConfigError, match="no simulated model"):
        await sources(StackResources(), lm="simulated")
    script = ScriptedLM().reply_with(lambda r: "ok")
    assert await sources(StackResources()) == ["live", "cache"]
    assert await sources(StackResources(), cache=False) == ["live", "live"]
    assert await sources(StackResources(client=script)) == ["live", "live"]
    assert (
        await sources(StackResources(simulated=lambda spec: script), lm="simulated") == ["live"] * 2
    )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def window(limit: AdaptiveLimit) -> int:
    """As many answered calls as make one window; what the limit is then."""
    for _ in range(max(limit.current, 4)):
        limit.record_answer()
    return limit.current


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def objected(limit: AdaptiveLimit, retry_after: float = 0.0) -> None:
    limit.record_objection(await limit.acquire(), retry_after)
    limit.release()


async def test_a_wave_of_objections_halves_once_and_never_below_one():
    clock = Clock()
    limit = AdaptiveLimit(64, clock=clock)
    wave = [await limit.acquire() for _ in range(64)]
    clock.now += 1
    for started in wave:
        limit.record_objection(started)
        limit.release()
    seen = [limit.current]
    for _ in range(7):
        clock.now += 1
        await objected(limit)
        seen.append(limit.current)
    assert seen == [32, 16, 8, 4, 2, 1, 1, 1]


async def test_it_grows_by_steps_up_to_the_maximum():
    limit = AdaptiveLimit(32, clock=Clock())
    await objected(limit)
    assert [limit.current, *(window(limit) for _ in range(12))][:4] == [16, 18, 20, 22]
    assert limit.current == 32


async def test_retry_after_holds_every_new_call_until_then_and_a_later_one_moves_it():
    limit = AdaptiveLimit(8)
    loop = asyncio.get_running_loop()
    first, second = await limit.acquire(), await limit.acquire()
    begun = loop.time()
    limit.record_objection(first, 0.05)
    waiting = [asyncio.create_task(limit.acquire()) for _ in range(2)]
    await settle()
    limit.record_objection(second, 0.12)
    await asyncio.gather(*waiting)
    assert loop.time() - begun >= 0.115
    assert limit.in_flight == 4


HELLO = Request("executor", (Message("user", "hello there"),))


async def test_a_script_replies_by_role_as_it_is_written_or_estimated():
    paid = Reply("x", usage=Usage(calls=1, prompt_tokens=99), finish="length")
    lm = ScriptedLM().enqueue(errors.ServerFault("oops"), paid).enqueue("critic's", role="critic")
    with pytest.raises(errors.ServerFault):
        await lm(HELLO)
    assert (await lm(Request("critic", HI))).text == "critic's"
    assert await lm(HELLO) == paid and lm.left == 0
    with pytest.raises(
        errors.LMError, match=r"no reply for call 4 \(role executor\): 'hello there'"
    ):
        await lm(HELLO)
    reply = await lm.reply_with(lambda request: "12345678")(HELLO)
    assert reply.estimated
    assert reply.usage == Usage(calls=1, prompt_tokens=3, completion_tokens=2)
    assert [request.role for request in lm.history[:3]] == ["executor", "critic", "executor"]


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcde", 2), ("éééé", 2), ("\ud800", 1)])
def test_estimates_count_bytes(text: str, tokens: int):
    assert estimate_tokens(text) == tokens


# The chat


def chat(lm: ScriptedLM, greedy: bool = False) -> BoundChat:
    return BoundChat(lm, lambda name: keyed_int("e1", name), greedy)


async def test_a_string_is_one_user_message_behind_the_system_prompt():
    lm = ScriptedLM().enqueue("a", "b", "c")
    bound: Chat = chat(lm)
    schema = Schema("S", {"type": "object"})
    await bound("x {y}", system="p", schema=schema)
    await bound([Message("user", "1"), Message("assistant", "2"), Message("user", "3")])
    await bound("x", role="untrusted")
    assert lm.history[0].messages == (Message("system", "p"), Message("user", "x {y}"))
    assert [m.content for m in lm.history[1].messages] == ["1", "2", "3"]
    assert [request.role for request in lm.history] == ["executor", "executor", "untrusted"]
    assert [request.schema for request in lm.history] == [schema, None, None]


async def test_samples_differ_by_call_and_repeat_by_purpose():
    runs: list[list[int]] = []
    for _ in range(2):
        lm = ScriptedLM().reply_with(lambda request: "x")
        bound = chat(lm)
        for purpose in ("", "", "query", "answer", "query"):
            await bound("same", purpose=purpose)
        runs.append([request.sample for request in lm.history])
    assert runs[0] == runs[1] and len(set(runs[0])) == 5
    named = [keyed_int("e1", name) for name in ("0", "1", "query")]
    assert runs[0][:3] == named, "numbered without a name"


async def test_usage_and_cuts_are_summed_and_greedy_is_passed_on():
    cut, counted = Reply("b", finish="length"), list[str]()
    again = replace(cut, source="journal")
    lm = ScriptedLM().enqueue("<think>2+2 {hm}</think> a", cut, again, "so {1}</think>a <b> c ")
    bound = BoundChat(lm, lambda _: 0, True, lambda name, count=1: counted.append(name))
    seen = [((await bound("x")).text, bound.truncated) for _ in range(4)]
    assert seen == [("a", False), ("b", True), ("b", True), ("a <b> c", True)]
    assert counted == ["truncated"], "a cut counts when it is paid for and not again"
    assert bound.usage.calls == 4
    assert all(request.greedy for request in lm.history)
