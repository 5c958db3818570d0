"""What a policy does with an input: `pco explain` says why, and where the input is an example of
the policy's run, what became of it there; `pco prompt` prints the prompt alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from promptcodebook.cli.app import COMMAND_GROUP
from promptcodebook.cli.console import emit, note, show, wrap_text
from promptcodebook.cli.settings import (
    REF_HELP,
    Json,
    Ref,
    Unpaid,
    command_group,
    options,
    settings_for,
)
from promptcodebook.errors import ConfigError, DataError, PcoError, did_you_mean, import_part
from promptcodebook.paths import runs_dir
from promptcodebook.types import Variable, variable_name
from promptcodebook.units import number

if TYPE_CHECKING:
    from promptcodebook.policy.policy import Explanation
    from promptcodebook.policy.references import Reference
    from promptcodebook.report.traces import Record, Training
    from promptcodebook.types import Example, Rewrite, Rollout

app = command_group()

_PROMISES = 3
"""Instincts that are shown with what they promise, beside the chosen ones."""
_LEARNED = "learned"
_UNTRAINED = "untrained"
_ROWS = ("present", "none", "concat", "best_fixed", "best_single", _UNTRAINED, _LEARNED)


@app.command()
@options
def explain(
    ref: Annotated[
        str, typer.Argument(metavar="REF", help=f"{REF_HELP} Or a request's id, from `pco serve`.")
    ],
    typed: Unpaid,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[INPUT]",
            help="The input, its columns as a JSON object, or the id of an example of the run; '-' "
            "reads stdin.",
        ),
    ] = None,
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
    from promptcodebook.policy.policy import deploy
    from promptcodebook.policy.references import resolve

    given = sys.stdin.read().rstrip("\n") if text == "-" else text
    if not given.strip():
        raise ConfigError("the input is empty", hint=f'pco explain {ref} "an input"')
    reference = resolve(runs_dir(), ref, trust=typed.trust)
    settings, base = settings_for(reference, typed)
    with deploy(reference.file, settings, Sources(base)) as policy:
        asked = policy.example_of(_columns(given, reference.file.input))
        example = _known_example(reference, asked.input)
        made = policy.explain(example or asked)
        texts = policy.codebook.texts
    record = None if example is None else _record(ref, example)
    story = _Story(made, texts, record)
    show(lambda: _story_json(story), lambda: "\n\n".join(_story_text(story)), as_json=as_json)


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
    made, route = story.explanation, story.explanation.route
    yield f"input\n{wrap_text(made.input)}"
    if route.constraints:
        yield "\n".join(["constraints", *(wrap_text(c, "  - ") for c in route.constraints)])
    doubt = "  (the encoder was asked twice)" if route.repaired else ""
    if route.fallback:
        doubt = "  (the encoder gave no valid route: filled up by highest r̄)"
    chosen = [wrap_text(instinct, f"  [{k}] ") for k, instinct in made.instincts]
    head = f"route {', '.join(map(str, route.indices))}{doubt}"
    yield "\n".join([head, *chosen, *_promises(made, story.texts)])
    if route.analysis:
        yield f"why\n{wrap_text(route.analysis)}"
    yield "\n".join(["prompt", *_prompt_lines(made)])
    if story.record is not None:
        yield from _record_text(story.record)


def _promises(made: Explanation, texts: Sequence[str]) -> Iterator[str]:
    """What the best, the chosen and no instinct promise; nothing where that was not learned."""
    expected, chosen = made.expected, made.route.indices
    if expected is None:
        return
    together = f"; the route {number(expected.of(chosen))}" if len(chosen) > 1 else ""
    yield f"\nexpected reward with one instinct alone (no model was asked){together}"
    for place, (k, value) in enumerate(made.ranked):
        if place < _PROMISES or k is None or k in chosen:
            text = "no instinct" if k is None else f"[{k}] {texts[k]}"
            mark = "  (chosen)" if k in chosen or (k is None and not chosen) else ""
            yield wrap_text(f"{text}{mark}", f"  {number(value)}  ")


def _prompt_lines(made: Explanation) -> list[str]:
    """Every piece of the prompt behind its source."""
    spans = made.spans
    if not any(span.instinct is not None for span in spans):
        return [wrap_text(made.prompt or "(empty)")]
    width = max(len(span.label) for span in spans)
    pieces = [wrap_text(span.text.strip(), f"  {span.label:<{width}}  ") for span in spans]
    if any(span.instinct is not None and not span.exact for span in spans):
        pieces.append("  (~ = matched by the words that the piece shares with the instinct)")
    return pieces


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
    lines = [f"in training (example {name}, update {training.step + 1}, {often})"]
    if (route := rollout.route) is not None:
        how = "explored" if route.explored else "chosen by the encoder"
        lines.append(f"  route    {', '.join(map(str, route.indices))} ({how})")
    lines += _answer_text(rollout)
    if trace.verdict is not None:
        said = f": {trace.verdict.feedback}" if trace.verdict.feedback else ""
        figures = f"{number(trace.verdict.score)}, penalty {number(trace.penalty)}"
        lines.append(wrap_text(figures + said, "  critic   "))
    lines += [
        wrap_text(f"{variable_name(variable)}: {gradient}", "  blame    ")
        for variable, gradient in trace.gradients.blamed.items()
    ]
    lines += [_change_text(rewrite, training.reverted) for rewrite in training.rewrites]
    return "\n".join(lines)


def _outcome(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return f"failed: {rollout.failure.stage}: {rollout.failure.message}"
    return number(rollout.reward) + (f": {rollout.feedback}" if rollout.feedback else "")


def _change_text(rewrite: Rewrite, reverted: Sequence[Variable]) -> str:
    """What the update made of the blame, which other examples of its batch may have shared."""
    from promptcodebook.cli.codebook import mark_changes

    fate = mark_changes(rewrite.before, rewrite.after)
    if rewrite.variable in reverted:
        fate = "taken back"
    elif not rewrite.kept:
        fate = f"refused: {rewrite.reason}"
    return wrap_text(f"{variable_name(rewrite.variable)}: {fate}", "  changed  ")


def _story_json(story: _Story) -> dict[str, Any]:
    """Plain values; `alone` is what each instinct promises by itself, `route` the chosen ones."""
    made = story.explanation
    tree, expected = asdict(made), made.expected
    if story.record is not None:
        tree["record"] = asdict(story.record)
    if expected is not None:
        alone = [expected.alone(k) for k in range(len(expected.marginal))]
        promised = expected.of(made.route.indices)
        tree["expected"] = {**asdict(expected), "alone": alone, "route": promised}
    return tree


@app.command()
@options
def prompt(
    ref: Ref,
    typed: Unpaid,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[INPUT]", help="What a composed prompt is for; '-' reads stdin."),
    ] = None,
    row: Annotated[
        str,
        typer.Option(
            "--row",
            metavar="ROW",
            help="present, none, concat, best_fixed, best_single, untrained or learned: as the "
            "verdict; or the row of another optimizer, such as gepa.",
        ),
    ] = _LEARNED,
    as_json: Json = False,
) -> None:
    """The prompt of a row of the verdict, and nothing else on stdout.

    present is what you had, concat all learned instincts in one prompt, best_fixed the learned
    prompt that did best for all inputs, best_single the instinct that did, none what comes before
    every prompt: each is one text, and needs no model. The learned policy, and the untrained one
    that it came from, compose a prompt for each input: name the input.
    """
    from promptcodebook.policy.references import resolve

    name, made = ref, _of_another_optimizer(ref, row)
    if made is None:
        if row not in _ROWS:
            raise ConfigError(
                f"unknown row {row!r}{did_you_mean(row, _ROWS)}", hint=f"--row {' | '.join(_ROWS)}"
            )
        reference = resolve(runs_dir(), ref, trust=typed.trust)
        name = reference.name
        if row in (_UNTRAINED, _LEARNED):
            made = _composed(ref, row, reference, text, typed)
        elif text is not None:
            raise ConfigError(
                f"the row {row} has one prompt for every input",
                hint=f"pco prompt {ref} --row {row}",
            )
        else:
            made = reference.file.fixed_prompt(row).text
    if as_json:
        emit({"ref": name, "row": row, "prompt": made})
        return
    if not made:
        note(f"the row {row} is zero-shot: no prompt at all")
    print(made)


def _of_another_optimizer(ref: str, row: str) -> str | None:
    """The one prompt of a row that only another optimizer's run has, or of a run without a
    codebook."""
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import find_run

    if Path(ref).suffix == ".json":
        return None
    store = RunStore.open(find_run(runs_dir(), ref))
    try:
        outline = store.outline()
    finally:
        store.close()
    if outline.conclusion is None or (row in _ROWS and outline.parameters is not None):
        return None
    return {r["name"]: r.get("prompt") for r in outline.conclusion.rows}.get(row)


def _composed(ref: str, row: str, reference: Reference, text: str | None, typed: Unpaid) -> str:
    """What the policy, or the one that its run began with, composes for the input."""
    from promptcodebook.assemble import Sources
    from promptcodebook.policy.policy import deploy
    from promptcodebook.policy.references import first_policy

    if row == _UNTRAINED:
        if reference.header is None:
            raise ConfigError(
                f"{ref} is a policy file, and only its run knows what it began with",
                hint='pco prompt RUN --row untrained "an input"',
            )
        reference = replace(reference, file=first_policy(runs_dir(), ref))
    given = sys.stdin.read().rstrip("\n") if text == "-" else text
    if given is None or not given.strip():
        flag = "" if row == _LEARNED else f" --row {row}"
        raise ConfigError(
            f"the {row} policy composes a prompt for each input, and none was given",
            hint=f'pco prompt {ref}{flag} "an input", or one prompt for all: '
            f"pco prompt {ref} --row concat",
        )
    if given in _ROWS:
        note(f"{given!r} is taken as the input; for that row: pco prompt {ref} --row {given}")
    settings, base = settings_for(reference, typed)
    return deploy(reference.file, settings, Sources(base)).prompt(given)
