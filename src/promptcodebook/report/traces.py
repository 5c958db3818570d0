"""How one rollout is shown, and the whole trace that training made of it: a list of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from promptcodebook.policy.spans import Span, prompt_spans
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.text import shorten
from promptcodebook.types import Failure, Gradients, Rollout, Trace
from promptcodebook.units import number

_LONG, _SHORT = 4000, 1500
"""Characters shown of a text."""
_MOST_STAGES = 8
_COLOURS = 6
"""Of spans; the number beside each tells instincts apart where there are more."""

OwnWords = tuple[str, str]
"""The base prompt and the output format of a run: what stands in prompts beside instincts."""


def trace_body(
    trace: Trace, known: str | None, instincts: Sequence[tuple[int, str]], own: OwnWords = ("", "")
) -> Html:
    """All of a trace: `known` is the input where that is at hand, `instincts` are the codebook's
    texts that the input was routed over, `own` what else stands in every prompt."""
    verdict = None if trace.verdict is None else _verdict(trace)
    return el(
        "dl.trace",
        part("input", None if known is None else pre(known)),
        rollout_parts(trace.rollout, instincts, own),
        part("verdict", verdict),
        _gradients(trace.gradients),
        part("failure", _failure(trace.failure)),
    )


def rollout_parts(
    rollout: Rollout, instincts: Sequence[tuple[int, str]] = (), own: OwnWords = ("", "")
) -> list[Content]:
    """Route, prompt, stages, output and reward, as parts of a list."""
    return [
        part("route", _route(rollout)),
        part("instincts", _instincts(instincts)),
        part("prompt", _prompt(rollout.prompt, instincts, own)),
        [part(f"stage {s.name}", _stage(s.input, s.output)) for s in rollout.stages[:_MOST_STAGES]],
        part("output", pre(rollout.output)),
        part("truncated", "the output was cut at its length cap" if rollout.truncated else ""),
        part("feedback", pre(rollout.feedback, _SHORT)),
        part("failure", _failure(rollout.failure)),
    ]


def part(name: str, body: Content) -> Html | None:
    """One named part; None where there is nothing in it."""
    if body is None or body == "":
        return None
    return el("div", el("dt", name), el("dd", body))


def pre(text: str, limit: int = _LONG) -> Html | None:
    """A text as it was written, its middle cut out where it is too long; None where it is empty."""
    return el("p.pre", shorten(text, limit)) if text else None


def reward_text(rollout: Rollout) -> str:
    """'reward 0.50', or that it failed."""
    return "failed" if rollout.reward is None else f"reward {number(rollout.reward, 2)}"


def _route(rollout: Rollout) -> Html | None:
    route = rollout.route
    if route is None:
        return None
    how = ["explored" if route.explored else "chosen by the encoder"]
    how += ["repaired"] if route.repaired else []
    how += ["partly filled in"] if route.fallback else []
    how += [route.fault] if route.fault else []
    lines = [f"{', '.join(map(str, route.indices))} ({', '.join(how)})"]
    lines += [f"constraints: {'; '.join(route.constraints)}"] if route.constraints else []
    lines += [route.analysis] if route.analysis else []
    return el("p.pre", shorten("\n".join(lines), _SHORT))


def _instincts(instincts: Sequence[tuple[int, str]]) -> Html | None:
    if not instincts:
        return None
    return el("ul.plain", [el("li", el("b.index", k), text) for k, text in instincts])


def _prompt(text: str, instincts: Sequence[tuple[int, str]], own: OwnWords) -> Html | None:
    """The prompt, each piece marked by the instinct that it comes from: by number and colour."""
    if not instincts or not text:
        return pre(text)
    places = {k: place for place, (k, _) in enumerate(instincts)}
    spans = prompt_spans(shorten(text, _LONG), instincts, *own)
    likeness = any(span.instinct is not None and not span.exact for span in spans)
    note = "Pieces with ~ are told by the words they share with an instinct, not by a record."
    return together(
        el("p.pre", [_span(span, places) for span in spans]),
        el("p.note", note) if likeness else None,
    )


def _span(span: Span, places: Mapping[int, int]) -> Content:
    if span.source == "generator":
        return span.text
    look = f".s{places[span.instinct] % _COLOURS}" if span.instinct is not None else ""
    return el(f"span.span{look}", el("b.from", span.label), span.text)


def _stage(asked: str, answered: str) -> Html:
    return el("p.pre", f"{shorten(asked, _SHORT)}\n→ {shorten(answered, _SHORT)}")


def _verdict(trace: Trace) -> Html | None:
    if trace.verdict is None:
        return None
    figures = f"critic {number(trace.verdict.score, 2)}, penalty ρ {number(trace.penalty, 2)}"
    return together(el("p", figures), pre(trace.verdict.feedback, _SHORT))


def _gradients(gradients: Gradients) -> list[Content]:
    named = [("g θ", gradients.encoder), ("g φ", gradients.generator)]
    named += [(f"g c{k}", text) for k, text in gradients.codebook.items()]
    named += [("g ψ", gradients.critic)]
    return [part(name, pre(text, _SHORT)) for name, text in named]


def _failure(failure: Failure | None) -> Html | None:
    if failure is None:
        return None
    return el("p.pre", shorten(f"{failure.stage}: {failure.kind}: {failure.message}", _SHORT))
