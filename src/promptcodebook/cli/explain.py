"""`pco explain`: what a policy does with an input and why; and where that is an example of its run,
what became of it there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from promptcodebook.cli.app import COMMAND_GROUP
from promptcodebook.cli.console import emit, wrap_text
from promptcodebook.cli.settings import (
    REF_HELP,
    ConfigOption,
    DataDir,
    Json,
    Model,
    Sets,
    TaskName,
    Trust,
    command_group,
)
from promptcodebook.errors import ConfigError, DataError, PcoError, import_part
from promptcodebook.paths import runs_dir
from promptcodebook.types import Variable, variable_name
from promptcodebook.units import number

if TYPE_CHECKING:
    from promptcodebook.policy.references import Reference
    from promptcodebook.policy.response import Explanation
    from promptcodebook.report.traces import Record, Training
    from promptcodebook.types import Example, Rewrite, Rollout

app = command_group()

_PROMISES = 3
"""Instincts that are shown with what they promise, beside the chosen ones."""


@app.command()
def explain(
    ref: Annotated[
        str, typer.Argument(metavar="REF", help=f"{REF_HELP} Or a request's id, from `pco serve`.")
    ],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[INPUT]",
            help="The input, its columns as a JSON object, or the id of an example of the run; '-' "
            "reads stdin.",
        ),
    ] = None,
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    sets: Sets = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The route and the encoder's reasons, and the prompt, each piece with the instinct it is from.

    Of a run's own example also what became of it there: output, reward, verdict, what was blamed,
    and which texts were rewritten because of it. Where routes were learned from outcomes, the
    reward that each instinct promises, and none. Of a request that `pco serve` answered it shows
    what that was prompted with; no model is asked.
    """
    if text is None:
        explain_request = import_part(COMMAND_GROUP, "explain.request", "pco serve", "serve")
        explain_request(ref, as_json=as_json)
        return
    from promptcodebook.assemble import Sources
    from promptcodebook.cli.settings import Typed, settings_for
    from promptcodebook.policy.policy import deploy
    from promptcodebook.policy.references import resolve

    given = sys.stdin.read().rstrip("\n") if text == "-" else text
    if not given.strip():
        raise ConfigError("the input is empty", hint=f'pco explain {ref} "an input"')
    reference = resolve(runs_dir(), ref, trust=trust)
    settings, base = settings_for(reference, Typed(config, task, data, lm, None, sets or ()))
    with deploy(reference.file, settings, Sources(base)) as policy:
        asked = policy.example_of(_columns(given, reference.file.input))
        example = _known_example(reference, asked.input)
        explanation = policy.explain(example or asked)
        texts = policy.codebook.texts
    record = None if example is None else _record(ref, example)
    story = _Story(explanation, texts, record)
    if as_json:
        emit(_story_json(story))
    else:
        print("\n\n".join(_story_text(story)))


@dataclass(frozen=True, slots=True)
class _Story:
    """What is said about an input; `record` is what the run has of it."""

    explanation: Explanation
    texts: Sequence[str]
    record: Record | None


def _known_example(reference: Reference, given: str) -> Example | None:
    """The example of the run that was meant, by its input or its id; None = it is none, or its data
    are not here or not to be looked through."""
    from promptcodebook.policy.references import stored_dataset

    header = reference.header
    if header is None or header.private or not reference.trusted:
        return None
    try:
        examples = [e for _, split in stored_dataset(header).items() for e in split]
    except PcoError:
        return None
    by_input = next((e for e in examples if e.input == given), None)
    return by_input or next((e for e in examples if e.id == given), None)


def _record(ref: str, example: Example) -> Record | None:
    from promptcodebook.report.traces import read_record
    from promptcodebook.store.runs import find_run

    return read_record(find_run(runs_dir(), ref), example.id)


def _columns(given: str, template: str) -> str | dict[str, Any]:
    """The input as columns where it is a JSON object that has the policy's column, or where the
    policy reads several; else it is the text itself. DataError for an object that is cut short."""
    from promptcodebook.data.table import parse_input_template

    several = bool(parse_input_template(template).columns)
    if not given.lstrip().startswith("{"):
        return given
    try:
        tree: object = json.loads(given)
    except ValueError as error:
        if not several:
            return given
        raise DataError(
            f"the input is not valid JSON: {error}",
            hint='quote it for the shell: pco explain REF \'{"title": "..."}\'',
        ) from None
    columns = cast("dict[str, Any]", tree)
    return columns if several or template in columns else given


def _story_text(story: _Story) -> Iterator[str]:
    """The parts, in the order of what happens."""
    explanation, route = story.explanation, story.explanation.route
    yield f"input\n{wrap_text(explanation.input)}"
    if route.constraints:
        yield "\n".join(["constraints", *(wrap_text(c, "  - ") for c in route.constraints)])
    chosen = [wrap_text(instinct, f"  [{k}] ") for k, instinct in explanation.instincts]
    head = f"route {', '.join(map(str, route.indices))}{_doubt(explanation)}"
    yield "\n".join([head, *chosen, *_promises(explanation, story.texts)])
    if route.analysis:
        yield f"why\n{wrap_text(route.analysis)}"
    yield _prompt_text(explanation)
    if story.record is not None:
        yield from _record_text(story.record)


def _prompt_text(explanation: Explanation) -> str:
    """Every piece of the prompt behind its source."""
    spans = explanation.spans
    if not any(span.instinct is not None for span in spans):
        return f"prompt\n{wrap_text(explanation.prompt or '(empty)')}"
    width = max(len(span.label) for span in spans)
    pieces = [wrap_text(span.text.strip(), f"  {span.label:<{width}}  ") for span in spans]
    if any(span.instinct is not None and not span.exact for span in spans):
        pieces.append("  (~ = matched by the words that the piece shares with the instinct)")
    return "\n".join(["prompt", *pieces])


def _record_text(record: Record) -> Iterator[str]:
    """What became of the example in its run: the last time that training drew it, and the rows of
    the verdict."""
    if record.trainings:
        yield _training_text(record.trainings[-1], len(record.trainings), record.example_id)
    if record.validated is not None:
        title = f"in validation (example {record.example_id})"
        yield "\n".join([title, *_answer_text(record.validated)])
    if record.judged:
        width = max(len(name) for name, _ in record.judged)
        rows = [wrap_text(_outcome(r), f"  {name:<{width}}  ") for name, r in record.judged]
        title = f"in the verdict (example {record.example_id} of the test split)"
        yield "\n".join([title, *rows, *_answer_text(record.judged[-1][1], reward=False)])


def _answer_text(rollout: Rollout, *, reward: bool = True) -> list[str]:
    """Stages, output and reward."""
    stages = [wrap_text(f"{s.input}\n→ {s.output}", f"  {s.name}  ") for s in rollout.stages]
    output = [wrap_text(rollout.output or "(empty)", "  output   ")]
    return [*stages, *output, *([wrap_text(_outcome(rollout), "  reward   ")] if reward else [])]


def _training_text(training: Training, times: int, name: str) -> str:
    trace, rollout = training.trace, training.trace.rollout
    often = "once" if times == 1 else f"the last of {times} times"
    route = rollout.route
    lines = [f"in training (example {name}, update {training.step + 1}, {often})"]
    if route is not None:
        how = "explored" if route.explored else "chosen by the encoder"
        lines.append(f"  route    {', '.join(map(str, route.indices))} ({how})")
    lines += _answer_text(rollout)
    if trace.verdict is not None:
        figures = f"{number(trace.verdict.score)}, penalty {number(trace.penalty)}"
        told = f"{figures}: {trace.verdict.feedback}" if trace.verdict.feedback else figures
        lines.append(wrap_text(told, "  critic   "))
    lines += [
        wrap_text(f"{variable_name(variable)}: {gradient}", "  blame    ")
        for variable, gradient in training.blamed
    ]
    lines += [_change_text(rewrite, training.reverted) for rewrite in training.rewrites]
    return "\n".join(lines)


def _outcome(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return f"failed: {rollout.failure.stage}: {rollout.failure.message}"
    feedback = f": {rollout.feedback}" if rollout.feedback else ""
    return f"{number(rollout.reward)}{feedback}"


def _change_text(rewrite: Rewrite, reverted: Sequence[Variable]) -> str:
    """What the update made of the blame, which other examples of its batch may have shared."""
    from promptcodebook.cli.codebook import mark_changes

    fate = f"refused: {rewrite.reason}" if not rewrite.kept else ""
    fate = "taken back" if rewrite.variable in reverted else fate
    changed = fate or mark_changes(rewrite.before, rewrite.after)
    return wrap_text(f"{variable_name(rewrite.variable)}: {changed}", "  changed  ")


def _story_json(story: _Story) -> dict[str, Any]:
    """Plain values; `alone` is what each instinct promises by itself, `route` the chosen ones."""
    from dataclasses import asdict

    explanation = story.explanation
    tree, expected = asdict(explanation), explanation.expected
    if story.record is not None:
        tree["record"] = asdict(story.record)
    if expected is not None:
        alone = [expected.alone(k) for k in range(len(expected.marginal))]
        promised = expected.of(explanation.route.indices)
        tree["expected"] = {**asdict(expected), "alone": alone, "route": promised}
    return tree


def _promises(explanation: Explanation, texts: Sequence[str]) -> list[str]:
    """What the best, the chosen and no instinct promise; [] where nothing was learned of that."""
    expected, chosen = explanation.expected, explanation.route.indices
    if expected is None:
        return []
    together = f"; the route {number(expected.of(chosen))}" if len(chosen) > 1 else ""
    lines = ["", f"expected reward with one instinct alone (no model was asked){together}"]
    for place, (k, value) in enumerate(explanation.ranked):
        if place < _PROMISES or k is None or k in chosen:
            text = "no instinct" if k is None else f"[{k}] {texts[k]}"
            mark = "  (chosen)" if k in chosen or (k is None and not chosen) else ""
            lines.append(wrap_text(f"{text}{mark}", f"  {number(value)}  "))
    return lines


def _doubt(explanation: Explanation) -> str:
    if explanation.route.fallback:
        return "  (the encoder gave no valid route: filled up by highest r̄)"
    return "  (the encoder was asked twice)" if explanation.route.repaired else ""
