"""(θ, φ, C, S) as plain JSON: what a policy is on disk. It holds everything that decides a prompt,
the texts of the templates included, and no run id, time, path, cost or model, so equal training
gives equal bytes. `about` says where the policy came from; `digest` leaves it out. Each instinct
carries its success and r̄: the encoder reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from promptcodebook.base.paths import read_text, write_whole
from promptcodebook.calls import Sampling
from promptcodebook.config import TYPED, Config, load_typed, merge
from promptcodebook.config.secrets import beyond_sampling, without_secrets
from promptcodebook.errors import PolicyError, RunNotTrusted, did_you_mean
from promptcodebook.lm.wire import sampling_fields
from promptcodebook.method.init import InstinctEntry, statistics_of
from promptcodebook.method.policy import join_instincts, join_prompts
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import (
    CodebookLines,
    TemplateSet,
    check_lines,
    check_template,
    load_templates,
    template_sets,
)
from promptcodebook.routing.ranking import BUCKETS
from promptcodebook.types import Codebook, Instinct, Parameters, Prompt, Ranking, Route


class _Stored(BaseModel):
    """A part of the file. A field that is not in `always` is left out while it has its default, so
    a new field changes neither the bytes nor the digest of policies that do not use it. In `always`
    are the fields with a default that 0.2.0 wrote: files and digests have them for good."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    always: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_new_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = serialise(self)
        for name, field in type(self).model_fields.items():
            default = field.get_default(call_default_factory=True)
            if name not in self.always and getattr(self, name) == default:
                tree.pop(name, None)
        return tree


class StoredRanking(_Stored):
    """The learned routing, `types.Ranking`: a row of whole numbers is one line of text here."""

    always = frozenset({"least", "outcomes", "kind", "center", "spread", "words"})

    rarity: str
    unit: float
    weights: tuple[str, ...]
    bias: tuple[float, ...]
    likeness: float
    more: float
    least: int = 0
    outcomes: int = 0
    kind: Literal["outcomes", "distilled"] = "outcomes"
    center: str = ""
    spread: str = ""
    words: float = Field(default=1.0, ge=0.0, le=1.0)
    images: bool = False

    @model_validator(mode="after")
    def _readable(self) -> StoredRanking:
        ranking = self.ranking
        size = BUCKETS + len(ranking.center)
        if len(ranking.rarity) != BUCKETS or {len(r) for r in ranking.weights} != {size}:
            what = f"rarity must have {BUCKETS} numbers, and each row of weights must have {size}"
            raise ValueError(what)
        if len(ranking.center) != len(ranking.spread):
            raise ValueError("center and spread must be equally long")
        if len(ranking.bias) != len(ranking.weights):
            raise ValueError("bias must have a number for each row of weights")
        return self

    @classmethod
    def of(cls, ranking: Ranking) -> StoredRanking:
        tree: dict[str, Any] = {name: getattr(ranking, name) for name in cls.model_fields}
        for name in _LINES:
            tree[name] = " ".join(map("{:g}".format, tree[name]))
        tree["weights"] = tuple(" ".join(map(str, row)) for row in ranking.weights)
        return cls(**tree)

    @cached_property
    def ranking(self) -> Ranking:
        tree: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        for name in _LINES:
            tree[name] = tuple(map(float, tree[name].split()))
        tree["weights"] = tuple(tuple(map(int, row.split())) for row in self.weights)
        return Ranking(**tree)


_LINES = ("rarity", "center", "spread")  # what of a ranking is one line of numbers
FORMAT, _FIRST_FORMAT = "promptcodebook policy 2", "promptcodebook policy 1"
# Names of the verdict's rows that are one prompt for every input: what the user had, every instinct
# at once, none of them, the best of the policy's prompts, and the best instinct.
PRESENT, CONCAT, NONE = "present", "concat", "none"
BEST_FIXED, BEST_SINGLE = "best_fixed", "best_single"
# Those of them that only a run can find; their texts are under `about`.
MEASURED = (BEST_FIXED, BEST_SINGLE)
# Whose sampling decides a deployed prompt and its answer.
_ROLES = ("encoder", "generator", "executor", "untrusted")
# Settings that a policy holds as they are, and decides.
_OF_SETTINGS = ("select", "compose", "base_prompt", "output_format", "seed")


class _Entry(_Stored, InstinctEntry):
    always = frozenset({"frozen", "success", "ema", "selected", "evidence"})


class _Sampling(_Stored):
    """A role's settings without its model, address, headers and secrets."""

    always = frozenset({"temperature", "top_p", "max_tokens", "extra"})

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    extra: dict[str, JsonValue] = Field(default_factory=dict)


class _Templates(_Stored):
    """The template texts that a deployed policy is prompted with."""

    encoder: str
    generator: str
    lines: CodebookLines

    @model_validator(mode="after")
    def _fillable(self) -> _Templates:
        check_template("encoder", self.encoder, "encoder")
        check_template("generator", self.generator, "generator")
        check_lines(self.lines, "lines")
        return self

    @classmethod
    def of(cls, templates: TemplateSet) -> _Templates:
        texts = templates.sources
        return cls(encoder=texts["encoder"], generator=texts["generator"], lines=templates.lines)


class PolicyFile(_Stored):
    """A policy as it is written to disk. `stages` are the program's, each with a prompt of its own
    (() = one prompt for the whole); `program` '' = not recorded. `sampling` is by role, and empty
    in files of version 0.1. `fewer`: the encoder may pick fewer than `select`. `router` replaces
    the encoder's model call, unless it is None. Of more than one of `samples` the verdict took the
    mean; one answer is drawn at temperature 0."""

    always = frozenset({"format", "input", "program", "stages", "sampling", "seed", "about"})

    format: Literal["promptcodebook policy 2"] = FORMAT
    templates: _Templates
    select: int = Field(ge=1)
    fewer: bool = False
    compose: Literal["generator", "verbatim"]
    base_prompt: str
    output_format: str
    input: str = "input"
    program: str = ""
    stages: tuple[str, ...] = ()
    sampling: dict[str, _Sampling] = Field(default_factory=dict)
    seed: int = 0
    encoder: str
    generator: str
    codebook: tuple[_Entry, ...]
    router: StoredRanking | None = None
    samples: int = Field(default=1, ge=1)
    about: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _of_version_01(cls, tree: Any) -> Any:
        """A file of version 0.1 names a shipped set instead of holding its texts."""
        keys = cast("dict[str, Any]", tree if isinstance(tree, dict) else {})
        if keys.get("format") != _FIRST_FORMAT:
            return cast("object", tree)
        name = keys.get("templates")
        if name not in template_sets():
            raise ValueError(f"templates: no set is called {name!r}")
        return {**keys, "format": FORMAT, "templates": _Templates.of(load_templates(name))}

    @model_validator(mode="after")
    def _routable(self) -> PolicyFile:
        if self.select > len(self.codebook):
            size = len(self.codebook)
            raise ValueError(f"select (S = {self.select}) is larger than the codebook (K = {size})")
        if self.router is not None and len(self.router.weights) != len(self.codebook) + 1:
            raise ValueError("router: weights must have one more row than there are instincts")
        return self

    @classmethod
    def of(
        cls,
        state: State,
        config: Config,
        templates: TemplateSet,
        program: str,
        stages: tuple[str, ...],
    ) -> PolicyFile:
        """The file of a state; ψ is left out, since deployment drops it."""
        parameters, known = state.parameters, state.statistics
        codebook = tuple(
            _Entry(
                text=instinct.text,
                frozen=instinct.frozen,
                success=round(known.success[k], 6),
                ema=round(known.ema[k], 6),
                selected=known.selected[k],
                evidence=round(known.known[k], 6),
            )
            for k, instinct in enumerate(parameters.codebook.instincts)
        )
        sampling = {
            role: _Sampling(
                extra=cast("dict[str, JsonValue]", without_secrets(s.extra)),
                **s.model_dump(include={"temperature", "top_p", "max_tokens"}),
            )
            for role in _ROLES  # in a fixed order; the server decides for one that is not set
            if (s := config.roles.get(role)) is not None
        }
        return cls(
            templates=_Templates.of(templates),
            fewer=config.encoder.fewer and bool(parameters.encoder),
            input=config.data.input,
            program=program,
            stages=stages,
            sampling=sampling,
            encoder=parameters.encoder,
            generator=parameters.generator,
            codebook=codebook,
            router=None if known.ranking is None else StoredRanking.of(known.ranking),
            samples=config.samples,
            **{name: getattr(config, name) for name in _OF_SETTINGS},
        )

    @classmethod
    def of_prompt(cls, text: str) -> PolicyFile:
        """One text for every input."""
        return cls(
            templates=_Templates.of(load_templates("default")),
            select=1,
            compose="verbatim",
            base_prompt="",
            output_format="",
            encoder="",
            generator="",
            codebook=(_Entry(text=text),),
        )

    @property
    def parameters(self) -> Parameters:
        book = Codebook(tuple(Instinct(e.text, e.frozen) for e in self.codebook))
        return Parameters(self.encoder, self.generator, book, critic="")

    @property
    def template_set(self) -> TemplateSet:
        """What encoder and generator are prompted with; nothing else is asked for at deployment."""
        texts = self.templates
        return TemplateSet({"encoder": texts.encoder, "generator": texts.generator}, texts.lines)

    @property
    def statistics(self) -> RoutingStatistics:
        ranking = None if self.router is None else self.router.ranking
        return replace(statistics_of(self.codebook), ranking=ranking)

    @property
    def concat(self) -> str:
        """Every instinct in one prompt, in order: what the codebook is worth without routing."""
        return self.verbatim(Route(tuple(range(len(self.codebook)))))

    @property
    def asks(self) -> tuple[str, ...]:
        """The roles whose models a prompt takes; () = it is composed without a call."""
        routes = self.encoder if self.router is None else self.router.center
        return ("encoder",) * bool(routes) + ("generator",) * (self.compose == "generator")

    @property
    def form(self) -> str:
        """The output format, where prompts are composed for it."""
        return self.output_format if self.compose == "generator" else ""

    def verbatim(self, route: Route) -> str:
        """The prompt of a route that no model composes: its instincts as they are."""
        texts = join_prompts(self.base_prompt, join_instincts(self.parameters.codebook, route))
        return join_prompts(texts, self.form)

    def fixed_prompt(self, row: str) -> Prompt:
        """The prompt of a row that has one for every input: 'present', 'none', 'concat', and where
        measured 'best_fixed' or 'best_single'. Raises PolicyError for any other row, and when it is
        not recorded."""
        if row in (CONCAT, NONE):
            return Prompt(self.concat if row == CONCAT else self.base_prompt)
        recorded = (PRESENT, *MEASURED)
        if row not in recorded:
            rows = ", ".join(map(repr, (NONE, CONCAT, *recorded)))
            message = f"the row {row!r} has no single prompt: each input gets its own"
            raise PolicyError(message, hint=f"rows with a single prompt: {rows}")
        if not isinstance(text := self.about.get(row), str):
            message = f"the policy does not record the prompt of the row {row!r}"
            raise PolicyError(message, hint="its run's verdict has no such row: pco runs show RUN")
        return Prompt.read(text, self.stages if row == BEST_FIXED else ())

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over all but `about`: equal policies, equal digests."""
        return hashlib.sha256(_json(self.model_dump(mode="json", exclude={"about"}))).hexdigest()

    @property
    def verdict(self) -> str:
        """What its run decided, as far as the file says; '' = it does not say."""
        return str(self.about.get("verdict") or "")

    def with_about(self, **facts: JsonValue) -> PolicyFile:
        """The same policy with more said of where it came from."""
        return self.model_copy(update={"about": {**self.about, **facts}})

    def with_router(self, ranking: Ranking) -> PolicyFile:
        """The same policy, routed by the ranking."""
        return self.model_copy(update={"router": StoredRanking.of(ranking)})

    def text(self) -> str:
        """Stable JSON: same policy, same bytes."""
        return _json(self.model_dump(mode="json")).decode()

    def save(self, target: Path) -> None:
        """Writes the file whole or not at all."""
        try:
            write_whole(target, self.text())
        except OSError as error:
            message = f"cannot write the policy to {target}: {error.strerror}"
            raise PolicyError(message, hint="choose an existing folder with free space") from error

    @property
    def decided(self) -> dict[str, Any]:
        """The settings that the policy decides, whatever else is set."""
        # A file of version 0.1 does not know of stages.
        staged = {"compose_per_stage": bool(self.stages)} if self.program else {}
        return {
            "size": len(self.codebook),
            # The texts are in the file: the folder that they came from may not be at hand.
            "templates": "default",
            "encoder": {"mode": "learned" if self.encoder else "none", "fewer": self.fewer},
            "router": {"kind": "encoder" if self.router is None else self.router.kind},
            **{name: getattr(self, name) for name in _OF_SETTINGS},
            **staged,
        }

    @property
    def answer_fields(self) -> dict[str, Any]:
        """The fields of a chat completion that the verdict's answers were asked with."""
        own = self.sampling.get("executor", _Sampling())
        greedy = self.samples == 1 or own.temperature == 0
        drawn = Sampling(own.temperature, own.top_p, own.max_tokens, without_secrets(own.extra))
        cold = None if own.temperature is None else 0.0
        return sampling_fields(replace(drawn, temperature=cold, top_p=None) if greedy else drawn)

    @property
    def beyond_sampling(self) -> tuple[str, ...]:
        """The body fields of it that decide more than how replies are drawn."""
        by_role = ((role, beyond_sampling(s.extra)) for role, s in self.sampling.items())
        return tuple(f"sampling.{role}.extra.{name}" for role, names in by_role for name in names)

    def require_trust(self, name: str, *, trusted: bool) -> None:
        """Raises RunNotTrusted when the file sets such fields: they may name an address for this
        user's key."""
        fields = self.beyond_sampling
        if fields and not trusted:
            more = f" and {len(fields) - 5} more" if len(fields) > 5 else ""
            message = f"the policy {name} sets {', '.join(fields[:5])}{more}, but may only decide "
            message += "how replies are sampled"
            hint = "remove that; or, if you trust its author, --trust (in Python trust=True)"
            raise RunNotTrusted(message, hint=hint)

    def settings(
        self,
        below: Mapping[str, Any] | None = None,
        above: Mapping[str, Any] | None = None,
        where: str = TYPED,
        *,
        name: str = "file",
        trusted: bool = False,
    ) -> Config:
        """The configuration that this policy runs under, between `below` (a run's own settings, a
        pco.toml) and what was typed `above` (`where`, for an error): that may change a model or its
        sampling, but not what the policy is. Raises RunNotTrusted as `require_trust` does."""
        self.require_trust(name, trusted=trusted)
        # The author of the file must not say which variables are sent along.
        sampling = {
            role: {**s.model_dump(), "extra": without_secrets(s.extra)}
            for role, s in self.sampling.items()
        }
        # Indices of another codebook's frozen entries mean nothing here.
        fixed = {**self.decided, "init": {"frozen": ()}}
        layers = (below or {}, {"roles": sampling})
        typed = merge(above or {}, fixed)
        return load_typed(*layers, typed=typed, where="the policy's settings", typed_where=where)


def _json(tree: object) -> bytes:
    # Half a surrogate pair is no UTF-8; its JSON escape is read back as it was.
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def read_policy_file(path: Path) -> PolicyFile:
    """The policy at `path`, of this version or an earlier one. Raises PolicyError, with file and
    reason, when there is none."""
    hint = f"pco runs list shows the runs; pco.load_run({str(path)!r}).policy loads a run's policy"
    try:
        text = read_text(path)
    except FileNotFoundError:
        near = did_you_mean(path.name, [each.name for each in path.parent.glob("*.json")])
        raise PolicyError(f"no policy file at {path}{near}", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot read the policy file {path}: {error}"
        raise PolicyError(what, hint="name a policy file") from error
    return parse_policy_file(text, path)


def parse_policy_file(text: str, where: object) -> PolicyFile:
    """The policy in the text of a file; `where` says in an error which one. Raises PolicyError when
    the text is no policy."""
    try:
        return PolicyFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise PolicyError(
            f"{where} is not a policy file: {place}: {first['msg']}",
            hint="write it with policy.save or `pco train`; a newer file needs a newer version",
        ) from None
