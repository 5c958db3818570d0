"""What a policy says of an input: an answer with its prompt and route, or why that prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from promptcodebook.calls import Usage
from promptcodebook.method.ranking import Expected
from promptcodebook.notebook import shown_table, shown_text
from promptcodebook.policy.spans import Span
from promptcodebook.types import Rollout, Route, Stage


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one input. `prompt` is what the executor was prompted with, `route` the
    instincts in it and who chose them, `usage` what all calls took together.

    `truncated`: the answer was cut at its length cap. `stages` and `fields` are those of a program
    of several steps.
    """

    text: str
    prompt: str
    route: Route
    usage: Usage = Usage()
    truncated: bool = False
    stages: tuple[Stage, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict[str, object])

    @classmethod
    def of(cls, rollout: Rollout) -> Response:
        """Of a pass of a learned policy that did not fail."""
        assert rollout.route is not None, "a learned policy always routes"
        return cls(
            rollout.output,
            rollout.prompt,
            rollout.route,
            rollout.usage,
            rollout.truncated,
            rollout.stages,
            rollout.fields,
        )

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        route = ", ".join(map(str, self.route.indices)) or "none"
        cut = " (cut at its length cap)" if self.truncated else ""
        shown = shown_text(f"answer{cut}", self.text)
        return f"<div>{shown}{shown_text(f'prompt, of the instincts {route}', self.prompt)}</div>"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why this input got this prompt. `expected` is what each instinct promises, where routes were
    learned from outcomes; `spans` are the prompt in pieces by their sources."""

    input: str
    route: Route
    instincts: tuple[tuple[int, str], ...]
    prompt: str
    expected: Expected | None = None
    spans: tuple[Span, ...] = ()

    def _repr_html_(self) -> str:
        route = "route: " + ", ".join(map(str, self.route.indices))
        doubt = " (by fallback)" if self.route.fallback else ""
        parts = [
            shown_text("input", self.input),
            shown_table(route + doubt, ("k", "instinct"), self.instincts),
            self._promises(),
            shown_text("why", self.route.analysis) if self.route.analysis else "",
            shown_text("prompt", self.prompt),
            self._sources(),
        ]
        return f"<div>{''.join(parts)}</div>"

    @property
    def ranked(self) -> tuple[tuple[int | None, float], ...]:
        """Every instinct with the reward that it promises alone, None for no instinct, best first;
        () where nothing was learned of that."""
        if self.expected is None:
            return ()
        alone = [(k, self.expected.alone(k)) for k in range(len(self.expected.marginal))]
        return tuple(sorted([(None, self.expected.nothing), *alone], key=lambda each: -each[1]))

    def _sources(self) -> str:
        rows = [(span.label, span.text.strip()) for span in self.spans]
        title = "where the prompt comes from (~ by the words shared)"
        return shown_table(title, ("source", "piece"), rows) if rows else ""

    def _promises(self) -> str:
        rows = [("none" if k is None else k, f"{value:.3f}") for k, value in self.ranked]
        return shown_table("expected reward", ("k", "alone"), rows) if rows else ""
