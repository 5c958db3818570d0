"""What a policy does: `pco eval` and `pco compare` say how well, `pco distill` does without its
encoder, `pco explain` says why, and `pco prompt` prints the prompt alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.assemble import Sources
from promptcodebook.base.paths import MOST_BYTES, runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import parse_json, printable, shell
from promptcodebook.base.units import bytes_text, cost_text, number, percent
from promptcodebook.cli import command
from promptcodebook.cli.app import COMMAND_GROUP
from promptcodebook.cli.command import Json, columns, note, options, show, wrap_text
from promptcodebook.data.table import parse_input_template
from promptcodebook.errors import ConfigError, DataError, PcoError, did_you_mean, import_part
from promptcodebook.lm.budget import Ledger
from promptcodebook.lm.stack import StackResources
from promptcodebook.policy.policy import Explanation, Policy, deploy
from promptcodebook.policy.references import Reference, first_policy, rewards_of, stored_dataset
from promptcodebook.routing.ranking import Vocabulary
from promptcodebook.run.evaluation import (
    Assessment,
    Comparing,
    Comparison,
    Evaluating,
    Sample,
    Side,
)
from promptcodebook.run.measuring import Distillation, Distiller, Needs
from promptcodebook.run.slices import require_slices, worse_in
from promptcodebook.run.subject import Subject
from promptcodebook.store.effects import InstinctReward
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run
from promptcodebook.types import Example

app = command.command_group()

DISTILLED = "distilled.json"


@dataclass(frozen=True)
class _TypedPath(command.Typed):
    """The settings file is an argument, not an option."""

    config: command.ConfigPath = None


@app.command("eval")
@options
def evaluate(
    ref: Annotated[str, typer.Argument(help=command.REF_HELP)] = "",
    prompt: command.PromptOption = None,
    *,
    typed: _TypedPath,
    split: command.SplitName = "test",
    count: command.Count = None,
    samples: command.SamplesOption = None,
    row: str = typer.Option(
        "learned",
        metavar="ROW",
        help="A verdict row: learned, present, none, concat, best_fixed, best_single or oracle.",
    ),
    at_least: float | None = typer.Option(None, help="Exit 1 if the mean reward is below this."),
    as_json: Json = False,
) -> None:
    """Show the reward with its 95 % interval, the failures and the cost per query.

    Answers recorded during the policy's run are reused, so the same row, split and model give the
    same figure as the verdict. --again asks the model again. Agents that call models themselves are
    always rerun. Decoding is greedy. With --samples N, the reward is the mean of N sampled runs per
    example. A run trained with `samples` is evaluated with the same number. Settings come from the
    run unless you name a task or pco.toml. Models come from the run unless you name others. --row
    evaluates a different row of the run's verdict: a fixed prompt (present, none, concat,
    best_fixed, best_single), or the right instructions if the task knows them (oracle). To compare
    later, save the --json output and use pco compare A.json B.json"""
    sample, own = Sample(split, count, samples), command.own_prompt(prompt, ref)
    if own and ref and (command.toml_path(Path(ref)) or Path()).is_file() and Path(ref).is_dir():
        typed, ref = replace(typed, config=Path(ref)), ""
    if not (ref or own):
        hint = 'pco eval REF, or pco eval --prompt "TEXT"; pco eval --help'
        raise ConfigError("missing argument REF", hint=hint)
    with typed.given("pco eval").until_done(ref, own, sample, row) as kept:
        asked = Evaluating.of(ref or own or "", kept, sample, row, own)
        made = run_sync(asked.answer(), command.announced(asked.subject.assembled.models.interrupt))
    show(made.as_json, lambda: _assessment_text(made), as_json=as_json)
    mean = made.row.score.mean
    if at_least is not None and not mean >= at_least:
        note(f"the mean reward {number(mean)} is below --at-least {at_least:g}")
        raise typer.Exit(1)


@app.command()
@options
def compare(
    a: Annotated[
        str, typer.Argument(help="A run, a policy file, or saved output of `pco eval --json`.")
    ],
    typed: command.Typed,
    b: Annotated[str, typer.Argument(help="What to compare A with.")] = "",
    prompt: command.PromptOption = None,
    split: command.SplitName = "test",
    count: command.Count = None,
    margin: float | None = typer.Option(
        None, min=0.0, help="Exit 1 unless the whole interval shows A at most this much below B."
    ),
    no_worse_in: list[str] = typer.Option(
        [], help="Exit 1 if A is clearly worse in this slice, or in any slice of this column."
    ),
    as_json: Json = False,
) -> None:
    """Measure the gain of A over B, paired by example, with its 95 % interval.

    If A or B is a saved evaluation, the other is evaluated on the same split and examples. --budget
    limits both evaluations together."""
    sample, own = Sample(split, count), command.own_prompt(prompt, a, b)
    if bool(b) == bool(own):
        hint = 'pco compare A B, or pco compare A --prompt "TEXT"; pco compare --help'
        raise ConfigError("missing argument B or --prompt", hint=hint)
    with typed.given("pco compare").until_done(a, own or b, sample) as kept:
        asked = Comparing.of((a, own or b), kept, sample)
        if all(isinstance(side, Side) for side in asked.sides):
            what = {"n": count, "split": split if split != Sample().split else None}
            command.require_unused(typed, "on two saved evaluations", **what)
        require_slices(asked.slices, no_worse_in)
        made = run_sync(asked.answer(), command.announced(asked.interrupt))
    show(made.as_json, lambda: _comparison_text(made), as_json=as_json)
    if no_worse_in and (worse := worse_in(made.slices, no_worse_in)):
        note(f"--no-worse-in: A is clearly worse than B for {' and '.join(worse)}")
        raise typer.Exit(1)
    if margin is not None and not made.gain.low >= -margin:
        note(f"A may be {number(-made.gain.low)} below B, which exceeds --margin {margin:g}")
        raise typer.Exit(1)


def _assessment_text(made: Assessment) -> str:
    row, usage, rollouts = made.row, made.row.per_query, made.evaluation.rollouts
    model = "simulated model, " if made.simulated else ""
    facts = {
        "policy": made.name,
        **({} if made.kind == "learned" else {"row": made.kind}),
        "reward": row.score.text(between=command.BETWEEN),
        "replies": made.replies,
        "answered only": number(row.answered),
        "failed": str(row.failed),
        "truncated": str(row.truncated),
        "fallback routes": "-" if row.fallbacks is None else percent(row.fallbacks),
        "longest prompt": f"{row.prompt_length.longest} tokens" if row.prompt_length else "-",
        "per query": (
            f"{number(row.calls_per_query, 1)} calls, {usage.tokens} tokens, "
            f"{number(usage.latency_s, 2)} s, {cost_text(usage.cost)}"
            if row.metered
            else "not metered: the program calls models itself"
        ),
    }
    width = max(map(len, facts))
    each = "" if made.runs == 1 else f", each the mean of {made.runs} samples"
    lines = [f"{model}{made.evaluation.split} split, n = {len(rollouts)}{each}", ""]
    lines += [wrap_text(value, f"{name:<{width}}  ") for name, value in facts.items()]
    for example, first in [(r.example_id, r.failure) for r in rollouts if r.failure][:1]:
        what = f"{first.kind} at {first.stage}: {first.message}"
        lines += ["", wrap_text(f"{row.failed} failed; the first, {example}: {what}", "")]
    return printable("\n".join(lines))


def _comparison_text(made: Comparison) -> str:
    rows: list[dict[str, str]] = []
    for mark, side in (("A", made.a), ("B", made.b)):
        ends = side.score.ends(between=command.BETWEEN)
        row = {"": mark, "policy": side.name, "reward": number(side.score.mean), "95 %": ends}
        rows.append({**row, "replies": side.replies})
    model = "simulated model, " if made.simulated else ""
    head = f"{model}{made.split} split, n = {made.gain.n}:"
    slices = command.slices_text(made.slices)
    return f"{head}\n\n{columns(rows)}\n{slices}\n{made.sentence}"


@app.command()
@options
def distill(
    ref: command.Ref,
    typed: command.Typed,
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The policy file; default: distilled.json in the run's folder."
    ),
    fresh: int = typer.Option(0, min=0, help="Ask the encoder about this many training inputs."),
    margin: float = typer.Option(
        0.02, min=0.0, help="Largest loss to accept, as a share of the reward's range."
    ),
    count: command.Count = None,
    as_json: Json = False,
) -> None:
    """Learn to predict the encoder's routes, which saves one model call per query.

    A linear ranking is fitted to the encoder's routes from training and, with --fresh, to new
    routes. Then the old and new policies answer the validation split, or --n examples from it; the
    number of calls is printed first. The policy file is always written, but recommended as the
    default only if the 95 % interval of the reward difference lies entirely above -margin."""
    needs = Needs(fresh, count, margin)
    with typed.given("pco distill").until_done(ref, needs) as kept:
        subject = Subject.resolve(ref, kept)
        if output is None and subject.run is None:
            message = f"{ref} is a policy file, so -o must say where to write the distilled one"
            raise ConfigError(message, hint=f"pco distill {shell(ref)} -o {DISTILLED}")
        target = output or (subject.run or Path()) / DISTILLED
        distiller = Distiller.of(subject, needs)
        note(distiller.plan)
        made = run_sync(distiller.distil(note), distiller.subject.assembled.models.interrupt)
        made.file.save(target)
    facts = {"ref": subject.reference.name, "policy": str(target)}
    show(lambda: facts | made.as_json(), lambda: _distilled_text(made, target), as_json=as_json)


def _distilled_text(made: Distillation, target: Path) -> str:
    lines = [f"learned from the encoder's routes for {made.inputs} training inputs", ""]
    if made.difference is None:
        why = "There is no validation split, so the difference in reward is unknown."
        lines.append(wrap_text(why, ""))
    else:
        of, (ours, theirs) = made.difference, made.per_query
        lines += [
            f"reward, distilled - encoder: {of.text(signed=True, more='paired')}, n = {of.n}",
            f"calls per query: {number(ours, 1)} instead of {number(theirs, 1)}",
        ]
    least = f"-{number(made.margin)}"
    verdict = f"Not shown to be as good: the interval reaches {least} or below. "
    verdict += "Keep the encoder as the default, or judge with more examples."
    if made.non_inferior:
        verdict = f"Not inferior: the interval lies above {least}. "
        verdict += "The distilled policy can be the default."
    return "\n".join([*lines, "", wrap_text(verdict, ""), "", f"wrote {target}"])


_PROMISES = 3  # instincts shown with what they promise, next to the chosen ones
_EXPLAINED = f"{command.REF_HELP} Or the id of a request to `pco serve`."


@app.command()
@options
def explain(
    ref: Annotated[str, typer.Argument(metavar="REF", help=_EXPLAINED)],
    typed: command.Unpaid,
    text: str | None = typer.Argument(
        None,
        metavar="[INPUT]",
        help="The input as text or as a JSON object of its columns, or the id of "
        "an example in the run; '-' reads stdin.",
    ),
    as_json: Json = False,
) -> None:
    """Show the route, the encoder's reasons, and the prompt with each piece's source instinct.

    For an example from the run, `pco view` shows what happened in training. Each chosen instinct is
    shown with its measured reward. A learned router adds scores, which rank instincts but are not
    rewards. An input unlike any training input is marked. A `pco serve` request is shown with its
    prompt; no model is called."""
    if text is None:
        command.require_unused(typed, "on a served request")
        explain_request = import_part(COMMAND_GROUP, "explain.request", "pco serve", "serve")
        explain_request(ref, as_json=as_json)
        return
    given = _read_input(text)
    if not given.strip():
        raise ConfigError("the input is empty", hint=f'pco explain {shell(ref)} "an input"')
    reference = command.resolved(ref, trust=typed.trust)
    ledger = Ledger()
    with _deployed(ref, reference, typed, ledger) as policy:
        typed_in = policy.example_of(_columns(given, reference.file.input))
        data = _stored_data(reference)
        example = _known_example(data, typed_in.input)
        made = policy.explain(example or typed_in)
        texts = policy.codebook.texts
    needed = reference.file.router is None or reference.file.compose == "generator"
    asked = "from the run's recorded replies" if needed else "no model was asked"
    asked = "a model was asked" if ledger.total.calls else asked
    measured = rewards_of(runs_dir(), ref, reference.file)
    known = [e.input for e in data.get("train", ()) if reference.file.router is None]
    unlike = bool(known) and Vocabulary.of(known).unlike(made.input)
    parts = [*_explained(made, texts, measured, unlike=unlike), asked]
    rewards = {k: asdict(measured[k]) for k in made.route.indices}
    tree = _explained_json(made) | {"rewards": rewards, "replies": asked, "unlike": unlike}
    show(lambda: tree, lambda: "\n\n".join(parts), as_json=as_json)


def _deployed(ref: str, reference: Reference, typed: command.Unpaid, ledger: Ledger) -> Policy:
    settings, base = command.settings_for(reference, typed)
    supplies = StackResources(recorded_replies=typed.given().recorded(ref), ledger=ledger)
    return deploy(reference.file, settings, Sources(base), supplies)


def _read_input(text: str) -> str:
    if text != "-":
        return text
    try:
        given = sys.stdin.read(MOST_BYTES + 1)
    except UnicodeDecodeError:
        hint = "iconv -f WINDOWS-1252 -t UTF-8 converts it"
        raise DataError("standard input is not UTF-8", hint=hint) from None
    if len(given) > MOST_BYTES:  # a pipe may have no end
        message = f"standard input is longer than {bytes_text(MOST_BYTES)}"
        raise DataError(message, hint="give one input; pco batch answers a whole file")
    return given.rstrip("\n")


def _stored_data(reference: Reference) -> Mapping[str, Sequence[Example]]:
    """The splits of the run's data, if they are here and may be read; else none."""
    header = reference.header
    if header is None or header.private or not reference.trusted:
        return {}
    try:
        return dict(stored_dataset(header).items())
    except PcoError:
        return {}


def _known_example(data: Mapping[str, Sequence[Example]], given: str) -> Example | None:
    """The example of that input or id."""
    examples = [e for split in data.values() for e in split]
    by_input = [e for e in examples if e.input == given]
    return next(iter(by_input or [e for e in examples if e.id == given]), None)


def _columns(given: str, template: str) -> str | dict[str, Any]:
    """The input as columns if it is a JSON object that has the policy's column, or nearly that, or
    if the policy reads several; else the text itself. Raises DataError when an object is cut
    short."""
    several = bool(parse_input_template(template).columns)
    if not given.lstrip().startswith("{"):
        return given
    try:
        columns: dict[str, Any] = parse_json(given)
    except ValueError as error:
        if not several:
            return given
        hint = 'quote it for the shell: \'{"title": "..."}\''
        raise DataError(f"the input is not valid JSON: {error}", hint=hint) from None
    if several or template in columns or did_you_mean(template, columns):
        return columns
    note(f"the JSON has no column {template!r}, so all of it is taken as the text")
    return given


def _explained(
    made: Explanation, texts: Sequence[str], measured: Sequence[InstinctReward], *, unlike: bool
) -> Iterator[str]:
    route, spans = made.route, made.spans
    remark = "  (unlike any training input: nothing was learned about its words)" if unlike else ""
    yield f"input{remark}\n{wrap_text(made.input)}"
    if route.constraints:
        yield "\n".join(["constraints", *(wrap_text(c, "  - ") for c in route.constraints)])
    doubt = "  (the encoder was asked twice)" if route.repaired else ""
    if route.fallback:
        doubt = "  (the encoder gave no valid route; the best-rated instincts are used)"
    elif route.fault:
        doubt = f"  ({route.fault})"
    chosen = [
        f"{wrap_text(text, f'  [{k}] ')}\n{wrap_text(f'reward: {measured[k].sentence}', '      ')}"
        for k, text in made.instincts
    ]
    head = f"route {', '.join(map(str, route.indices))}{doubt}"
    yield "\n".join([head, *chosen, *_promises(made, texts)])
    if route.analysis:
        yield f"why\n{wrap_text(route.analysis)}"
    pieces = [wrap_text(made.prompt or "(empty)")]
    found = [span for span in spans if span.instinct is not None]
    if found:  # each piece behind its source
        width = max(len(span.label) for span in spans)
        pieces = [wrap_text(span.text.strip(), f"  {span.label:<{width}}  ") for span in spans]
    if not all(span.exact for span in found):
        pieces.append("  (~ = matched by words shared with the instinct)")
    yield "\n".join(["prompt", *pieces])


def _promises(made: Explanation, texts: Sequence[str]) -> Iterator[str]:
    scores, chosen = made.scores, made.route.indices
    if scores is None:
        return
    together = f"; the route {number(scores.of(chosen))}" if len(chosen) > 1 else ""
    yield f"\nrouter's score with one instinct alone (for ranking, not a reward){together}"
    for place, (k, value) in enumerate(made.ranked):
        if place < _PROMISES or k is None or k in chosen:
            text = "no instinct" if k is None else f"[{k}] {texts[k]}"
            mark = "  (chosen)" if k in chosen or (k is None and not chosen) else ""
            yield wrap_text(f"{text}{mark}", f"  {number(value)}  ")


def _explained_json(made: Explanation) -> dict[str, Any]:
    """Plain values; `alone` is the score of each instinct by itself, `route` of the chosen ones."""
    tree, scores = asdict(made), made.scores
    if scores is not None:
        alone = [scores.alone(k) for k in range(len(scores.marginal))]
        tree["scores"] |= {"alone": alone, "route": scores.of(made.route.indices)}
    return tree


_LEARNED, _UNTRAINED = "learned", "untrained"
_ROWS = ("present", "none", "concat", "best_fixed", "best_single", _UNTRAINED, _LEARNED)


@app.command()
@options
def prompt(
    ref: command.Ref,
    typed: command.Unpaid,
    text: str | None = typer.Argument(
        None, metavar="[INPUT]", help="The input to compose a prompt for; '-' reads stdin."
    ),
    row: str = typer.Option(
        _LEARNED,
        metavar="ROW",
        help="A row of the verdict (see above), or another optimizer's name, such as gepa.",
    ),
    as_json: Json = False,
) -> None:
    """Print the prompt of a verdict row on stdout, and nothing else.

    The `present` row is your original prompt. `concat` joins all learned instincts; `none` is only
    the text placed before every prompt. `best_fixed` is the learned prompt that does best over all
    inputs; `best_single` is the best single instinct. These prompts are fixed and need no model.
    The `learned` policy, and the `untrained` policy it started from, need an input to compose a
    prompt for."""
    name, made = ref, _of_another_optimizer(ref, row)
    if made is None:
        if row not in _ROWS:
            message = f"unknown row {row!r}{did_you_mean(row, _ROWS)}"
            raise ConfigError(message, hint=f"--row {' | '.join(_ROWS)}")
        reference = command.resolved(ref, trust=typed.trust)
        name = reference.name
        if row in (_UNTRAINED, _LEARNED):
            made = _composed(ref, row, reference, text, typed)
        elif text is not None:
            message = f"the row {row} has one prompt for every input"
            raise ConfigError(message, hint=f"pco prompt {shell(ref)} --row {row}")
        else:
            command.require_unused(typed, f"on the row {row}, which is a single prompt")
            made = reference.file.fixed_prompt(row).text
    if not made and not as_json:
        note(f"the row {row} is zero-shot: it has no prompt")
    show(lambda: {"ref": name, "row": row, "prompt": made}, lambda: made, as_json=as_json)


def _of_another_optimizer(ref: str, row: str) -> str | None:
    """The prompt of a row that only another optimizer's run has, or a run without a codebook."""
    if Path(ref).suffix == ".json":
        return None
    with closing(RunStore.open(find_run(runs_dir(), ref))) as store:
        outline = store.outline()
    if outline.conclusion is None or (row in _ROWS and outline.parameters is not None):
        return None
    return {r["name"]: r.get("prompt") for r in outline.conclusion.rows}.get(row)


def _composed(
    ref: str, row: str, reference: Reference, text: str | None, typed: command.Unpaid
) -> str:
    if row == _UNTRAINED:
        if reference.header is None:
            message = f"{ref} is a policy file; only its run has the untrained policy"
            raise ConfigError(message, hint='pco prompt RUN --row untrained "an input"')
        reference = replace(reference, file=first_policy(runs_dir(), ref))
    given = _read_input(text or "")
    if not given.strip():
        flag = "" if row == _LEARNED else f" --row {row}"
        raise ConfigError(
            f"the {row} policy composes a prompt for each input, but no input was given",
            hint=f'pco prompt {shell(ref)}{flag} "an input", or one prompt for all: '
            f"pco prompt {shell(ref)} --row concat",
        )
    if given in _ROWS:
        row = f"pco prompt {shell(ref)} --row {given}"
        note(f"{given!r} is taken as the input; to print that row: {row}")
    policy = _deployed(ref, reference, typed, Ledger())
    return policy.prompt(_columns(given, reference.file.input))
