"""A registry on an MLflow server, in its prompt registry: what several machines share. A codebook
is a prompt, a version is a version of it with the policy file as text, and a ref is an alias: where
someone else moves the alias, the ref moves. Each entry of the log is a tag on the version
concerned, so the log is in order of time and its chain is computed when it is read. The server has
no transactions: of two who move a ref at once, the last one wins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, cast
from urllib.parse import urlsplit

from promptcodebook.base.text import parse_json, shell
from promptcodebook.deploy.registry import log as logs
from promptcodebook.errors import ConfigError, RegistryDamaged, StoreError, import_extra

# Tags: of a prompt that is a codebook, of a version's hash, and of an entry of the log.
_MARK, _VERSION, _ENTRY = "pco.codebook", "pco.version", "pco.log."
_OURS = f"tags.`mlflow.prompt.is_prompt` = 'true' AND tags.`{_MARK}` = 'true'"
_ABSENT, _PRESENT = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"
_MOST_ABOUT = 500  # characters of a version's description


class MlflowStorage:
    """The server at a URL. Credentials come from MLflow's own variables. Raises ConfigError for a
    URL with a password in it, MissingExtra without the client."""

    def __init__(self, url: str) -> None:
        if urlsplit(url).username or urlsplit(url).password:
            raise ConfigError(
                "the URL of the MLflow server has a user or a password in it",
                hint="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead",
            )
        # A server that is down is noticed soon.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        library = import_extra("mlflow", "a registry on an MLflow server", "mlflow")
        self._fails = cast("type[Exception]", library.exceptions.MlflowException)
        self._client: Any = library.MlflowClient(tracking_uri=url, registry_uri=url)
        self.place = url

    def read(self) -> logs.Log:
        return self._read()[0]

    def poll(self, ref: str) -> str | None:
        name, _, word = ref.partition("@")
        if word == logs.LATEST:
            return self.read().at(ref)
        found = self._ask(self._client.get_prompt_version_by_alias, name, word)
        return None if found is None else found.tags.get(_VERSION)

    def policy(self, version: str) -> bytes:
        texts = (text for of, text in self._read()[1].values() if of == version)
        return next(texts).encode("utf-8", "surrogatepass")

    def append(
        self, propose: logs.Propose, policies: logs.Policies = logs.NONE
    ) -> list[logs.LogEntry]:
        log, stored = self._read()
        entries = propose(log)
        for entry in entries:
            tag = f"{_ENTRY}{entry.hash[:16]}", logs.canonical(asdict(entry))
            name, _, word = str(entry.canary.get("ref", entry.ref)).partition("@")
            if entry.action in ("freeze", "import"):
                text, tags = policies[entry.after], dict([tag, (_VERSION, entry.after)])
                self._create(name)
                about = entry.why[:_MOST_ABOUT] or None
                made = self._ask(
                    self._client.create_prompt_version, name, text, description=about, tags=tags
                )
                stored[name, int(made.version)] = entry.after, text
                continue
            places = [at for at, (of, _) in stored.items() if of == entry.after]
            own = [at for at in places if at[0] == name or not name]  # a finding names no ref
            if not own:
                raise ConfigError(
                    f"{entry.after[:19]} is no version of {name}, and MLflow has aliases for a "
                    "prompt's own versions only",
                    hint=f"pco codebook freeze {shell(entry.after[:19], name)}",
                )
            self._ask(self._client.set_prompt_version_tag, *max(own), *tag)
            if entry.action != "attest":
                self._ask(self._client.set_prompt_alias, name, word, max(own)[1])
        return entries

    def check(self) -> tuple[logs.Log, list[logs.LogFault]]:
        try:
            log, stored = self._read()
        except RegistryDamaged as error:
            return logs.Log(), [logs.LogFault(self.place, str(error))]
        return log, [
            logs.LogFault(
                f"version {number} of the prompt {name}", f"its text is not that of {version}"
            )
            for (name, number), (version, text) in stored.items()
            if logs.version_of(text.encode("utf-8", "surrogatepass")) != version
        ]

    def _read(self) -> tuple[logs.Log, dict[tuple[str, int], tuple[str, str]]]:
        """The log, and each prompt's name and number with the version and the text there."""
        entries = list[logs.LogEntry]()
        stored = dict[tuple[str, int], tuple[str, str]]()
        aliases = dict[str, tuple[str, int]]()
        for prompt in self._pages(self._client.search_registered_models, filter_string=_OURS):
            for found in self._pages(self._client.search_prompt_versions, name=prompt.name):
                if version := found.tags.get(_VERSION):
                    stored[prompt.name, int(found.version)] = version, str(found.template)
                    entries += self._entries(found)
            for word, number in prompt.aliases.items():
                aliases[f"{prompt.name}@{word}"] = prompt.name, int(number)
        at = {ref: stored[place][0] for ref, place in aliases.items() if place in stored}
        return _log(entries, at), stored

    def _entries(self, found: Any) -> Iterator[logs.LogEntry]:
        for key, text in found.tags.items():
            if key.startswith(_ENTRY):
                try:
                    entry = logs.LogEntry.of(parse_json(text))
                except (logs.Broken, ValueError, TypeError):
                    raise RegistryDamaged(
                        f"the registry {self.place} is damaged: the tag {key} of version "
                        f"{found.version} of the prompt {found.name} is no entry of a log",
                        hint="delete the tag on the server",
                    ) from None
                yield entry

    def _create(self, name: str) -> None:
        try:
            self._client.create_prompt(name, tags={_MARK: "true"})
        except self._fails as error:
            if getattr(error, "error_code", "") != _PRESENT:
                raise self._fault(error) from error
            self._ask(self._client.set_prompt_tag, name, _MARK, "true")

    def _pages(self, search: Callable[..., Any], **asked: str) -> Iterator[Any]:
        token: str | None = ""
        while token is not None:
            page = self._ask(search, **asked, page_token=token or None)
            yield from page or ()
            token = getattr(page, "token", None) or None

    def _ask(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except self._fails as error:
            if getattr(error, "error_code", "") == _ABSENT:
                return None
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> StoreError:
        message = str(error).partition("\n")[0][:300]
        return StoreError(
            f"the MLflow server at {self.place} refused: {message}",
            hint=f"curl {shell(f'{self.place}/health')}",
        )


def _log(entries: list[logs.LogEntry], at: dict[str, str]) -> logs.Log:
    """The entries in order of time, chained. Aliases decide what refs are `at`: a ref without one
    does not exist, and a move that no entry names is logged as MLflow's."""
    log = logs.Log()

    def follow(entry: logs.LogEntry) -> None:
        chained = replace(entry, seq=log.next, before=log.at(entry.ref) or "", previous=log.head)
        log.follow(chained.sealed())

    for entry in sorted(entries, key=lambda each: (each.time, each.seq, each.hash)):
        if entry.action in ("freeze", "import", "attest") or entry.ref in at:
            follow(entry)
    for ref, version in at.items():
        if log.at(ref) != version:
            moved = replace(log.entries[-1], who="MLflow", action="promote", ref=ref, facts="{}")
            follow(replace(moved, after=version, why="the alias was set on the server"))
    return log
