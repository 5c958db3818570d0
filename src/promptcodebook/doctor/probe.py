"""What an endpoint can do, found out by a dozen short calls; and what `pco doctor` prints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from promptcodebook import errors
from promptcodebook.base.text import strip_fence
from promptcodebook.calls import LM, Message, Request, Sampling, Schema
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.quirks import KnownForms
from promptcodebook.lm.spec import ApiKey, Spec, parse_spec
from promptcodebook.lm.structured import strip_think
from promptcodebook.lm.wire import TOKENIZER

DiagnosisLevel = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing examined: how it is, and what to type next ('' = nothing)."""

    name: str
    level: DiagnosisLevel
    what: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class DiagnosisGroup:
    """Everything found about one subject, such as one model (its spec is then the title)."""

    title: str
    findings: tuple[Diagnosis, ...]

    @property
    def ok(self) -> bool:
        """Whether a run can do with it (warnings do not prevent one)."""
        return all(each.level != "fail" for each in self.findings)

    def __getitem__(self, name: str) -> Diagnosis:
        return next(each for each in self.findings if each.name == name)


_AT_ONCE = 8
_SHORT = 64  # tokens that a reply of one word may have
_BATCH = 32
# A value no model would come up with: who replies with it was made to.
_TOKEN = "kestrel-7391"
_CODE = {"properties": {"code": {"type": "string", "enum": [_TOKEN]}}, "required": ["code"]}
_SCHEMA = Schema("Probe", {"type": "object", **_CODE, "additionalProperties": False})
# Long enough for prefix caches that start at 1,024 tokens.
_LONG = "The quick brown fox jumps over the lazy dog. " * 160


async def probe(
    spec_text: str,
    *,
    timeout: float = 30.0,
    headers: Mapping[str, str] | None = None,
    forms: dict[str, KnownForms] | None = None,
    simulated: Callable[[Spec], LM] | None = None,
    local: Callable[[Spec], LM] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> DiagnosisGroup:
    """Asks the model behind a spec. Never raises for what it comes upon: that is a Finding."""
    try:
        spec = parse_spec(spec_text)
        access = spec.credentials(headers)
        if spec.kind == "local" and local is not None:
            return DiagnosisGroup(spec_text, tuple(await _by_weights(local(spec), clock)))
        if spec.kind == "simulated" and simulated is not None:
            return DiagnosisGroup(spec_text, tuple(await _by_calls(simulated(spec), clock)))
        if spec.in_process:
            raise errors.ConfigError("there is no address to check", hint="pco lm serve simulated")
        endpoint = Endpoint(spec, access, timeout=timeout, forms=forms)
    except (errors.ConfigError, ImportError) as error:
        hint = str(getattr(error, "hint", ""))
        return DiagnosisGroup(spec_text, (Diagnosis("spec", "fail", str(error), hint),))
    async with endpoint:
        findings = await _address(endpoint, spec, access.key) if spec.base_url else []
        if all(each.level != "fail" for each in findings):
            # A server that broke over its list may hang up right after: the calls connect again.
            await endpoint.close()
            findings += await _by_calls(endpoint, clock)
        if findings[-1].level != "fail":
            what = "the endpoint counts tokens itself"
            if await endpoint.count_tokens("one two three") is None:
                what = "not offered; lengths come from reported prompt tokens, or are estimated"
            findings.append(Diagnosis("tokenizer", "ok", what))
    return DiagnosisGroup(spec_text, tuple(findings))


async def _address(endpoint: Endpoint, spec: Spec, key: ApiKey | None) -> list[Diagnosis]:
    accepted = f"the key in {key.name} is accepted" if key else "no key was sent or asked for"
    begun, model = time.perf_counter(), spec.model
    try:
        listed = await endpoint.models()
    except errors.EndpointDown as error:
        return [Diagnosis("address", "fail", str(error), error.hint.partition(": pco ")[0])]
    except errors.AuthRefused as error:
        reached = Diagnosis("address", "ok", f"{spec.base_url} answers")
        return [reached, Diagnosis("key", "fail", str(error), error.hint)]
    except errors.LMError as error:
        # Some servers have no list; the calls will tell whether the address is right.
        if not model:
            return [Diagnosis("address", "fail", str(error), "add #MODEL to the spec")]
        unlisted = Diagnosis("address", "warn", f"lists no models: {error}", error.hint)
        return [unlisted, Diagnosis("key", "ok", accepted)]
    took, names = time.perf_counter() - begun, ", ".join(listed[:12]) or "none"
    # Aliases and adapters are often served without being listed: the call decides.
    what = f"{model} is not listed{errors.did_you_mean(model, listed)}"
    found = Diagnosis("model", "warn", what, f"listed are: {names}")
    if model in listed:
        found = Diagnosis("model", "ok", f"{model} is listed")
    elif not model and len(listed) == 1:
        found = Diagnosis("model", "ok", f"the only model listed is {listed[0]}")
    elif not model:
        found = Diagnosis("model", "fail", f"several are listed: {names}", "add #MODEL to the spec")
    reached = Diagnosis("address", "ok", f"{spec.base_url} answers in {took * 1e3:.0f} ms")
    return [reached, Diagnosis("key", "ok", accepted), found]


async def _by_calls(lm: LM, clock: Callable[[], float]) -> list[Diagnosis]:
    begun = clock()
    try:
        first = await lm(_ask("Reply with the single word: hello", cap=_SHORT))
    except (errors.LMError, errors.ConfigError) as error:
        return [Diagnosis("call", "fail", str(error), error.hint)]
    took = clock() - begun
    usage = Diagnosis("usage", "ok", "token counts are reported")
    if first.estimated:
        what = f"no token counts are reported; ours are an {TOKENIZER}"
        usage = Diagnosis("usage", "warn", what, "set budgets in calls or time, not tokens")
    called = Diagnosis("call", "ok", f"a short reply takes {took:.2f} s")
    if not (strip_think(first.text) or first.tool_calls):
        what = f"{called.what} but contains no text: {first.usage.completion_tokens} of {_SHORT} "
        what += "tokens went to thinking, or the reply was empty"
        step = "switch its thinking off in roles.ROLE.extra, or give each role a larger max_tokens"
        called = Diagnosis("call", "warn", what, step)
    findings = [called, usage]
    trials = {**_TRIALS, "concurrency": partial(_concurrency, clock=clock)}
    for name, trial in trials.items():
        try:
            what, *step = await trial(lm)
            findings.append(Diagnosis(name, "warn" if step else "ok", what, *step))
        except errors.LMError as error:
            what = f"could not be determined: {error}"
            findings.append(Diagnosis(name, "warn", what, error.hint))
    return findings


async def _by_weights(lm: LM, clock: Callable[[], float]) -> list[Diagnosis]:
    begun = clock()
    try:  # its first reply is made when it has been loaded
        await lm(_ask("Reply with the single word: hello", cap=1))
    except (errors.LMError, errors.ConfigError, errors.MissingExtra) as error:
        return [Diagnosis("weights", "fail", str(error), error.hint)]
    took = clock() - begun
    findings = [Diagnosis("weights", "ok", f"found, and loaded in {took:.1f} s")]
    findings += await _by_calls(lm, clock)
    asked = [_ask(f"Tell me a story about the number {n}.", cap=48) for n in range(_BATCH)]
    begun = clock()
    replies = await asyncio.gather(*(lm(each) for each in asked))
    pace = sum(r.usage.completion_tokens for r in replies) / (clock() - begun)
    what = f"{pace:.0f} tokens/s over {_BATCH} calls at once"
    return [*findings, Diagnosis("speed", "ok", what)]


def _ask(text: str, *, cap: int, schema: Schema | None = None, drawn: bool = False) -> Request:
    sampling = Sampling(0.7 if drawn else 0.0, 0.9 if drawn else None, cap)
    return Request("executor", (Message("user", text),), schema, sample=7, sampling=sampling)


# Each trial: what was found and, where that is a warning, what to do.


async def _structured(lm: LM) -> tuple[str, ...]:
    asked = _ask("Reply with the single word: hello", cap=512, schema=_SCHEMA)
    reply = await lm(asked)
    step = "pco parses and repairs replies, or asks again; nothing to do"
    if "response_format" in reply.dropped:
        return "refused: the endpoint accepts no schema, so prompts include it", step
    # Only the object itself counts: a model that chats about the schema was not made to obey it.
    text = "".join(strip_fence(strip_think(reply.text)).split())
    if text == f'{{"code":"{_TOKEN}"}}':
        return ("enforced: replies follow the schema",)
    return "accepted and ignored: a schema changes nothing", step


async def _sampling(lm: LM) -> tuple[str, ...]:
    reply = await lm(_ask("Name a colour.", cap=64, drawn=True))
    refused = [name for name in reply.dropped if name != "response_format"]
    if not refused:
        return ("temperature, top_p and seed are accepted",)
    step = "the endpoint samples in its own way; set the role's temperature to none"
    return f"refused and left out: {', '.join(refused)}", step


async def _length_cap(lm: LM) -> tuple[str, ...]:
    reply = await lm(_ask("Count from 1 to 200, one number a line.", cap=8))
    tokens = reply.usage.completion_tokens
    if reply.finish == "length":
        return ("max_tokens is obeyed, and truncated replies say so",)
    if reply.estimated or tokens <= 8:
        return ("the reply stayed within max_tokens by itself",)
    step = "a token or money budget can be exceeded here; set a budget in calls"
    return f"ignored: {tokens} tokens were returned where 8 were allowed", step


async def _prefix_cache(lm: LM) -> tuple[str, ...]:
    replies = [await lm(_ask(f"{_LONG}\nReply with: {word}", cap=16)) for word in ("one", "two")]
    usage = replies[1].usage
    if not usage.cached_prompt_tokens:
        return ("no cached tokens are reported, so all count in full",)
    return (f"{usage.cached_prompt_tokens} of {usage.prompt_tokens} prompt tokens were cached",)


async def _concurrency(lm: LM, clock: Callable[[], float]) -> tuple[str, ...]:
    first, *others = (
        _ask(f"Say a number near {number}.", cap=32) for number in range(1 + _AT_ONCE)
    )
    begun = clock()
    await lm(first)
    alone, begun = clock() - begun, clock()
    results = await asyncio.gather(*map(lm, others), return_exceptions=True)
    factor = (clock() - begun) / max(alone, 1e-6)
    if failed := [each for each in results if isinstance(each, BaseException)]:
        what = f"{len(failed)} of {_AT_ONCE} calls at once failed: {failed[0]}"
        return what, f"set concurrency below {_AT_ONCE}"
    what = f"{_AT_ONCE} calls at once take {factor:.1f} times as long as one"
    if factor > _AT_ONCE / 2:
        step = "a server that batches (vLLM, SGLang) would make the run faster"
        return f"{what}: they are served one by one", step
    return (what,)


_TRIALS: Mapping[str, Callable[[LM], Awaitable[tuple[str, ...]]]] = {
    "structured output": _structured,
    "sampling": _sampling,
    "length cap": _length_cap,
    "prefix cache": _prefix_cache,
}
