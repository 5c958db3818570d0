"""Plays a server of gallery.toml: it refuses what that server refuses, in its words and its form,
and the simulated model answers the rest."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from aiohttp import web

from promptcodebook.deploy.http.completions import call_of
from promptcodebook.paper.simulated.model import SimulatedLM
from tests.build.server import Server

Tree = dict[str, Any]
TABLE: Tree = tomllib.loads(Path(__file__).with_name("gallery.toml").read_text("utf-8"))
ROWS: Mapping[str, Tree] = {row["name"]: row for row in TABLE["server"]}
_BYTES_A_TOKEN = 4


class Fake(Server):
    """`refused` names the field of each call that was spent on learning what the server takes."""

    def __init__(self, row: Tree, model: SimulatedLM) -> None:
        super().__init__()
        self.row, self.refused = row, list[str]()
        self._model, self.default = model, self._play
        self.models = [re.split("[#/]", self.typed(row.get("spec", "#m")))[-1]]
        if "path" in row:
            self.extra_routes = [(row["path"], self._chat)]

    def typed(self, text: str) -> str:
        """What a user types of the row, with this server's address in it."""
        return Template(text).safe_substitute(url=self.url, root=self.url.removesuffix("/v1"))

    async def _play(self, request: web.Request, sent: Tree) -> web.StreamResponse:
        row, arrival = self.row, len(self.bodies)
        for stumble in row.get("stumbles", ()):
            if arrival in stumble["at"]:
                return self._says(stumble)
        if "needs" in row and row["needs"]["header"] not in request.headers:
            return self._says(row["needs"])
        asked = _in_openais_words(sent)
        for rule in row.get("refuses", ()):
            if (found := _offence(rule, asked)) is not None:
                self.refused.append(rule["field"])
                return self._says(rule, **found)
        heeded = {name: v for name, v in asked.items() if name not in row.get("ignores", ())}
        return web.json_response(await self._answer(heeded))

    def _says(self, told: Tree, **found: Any) -> web.Response:
        words, status = Template(told["words"]).safe_substitute(found), told.get("status", 400)
        values = {"status": status, **told, **found, "words": words}
        body = _filled(TABLE["forms"][self.row["error"]], values)
        headers = told.get("headers")
        if isinstance(body, str):
            kind = "text/html" if body.startswith("<") else "text/plain"
            return web.Response(text=body, status=status, content_type=kind, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    async def _answer(self, asked: Tree) -> Any:
        """Thoughts come first and are paid for; what the cap leaves is for the answer."""
        row, call = self.row, call_of(asked)
        thought, sampling = row.get("thought", ""), call.request.sampling
        spent = len(thought.split())
        left = None if sampling.max_tokens is None else sampling.max_tokens - spent
        request = replace(
            call.request, sampling=replace(sampling, max_tokens=left and max(left, 1))
        )
        reply = await self._model.reply(request, json_mode=call.json_mode, seeded=call.seeded)
        usage, whole = reply.usage, left is None or left > 0
        finish = reply.finish if whole else "length"
        written = usage.completion_tokens if whole else 0
        total = usage.prompt_tokens + written + spent
        counts = {"prompt": usage.prompt_tokens, "completion": written + spent, "total": total}
        if row.get("usage") == "total":
            counts["completion"] = written
        told = {f"{name}_tokens": count for name, count in counts.items()}
        values = {
            **counts,
            "usage": None if row.get("usage") == "none" else told,
            "text": reply.text if whole else None,
            "thought": thought,
            "finish": row.get("endings", {}).get(finish, finish),
        }
        return _filled(TABLE["answers"][row.get("answer", "chat")], values)


def _filled(tree: Any, values: Mapping[str, Any]) -> Any:
    """The template with values in place of their names; one that is nothing else keeps its kind."""
    if isinstance(tree, dict):
        return {name: _filled(each, values) for name, each in tree.items()}
    if isinstance(tree, list):
        return [_filled(each, values) for each in tree]
    if isinstance(tree, str) and re.fullmatch(r"\$\w+", tree):
        return values.get(tree[1:])
    return Template(tree).safe_substitute(values) if isinstance(tree, str) else tree


def _in_openais_words(sent: Tree) -> Tree:
    """A body of Anthropic's or Amazon's as OpenAI's wire has it; OpenAI's own as it is."""
    turns = [{"role": "system", "content": sent["system"]}] if sent.get("system") else []
    turns = [{**m, "content": _text(m["content"])} for m in (*turns, *sent["messages"])]
    names, drawn = {"maxTokens": "max_tokens", "topP": "top_p"}, sent.get("inferenceConfig", {})
    fields: Tree = {str(names.get(name, name)): value for name, value in drawn.items()}
    schema = sent.get("output_config", {}).get("format", {}).get("schema")
    if schema is not None:
        named = {"name": "Reply", "schema": schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    return {**sent, **fields, "messages": turns}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


def _offence(rule: Tree, asked: Tree) -> Tree | None:
    """What a refusal says of the request that offends against the rule; None where none does."""
    value: Any = asked
    for name in rule["field"].split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        return None
    texts = [message["content"] for message in asked["messages"]]
    length = asked.get("max_tokens") or asked.get("max_completion_tokens") or 0
    prompt = sum(map(len, texts)) // _BYTES_A_TOKEN
    roles = "".join(message["role"][0] for message in asked["messages"])
    inner = [name for name in rule.get("keys", ()) if name in _keys(value)]
    conditions = {
        "only": lambda taken: value not in taken,
        "above": lambda bound: value <= bound,
        "below": lambda bound: value >= bound,
        "most": lambda bound: value > bound,
        "keys": lambda _: bool(inner),
        "beside": lambda other: asked.get(other) is not None,
        "word": lambda word: word not in "".join(texts).lower(),
        "context": lambda room: prompt + length > room,
        "roles": lambda pattern: re.fullmatch(pattern, roles) is None,
    }
    told = [test(rule[name]) for name, test in conditions.items() if name in rule]
    if not all(told):
        return None
    found = {"value": value, "key": inner[0] if inner else "", "prompt": prompt, "length": length}
    return {**found, "limit": rule.get("context"), "total": prompt + length}


def _keys(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        yield from tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _keys(each)
