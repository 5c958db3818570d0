"""How one rollout is shown: a list of its parts; and a seeded handful of training rollouts, one of
each kind, for the report."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promptcodebook.base.randomness import keyed_int
from promptcodebook.base.text import shorten
from promptcodebook.base.units import number, plural
from promptcodebook.optimizers.fixed import UNTRAINED
from promptcodebook.policy.policy import prompt_spans
from promptcodebook.report.context import Context, ReportSection
from promptcodebook.store.events import Event, Started, Stepped
from promptcodebook.types import Codebook, Failure, Rewrite, Rollout, Step, Trace, Variable

_LONG, _SHORT = 4000, 1500  # characters shown of a text
_MOST_STAGES = 8
_COLOURS = 6  # of spans; the number beside each tells instincts apart where there are more
_MOST = 5  # training rollouts shown

NamedTexts = list[tuple[str, Any]]
RoutedInstincts = tuple[tuple[int, str], ...]  # Those of a route, each as (k, text).


def routed_over(rollout: Rollout, codebook: Codebook) -> RoutedInstincts:
    """The instincts of a rollout's route, with the texts that they have in this codebook."""
    indices = () if rollout.route is None else rollout.route.indices
    return tuple((k, codebook[k].text) for k in indices if k < len(codebook))


def parts_of(
    rollout: Rollout, instincts: RoutedInstincts, own: tuple[str, str] = ("", "")
) -> NamedTexts:
    """Route, prompt, stages, output and feedback by name, those that are there. `own` are the base
    prompt and the output format; `places` are the colours of instincts in a prompt."""
    prompt: Any = shorten(rollout.prompt, _LONG)
    if instincts and prompt:
        prompt = {
            "spans": prompt_spans(prompt, instincts, *own),
            "places": {k: place % _COLOURS for place, (k, _) in enumerate(instincts)},
        }
    stages = [
        (f"stage {s.name}", s.turns or f"{shorten(s.input, _SHORT)}\n→ {shorten(s.output, _SHORT)}")
        for s in rollout.stages
    ]
    if (gone := len(stages) - _MOST_STAGES) > 0:  # how it began and ended says most
        half = _MOST_STAGES // 2
        stages[half:-half] = [("stages", f"({plural(gone, 'stage')} left out)")]
    parts = [
        ("route", _route(rollout)),
        ("instincts", instincts),
        ("prompt", prompt),
        *stages,
        ("output", shorten(rollout.said, _LONG)),
        ("truncated", "the output was cut at its length cap" if rollout.truncated else ""),
        ("feedback", shorten(rollout.feedback, _SHORT)),
        ("failure", failure_text(rollout.failure)),
    ]
    return [(name, body) for name, body in parts if body]


def parts_of_trace(
    trace: Trace, instincts: RoutedInstincts, own: tuple[str, str] = ("", ""), given: str = ""
) -> NamedTexts:
    """All of a trace; `given` is its input, where that is at hand, `own` as in `parts_of`."""
    verdict = ""
    if (critique := trace.verdict) is not None:
        figures = f"critic {number(critique.score, 2)}, penalty ρ {number(trace.penalty, 2)}"
        notes = [f"{name}: {shorten(text, _SHORT)}" for name, text in critique.notes.items()]
        verdict = "\n\n".join(filter(None, [figures, shorten(critique.feedback, _SHORT), *notes]))
    blamed = trace.gradients.blamed.items()
    gradients = [
        (f"gradient: {'instinct ' * isinstance(v, int)}{v}", shorten(text, _SHORT))
        for v, text in blamed
    ]
    parts = [
        ("input", shorten(given, _LONG)),
        *parts_of(trace.rollout, instincts, own),
        ("verdict", verdict),
        *gradients,
        ("failure", failure_text(trace.failure)),
    ]
    return [(name, body) for name, body in parts if body]


def judged_parts(
    context: Context, row: str, rollout: Rollout, first: Codebook
) -> tuple[str, NamedTexts]:
    """A verdict row's rollout under its heading; the untrained row has the `first` codebook."""
    instincts = routed_over(rollout, first if row == UNTRAINED else context.codebook)
    return f"{row}: {reward_text(rollout)}", parts_of(rollout, instincts, context.own_words)


def reward_text(rollout: Rollout) -> str:
    """'reward 0.50', or that it failed."""
    return "failed" if rollout.reward is None else f"reward {number(rollout.reward, 2)}"


def _route(rollout: Rollout) -> str:
    route = rollout.route
    if route is None:
        return ""
    how = ["explored" if route.explored else f"chosen{' by the encoder' * bool(route.constraints)}"]
    how += ["repaired"] if route.repaired else []
    how += ["partly filled in"] if route.fallback else []
    how += [route.fault] if route.fault else []
    lines = [f"{', '.join(map(str, route.indices))} ({', '.join(how)})"]
    lines += [f"constraints: {'; '.join(route.constraints)}"] if route.constraints else []
    lines += [route.analysis] if route.analysis else []
    return shorten("\n".join(lines), _SHORT)


def failure_text(failure: Failure | None) -> str:
    if failure is None:
        return ""
    return shorten(f"{failure.stage}: {failure.kind}: {failure.message}", _SHORT)


def answer_text(rollout: Rollout) -> str:
    """What it answered, or why it failed."""
    return "\n".join(filter(None, (failure_text(rollout.failure), rollout.said)))


@dataclass(frozen=True, slots=True)
class Training:
    """One time that training drew the example. `rewrites` are those of the step whose text its
    gradients blamed; `reverted` were taken back."""

    step: int
    trace: Trace
    instincts: RoutedInstincts
    rewrites: tuple[Rewrite, ...]
    reverted: tuple[Variable, ...]

    @classmethod
    def of(cls, step: Step, trace: Trace, codebook: Codebook) -> Training:
        """The step began with this codebook."""
        blamed = trace.gradients.blamed
        rewrites = tuple(r for r in step.rewrites if r.variable in blamed)
        instincts = routed_over(trace.rollout, codebook)
        return cls(step.index, trace, instincts, rewrites, step.reverted)


def _ranks(trace: Trace, router: str) -> dict[str, float | None]:
    """Its rank in each kind (None = it is none); the lowest is shown."""
    reward, route = trace.rollout.reward, trace.rollout.route
    late = 1.0 if trace.failure is not None else None
    return {
        "failed": 0.0 if trace.rollout.failure is not None else late,
        "worst": reward,
        "explored route": 0.0 if route is not None and route.explored else None,
        f"{router}'s route": 0.0 if route is not None and not route.explored else None,
        "best": None if reward is None else -reward,
    }


class ExamplesSection(ReportSection):
    """Keeps a few candidates of each kind; a draw keyed by seed, step and example decides ties."""

    title, anchor, folded = "Training examples", "examples", True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._codebook = Codebook(())
        self._best: dict[str, list[tuple[float, int, Training]]] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self._codebook = event.parameters.codebook
        if not isinstance(event, Stepped):
            return
        step = event.step
        learned = self.context.setting("router.kind") == "outcomes"
        for trace in step.traces:
            draw = keyed_int(self.context.seed, "report", step.index, trace.rollout.example_id)
            offered = Training.of(step, trace, self._codebook)
            for kind, rank in _ranks(trace, "router" if learned else "encoder").items():
                best = self._best.setdefault(kind, [])
                if rank is not None:
                    insort(best, (rank, draw, offered), key=lambda each: each[:2])
                    del best[_MOST:]
        self._codebook = step.parameters.codebook

    def values(self) -> Mapping[str, Any] | None:
        context = self.context
        if not self._best:
            return None
        # One of each kind, no input twice. Failures choose first and are shown last.
        chosen: dict[str, tuple[str, Training]] = {}
        for kind, best in self._best.items():
            offered = (each for _, _, each in best if each.trace.rollout.example_id not in chosen)
            if each := next(offered, None):
                chosen[each.trace.rollout.example_id] = kind, each
        return {
            "examples": [
                {
                    "kind": kind,
                    "name": context.title_of(name),
                    "tally": f"step {each.step + 1}, {reward_text(each.trace.rollout)}",
                    "parts": parts_of_trace(
                        each.trace, each.instincts, context.own_words, context.input_of(name)
                    ),
                }
                for name, (kind, each) in reversed(chosen.items())
            ]
        }
