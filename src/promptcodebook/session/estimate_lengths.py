"""How long prompts and replies are, in tokens: templates and data measured, growth assumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from promptcodebook.config import Config
from promptcodebook.lm.tokens import estimate_tokens
from promptcodebook.method.shown import LONG
from promptcodebook.method.templates import load_templates
from promptcodebook.session.estimate_calls import Kind
from promptcodebook.session.plan import RunPlan
from promptcodebook.session.span import Span, exactly
from promptcodebook.types import Example, Parameters

__all__ = ["Lengths", "Texts"]

TOKENIZER = Span(0.65, 1.0, 1.5)
"""How a real tokenizer counts what ours estimates."""
PER_WORD = 1.5
"""Tokens of one word, by our estimate."""
PER_LINE = 8
"""Tokens around one instinct where it is listed."""

_REPLIES: Mapping[Kind, Span] = {
    "route": Span(20, 120, 500),
    "compose": Span(10, 110, 400),
    "judge": Span(15, 100, 500),
    "critique": Span(10, 120, 500),
    "own gradient": Span(5, 80, 300),
    "attribute": Span(15, 150, 700),
}
"""Tokens of a reply that does not think aloud; what the templates ask for, with room."""
_ANSWER = Span(1, 200, 4096)
_FEEDBACK = Span(0, 30, 150)
"""What a reward says of one answer."""


@dataclass(frozen=True)
class Texts:
    """Mean lengths of what the prompts are filled with, in estimated tokens."""

    encoder: float
    generator: float
    critic: float
    instinct: float
    input: float
    target: float
    base_prompt: float
    present: float

    @classmethod
    def of(cls, plan: RunPlan, parameters: Parameters) -> Texts:
        """Measured on the plan's data and its first texts."""
        dataset = plan.task.dataset
        examples = [*dataset.train, *dataset.val, *dataset.test]
        return cls(
            encoder=estimate_tokens(parameters.encoder),
            generator=estimate_tokens(parameters.generator),
            critic=estimate_tokens(parameters.critic),
            instinct=_mean(parameters.codebook.texts),
            input=_mean([_said(e) for e in examples]),
            target=_mean([e.target or "" for e in examples]),
            base_prompt=estimate_tokens(plan.config.base_prompt),
            present=estimate_tokens(plan.present_prompt),
        )


def _said(example: Example) -> str:
    return "".join(m.content for m in example.messages) or example.input


def _mean(texts: Sequence[str]) -> float:
    return sum(map(estimate_tokens, texts)) / max(1, len(texts))


class Lengths:
    """Prompt and reply length of each kind of call."""

    def __init__(self, config: Config, texts: Texts) -> None:
        self._config = config
        self._texts = texts
        self._templates = load_templates(config.templates)
        update = config.update
        grows = update.text_updates
        self._instinct = _grown(texts.instinct, update.instinct_words if grows else 0)
        words = update.directive_words if grows else 0
        self._theta = _grown(texts.encoder, words)
        self._phi = _grown(texts.generator, words)
        self._psi = _grown(texts.critic, words)
        self._book = (self._instinct + exactly(PER_LINE)) * config.size
        self._active = (self._instinct + exactly(PER_LINE)) * config.select
        self._composed = exactly(texts.base_prompt) + self._body()

    def _body(self) -> Span:
        if self._config.compose == "verbatim":
            return self._instinct * self._config.select
        return self.completion("compose")

    def prompt(self, kind: Kind) -> Span:
        """Tokens of one prompt."""
        measured: Mapping[Kind, Callable[[], Span]] = {
            "route": self._route,
            "compose": self._compose,
            "execute": self._execute,
            "execute present": self._present,
            "execute concat": self._concat,
            "outside": self._outside,
            "judge": self._judge,
            "critique": self._critic,
            "own gradient": self._own,
            "attribute": self._attribute,
            "rewrite instinct": self._rewrite_instinct,
            "rewrite directive": self._rewrite_directive,
            "first codebook": self._first,
        }
        return measured[kind]() * TOKENIZER

    def completion(self, kind: Kind) -> Span:
        """Tokens of one reply; never more than the role's length cap."""
        roles, update = self._config.roles, self._config.update
        if kind == "outside" or kind.startswith("execute"):
            cap = roles["untrusted" if kind == "outside" else "executor"].max_tokens
            return Span(_ANSWER.low, _ANSWER.expected, cap or _ANSWER.high).capped(cap)
        if kind == "first codebook":
            whole = self._config.size * update.instinct_words * PER_WORD
            return Span(whole / 10, whole / 3, whole).capped(roles["updater"].max_tokens)
        if kind.startswith("rewrite"):
            instinct = kind == "rewrite instinct"
            words = update.instinct_words if instinct else update.directive_words
            most = words * PER_WORD * TOKENIZER.high
            return Span(most / 30, most / 3, most).capped(roles["updater"].max_tokens)
        roled = {"route": "encoder", "compose": "generator", "attribute": "attribution"}
        role = roled.get(kind, "judge" if kind == "judge" else "critic")
        return _REPLIES[kind].capped(roles[role].max_tokens)

    def _fixed(self, name: str) -> Span:
        """The words around the values of a template."""
        turns = self._templates[name].fill(defaultdict(str))
        return exactly(sum(estimate_tokens(t.content) + 4 for t in turns))

    def _route(self) -> Span:
        return self._fixed("encoder") + self._theta + self._book + exactly(self._texts.input)

    def _compose(self) -> Span:
        extra = exactly(estimate_tokens(self._config.output_format))
        known = self._phi + self._active + extra + exactly(self._texts.input)
        return self._fixed("generator") + known

    def _execute(self) -> Span:
        return self._composed + exactly(self._texts.input)

    def _outside(self) -> Span:
        """A request that is rewritten from the input."""
        return Span(self._texts.input / 4, self._texts.input, 2 * self._texts.input)

    def _present(self) -> Span:
        said = self._texts.base_prompt + self._texts.present
        return Span(said / 2, said, said + 8) + exactly(self._texts.input)

    def _concat(self) -> Span:
        return exactly(self._texts.base_prompt + self._texts.input) + self._book

    def _run(self) -> Span:
        """A trace as critic and judge see it: input, response, reference, feedback."""
        most = LONG / 4
        seen = exactly(self._texts.input + self._texts.target).capped(2 * most)
        return seen + self.completion("execute").capped(most) + _FEEDBACK

    def _critic(self) -> Span:
        name = "critic_one" if self._config.critic.stages == 1 else "critic"
        book = self._book if self._config.critic.stages == 1 else Span()
        return self._fixed(name) + self._psi + self._active + self._composed + self._run() + book

    def _own(self) -> Span:
        known = self._psi + self._composed + self._run() + self.completion("critique")
        return self._fixed("adversary") + known

    def _attribute(self) -> Span:
        known = self._book + self._active + self._composed + self.completion("critique")
        return self._fixed("attribution") + known

    def _rewrite(self, text: Span) -> Span:
        most = self._config.update.max_gradients
        gradient = self.completion("own gradient")
        said = Span(gradient.low, gradient.expected * min(3, most), gradient.high * most)
        return self._fixed("updater") + text + said

    def _rewrite_instinct(self) -> Span:
        return self._rewrite(self._instinct)

    def _rewrite_directive(self) -> Span:
        each = (self._theta, self._phi, self._psi)
        low, high = min(t.low for t in each), max(t.high for t in each)
        return self._rewrite(Span(low, sum(t.expected for t in each) / 3, high))

    def _first(self) -> Span:
        return self._fixed("from_prompt") + exactly(self._texts.present)

    def _judge(self) -> Span:
        return exactly(250) + self._run()


def _grown(now: float, cap_words: int) -> Span:
    """A text that rewrites may shorten, and lengthen up to their cap."""
    if not cap_words:
        return exactly(now)
    most = max(now, cap_words * PER_WORD)
    return Span(now / 2, (2 * now + most) / 3, most)
