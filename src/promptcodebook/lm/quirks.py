"""What an endpoint refuses of our requests, and what it takes instead. dialects.toml lists the
optional fields of a request with the words that name them. A refusal is tried again in another
form of the field that it names; only a form that was then accepted is kept."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from promptcodebook.calls import Request, rewritten
from promptcodebook.config.providers import providers
from promptcodebook.errors import LMError
from promptcodebook.lm.wire import ErrorBody, ModelAddress, byte_size, dialects, sampling_fields

_log = logging.getLogger(__name__)
CAPS = ("max_tokens", "max_completion_tokens")
INSTRUCTS = ("system", "developer")
_Cap = Literal["max_tokens", "max_completion_tokens"]
_SEED_BITS = 0x7FFFFFFF
_LEAST = 16  # tokens of a reply: with fewer it could say nothing
_MOST_TRIES = 8  # of one request; a refusal names one thing at a time
_BLIND_TRIES = 4
_MOST_KEPT = 100  # refusals that no form satisfied
# A whole number, whose thousands may stand apart; behind a bracket begins a range.
_NUMBER = re.compile(
    r"(?<![\w.])((?<!\[)\d{1,3}(?:[,._' \u00a0\u202f]\d{3})+|\d+)(k)?(?!\w)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Quirks:
    """The forms in which one endpoint takes our requests. `out` and `at`: fields that are left out,
    always or at this value. `shape`: how far down the forms of response_format. `most` and
    `context`: limits that it named, of a reply, and of prompt and reply with a factor on our count.
    `apart`: it tells several system messages from one."""

    out: frozenset[str] = frozenset()
    at: Mapping[str, object] = field(default_factory=dict[str, object])
    shape: int = 0
    folded: bool = False
    apart: bool = False
    cap: _Cap = "max_tokens"
    swapped: bool = False
    most: int | None = None
    context: tuple[int, float] | None = None

    @classmethod
    def of_provider(cls, provider: str) -> Quirks:
        """What providers.toml knows of it before the first request."""
        its = providers()["providers"].get(provider, {})
        if not its.keys() & {"lacks", "systems_apart"}:
            return _NONE
        return cls(frozenset(its.get("lacks", ())), apart=its.get("systems_apart", False))

    def adapt(self, body: dict[str, Any], theirs: Collection[str] = ()) -> list[str]:
        """Puts the body into these forms, but for the fields that are `theirs`, a caller's. Names
        what is left out."""
        dropped = list[str]()
        if self is _NONE:  # which costs nothing where nothing is refused
            if "messages" in body:
                body["messages"] = self._placed(body["messages"])
            return dropped
        for name in (self.out | self.at.keys()) & body.keys():
            if name in theirs:
                continue
            if name in self.out or self.at[name] == body[name]:
                del body[name]
                dropped.append(name)
        if body.get("response_format") is not None and "response_format" not in theirs:
            enforced = _shaped(body, body.pop("response_format"), self.shape)
            dropped += [] if enforced else ["response_format"]
        if "messages" in body:
            body["messages"] = self._placed(body["messages"])
        for name in CAPS:
            if body.get(name) is not None and name not in theirs:
                cap = self._capped(body, body[name])
                if name != self.cap:
                    del body[name]
                body[self.cap] = cap
                break
        return sorted(dropped)

    def _placed(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """One system message, at the beginning, which strict templates ask for; or none."""
        systems = [m for m in messages if m["role"] in INSTRUCTS]
        if not systems or not (self.folded or (len(systems) > 1 and not self.apart)):
            return messages
        others = [m for m in messages if m["role"] not in INSTRUCTS]
        joined = systems[0]
        for each in systems[1:]:
            joined = with_text(joined, each.get("content"))
        if not self.folded:
            return [joined, *others]
        turns = [{**joined, "role": "user"}]
        for message in others:  # strict templates want turns that alternate
            if turns[-1]["role"] == message["role"] == "user":
                whole = with_text(turns.pop(), message.get("content"))["content"]
                message = {**message, "content": whole}
            turns.append({**message})
        return turns

    def _capped(self, body: Mapping[str, Any], cap: int) -> int:
        cap = min(cap, self.most or cap)
        if self.context is None:
            return cap
        limit, factor = self.context
        return max(min(cap, limit - round(factor * _tokens(body))), min(cap, _LEAST))

    # One form further, for a field that a refusal names.

    def after(self, name: str, sent: Mapping[str, Any], words: str) -> Quirks | None:
        """The next form of a field that was sent; None where there is no other."""
        match name:
            case "system":
                systems = [m for m in sent.get("messages", ()) if m["role"] in INSTRUCTS]
                if len(systems) > 1 and self.apart:
                    return replace(self, apart=False)
                return replace(self, folded=True) if systems and not self.folded else None
            case "response_format":
                return self._simpler(sent, words)
            case "max_tokens":
                return self._shorter(sent, words)
            case _ if "needed" in _optional().get(name, {"needed": ""}):
                return None
            case "temperature" | "top_p" if (
                name in sent
                and name not in self.at
                and not _says(_optional()[name]["as_such"], words)
            ):
                # 'must be positive' refuses a value: a second one that is refused is the field.
                return replace(self, at={**self.at, name: sent[name]})
            case _ if name in sent:
                return replace(self, out=self.out | {name})
            case _:
                return None

    def without(self, *names: str) -> Quirks:
        """The last form of each field, for a refusal that names none."""
        kinds = {"response_format", "system", "max_tokens"}
        swapped = "max_tokens" in names
        cap = CAPS[self.cap == CAPS[0]] if swapped else self.cap
        return replace(
            self,
            out=self.out | (set(names) - kinds),
            shape=len(_shapes()) if "response_format" in names else self.shape,
            folded=self.folded or "system" in names,
            cap=cap,
            swapped=self.swapped or swapped,
        )

    def _simpler(self, sent: Mapping[str, Any], words: str) -> Quirks | None:
        if (value := sent.get("response_format")) is None:
            return None
        in_schema = _says(_optional()["response_format"]["in_schema"], words)
        for shape in range(self.shape + 1, len(_shapes()) + 1):
            body = {"messages": sent["messages"]}
            lean = isinstance(_shapes()[shape - 1], list)
            _shaped(body, value, shape)
            if body.get("response_format") != value and (in_schema or not lean):
                return replace(self, shape=shape)
        return None

    def _shorter(self, sent: Mapping[str, Any], words: str) -> Quirks | None:
        """A shorter reply, by the limit that the words name; else the other name of the field."""
        if (name := _field("max_tokens", sent)) is None:
            return None
        cap: int = sent[name]
        found = _NUMBER.findall(words)
        numbers = [int(re.sub(r"\D", "", n)) * (1000 if kilo else 1) for n, kilo in found]
        numbers = [n for n in numbers if n - cap not in numbers]  # no sum of prompt and reply
        others = sorted({*numbers} - {cap}, reverse=True)
        if not others or (len(others) == 1 and numbers.count(cap) > 1):
            others = [*{*numbers} & {cap}, *others]  # our own cap happens to be the limit too
        if len(others) > 1 and others[1] > _tokens(
            sent
        ):  # no prompt, but the limit: a sum is first
            others = others[1:]
        limit, prompt = (*others, 0, 0)[:2]
        its = _optional()["max_tokens"]
        other = CAPS[name == CAPS[0]]
        shorter, of_all = self, limit > 0 and _says(its["of_all_tokens"], words)
        if of_all:
            factor = 1.5 * self.context[1] if self.context else 1.0
            if prompt:
                factor = max(1.0, 1.1 * prompt / _tokens(sent))
            shorter = replace(self, context=(limit, factor))
        elif other not in words and cap != self.most:
            shorter = replace(
                self, most=max((n for n in numbers if _LEAST <= n < cap), default=None)
            )
        if shorter._capped(sent, cap) < cap:
            return shorter
        too_many = _says(its["too_many"], words)
        if not self.swapped and (other in words or not too_many):
            return self.without("max_tokens")
        return replace(self, most=cap // 4) if too_many and cap >= 4 * _LEAST else None


_NONE = Quirks()


def _optional() -> Mapping[str, Any]:
    return dialects()["optional"]


def _says(pattern: str, words: str) -> bool:
    # ASCII: a name may stand between Chinese characters.
    return re.search(pattern, words, re.ASCII) is not None


def _tokens(body: Mapping[str, Any]) -> int:
    """Of a prompt, rather too many."""
    sizes = [byte_size(_text(m.get("content"))) for m in body["messages"]]
    return 32 + sum(8 + size // 3 for size in sizes)


def _text(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def with_text(message: Mapping[str, Any], more: object) -> dict[str, Any]:
    """The message with more content, a text or parts, behind its own."""
    own = message.get("content")
    if isinstance(own, str | None) and isinstance(more, str | None):
        return {**message, "content": "\n\n".join(filter(None, (own, more)))}
    parts = list[Any]()
    for content in (own, more):
        text = [{"type": "text", "text": content}] if content else []
        parts += cast("list[Any]", content) if isinstance(content, list) else text
    return {**message, "content": parts}


def _shapes() -> list[Any]:
    return _optional()["response_format"]["forms"]


def _shaped(body: dict[str, Any], value: Any, shape: int) -> bool:
    """Asks for the form of a reply as far down `forms` as `shape`. Whether the endpoint is to see
    to it; else the prompt says it in words."""
    form: object = _shapes()[shape - 1] if shape else []
    if isinstance(form, list):
        lacking = set(cast("list[str]", form))

        def lean(tree: dict[str, Any]) -> dict[str, Any]:
            # A property may have a keyword's name: its value is a schema.
            return {k: v for k, v in tree.items() if k not in lacking or isinstance(v, dict)}

        body["response_format"] = rewritten(value, lean) if lacking else value
        return True
    kind = value.get("type")
    if form == "json_object":
        body["response_format"] = {"type": form}
    if kind not in ("json_schema", "json_object") or kind == form:
        return kind == form
    its = _optional()["response_format"]
    schema = value.get("json_schema", {}).get("schema")
    words = its["words_object"]
    if schema is not None:
        words += f"\n{its['words_schema']}\n{json.dumps(schema, separators=(',', ':'))}"
    messages = list(body["messages"])
    users = [n for n, m in enumerate(messages) if m["role"] == "user"]
    last = users[-1] if users else -1
    messages[last] = with_text(messages[last], words)
    body["messages"] = messages
    return False


def request_body(request: Request, model: str, quirks: Quirks) -> tuple[dict[str, Any], list[str]]:
    """The body to send, and the names of the fields that this endpoint makes us leave out."""
    sampling, schema = request.sampling, request.schema
    if request.embeds:
        [message] = request.messages
        # Images go as a chat, which vLLM's models that embed images read.
        content = {"messages": [message.wire]} if message.media else {"input": message.content}
        body = {"model": model, **content, "encoding_format": "float"}
        return body, quirks.adapt(body)
    body = {**sampling_fields(sampling), "model": model}
    body["messages"] = [m.wire for m in request.messages]
    if unenforced := sampling.extra.get("response_format") == "none":
        quirks = replace(quirks, shape=len(_shapes()))
    if schema is not None:
        body["response_format"] = schema.wire
    if sampling.temperature != 0:
        body["seed"] = request.sample & _SEED_BITS
    dropped = quirks.adapt(body)
    return body, [name for name in dropped if name != "response_format" or not unenforced]


def kind_of(request: Request) -> Hashable:
    """What of a request an endpoint may refuse: those of one kind are refused alike."""
    drawn, schema = request.sampling, request.schema
    form = (request.embeds, schema and schema.name, drawn.temperature, drawn.top_p)
    return (*form, drawn.max_tokens, *sorted(drawn.extra))


@dataclass(slots=True)
class FormSearch:
    """One request on its way to a form that the endpoint takes: `quirks` are what is tried now, and
    fields that are `theirs`, a caller's, stay as they are. `words` are those of the last
    answer, '' where that refused no form; `named` are the fields in them."""

    quirks: Quirks
    theirs: Collection[str] = ()
    sent: Mapping[str, Any] = field(default_factory=dict[str, Any])
    words: str = ""
    named: Sequence[str] = ()
    first: str = ""
    _asked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _pointed: Sequence[str] = ()
    _tries: int = 0
    _left: list[Quirks] | None = None

    def refused(self, sent: Mapping[str, Any], status: int, body: ErrorBody) -> bool:
        """Whether this answer may refuse a form of the request, which it then takes note of."""
        # A model's name may hold numbers, and words such as 'tools'; a code may be the status.
        told = body.message if body.code.isdigit() else body.all
        words = re.sub(rf"(?<!\w){re.escape(str(sent['model']))}(?!\w)", "", told).lower()
        known = {**sent, **self._asked}
        pointed, named = _named(body.param.lower(), known), _named(words, known)
        passing = status in (401, 402, 403, 404, 408, 409, 425, 429)
        # Some servers call it an error of their own when a template objects to a message.
        unclear = status in (405, 413, 500) and not (named or pointed)
        if passing or unclear or not (400 <= status < 500 or status in (500, 501)):
            self.words = ""
            return False
        self.sent, self.words, self._pointed = sent, words, pointed
        if not self.first:
            self.first, self._asked = words, sent
        self.named = [*pointed, *(name for name in named if name not in pointed)]
        return True

    def advance(self, *, blind: bool) -> bool:
        """Whether there is another form to try, which is in `quirks` then: of what the refusal
        names, else, where `blind`, without one optional field after the other, and without all."""
        if self._tries == _MOST_TRIES:
            return False
        self._tries += 1
        # A pointer is to a fault; words may mention a field beside the one at fault.
        moved = self.quirks
        for name in self._pointed:
            moved = self._after(moved, name) or moved
        if moved is self.quirks:
            forms = (self._after(moved, name) for name in self.named)
            moved = next((each for each in forms if each is not None), moved)
        if moved is self.quirks and blind and not self.named:
            if self._left is None:
                given = [n for n, its in _optional().items() if "needed" not in its]
                free = [name for name in given if _field(name, self.theirs) is None]
                sent = [name for name in free if _is_sent(name, self.sent)]
                self._left = [moved.without(name) for name in sent[: _BLIND_TRIES - 1]]
                self._left += [moved.without(*free)] * (len(sent) > 1)
            moved = self._left.pop(0) if self._left else moved
        changed, self.quirks = moved is not self.quirks, moved
        return changed

    def explain(self, error: LMError, where: ModelAddress) -> None:
        """Adds to a refusal that no form satisfies what was sent, but for texts, and one thing to
        type."""
        shown = (_shown(name, value) for name, value in self._asked.items() if name != "model")
        error.args = (f"{error} (sent: {', '.join(shown)})",)
        role = error.role
        name = next((n for n in self.named if _field(n, (*self._asked, "system"))), "")
        its = _optional().get(name, {})
        cap = self.sent.get(_field(name, self.sent) or "", 0) if name == "max_tokens" else 0
        if name == "max_tokens" and cap <= _LEAST:
            error.hint = (
                f"shorten prompts and inputs, or set a roles.{role}.model with a longer context"
            )
        elif setting := its.get("setting"):
            setting = setting.replace("ROLE", role).replace("LESS", str(cap // 4))
            error.hint = f"--set {setting}"
        elif name and name != "system":
            needed = its.get("needed", f"an endpoint that accepts {name}")
            hint = f"take {name} out of roles.ROLE.extra, or name {needed}"
            error.hint = hint.replace("ROLE", role)
        elif where.base_url.startswith("http"):
            error.hint = f"{where.curl} sends the smallest possible request"
        else:
            error.hint = f"--set roles.{role}.model=SPEC, with a different model"

    def _after(self, quirks: Quirks, name: str) -> Quirks | None:
        theirs = _field(name, self.theirs) is not None
        return None if theirs else quirks.after(name, self.sent, self.words)


class KnownForms:
    """What is known of one endpoint and model. A refusal that names nothing is searched once, and
    one that no form satisfied is not searched again."""

    def __init__(self, quirks: Quirks) -> None:
        self.quirks = quirks
        self._blind, self._in_vain = True, set[str]()

    def knows(self, search: FormSearch) -> bool:
        """Whether other forms were tried in vain for the same words."""
        return search.words in self._in_vain

    def another(self, search: FormSearch) -> bool:
        """Whether a refused request is to be sent in another form, the search's then."""
        if not self.knows(search) and search.advance(blind=self._blind):
            return True
        self._blind = self._blind and bool(search.named)
        if len(self._in_vain) < _MOST_KEPT:
            self._in_vain.add(search.first)
        return False

    def keep(self, search: FormSearch) -> None:
        """Takes note of a form that was accepted."""
        if search.quirks is not self.quirks and search.first:
            self.quirks = search.quirks
            _log.info("from now on requests are sent in a different form: %s", search.quirks)


def _shown(name: str, value: Any) -> str:
    if name == "messages":
        return f"messages ({', '.join(m['role'] for m in value)})"
    if name == "response_format":
        return f"{name} ({value.get('type')})"
    return f"{name} {value:g}" if isinstance(value, int | float) else name


def _field(name: str, fields: Collection[str]) -> str | None:
    """The field of that name among these; a length cap has two."""
    names = CAPS if name == "max_tokens" else (name,)
    return next((each for each in names if each in fields), None)


def _is_sent(name: str, sent: Mapping[str, Any]) -> bool:
    if name == "system":
        return any(m["role"] in INSTRUCTS for m in sent.get("messages", ()))
    return _field(name, sent) is not None


def _named(words: str, sent: Mapping[str, Any]) -> list[str]:
    """The fields that the words name, of those that were sent or that a server may ask for."""
    optional = _optional()
    asked = {n for n in optional if _is_sent(n, sent) or "needed" in optional[n]}
    named = [n for n in optional if n in {*asked, "temperature", "top_p"}]
    named = [n for n in named if _says(optional[n]["words"], words)]
    known = {*optional, *CAPS, "model", "messages", "stream", "input"}
    others = [n for n in sent if n not in known]
    return named + [n for n in others if _says(rf"\b{re.escape(n.lower())}\b", words)]
