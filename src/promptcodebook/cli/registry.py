"""`pco registry`: what the instincts say, how they came to say it, what changed, and what one of
them adds. The registry and the audit register their commands themselves."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from promptcodebook.assemble import OWN_LM
from promptcodebook.base.paths import runs_dir
from promptcodebook.base.sync import run_sync
from promptcodebook.base.text import printable, shell, word_changes
from promptcodebook.base.units import cost_text, number, plural
from promptcodebook.cli import command
from promptcodebook.cli.app import COMMAND_GROUP, outer_command
from promptcodebook.cli.command import Json, emit, note, options, show, wrap_text
from promptcodebook.errors import ConfigError, PcoError, import_part
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.references import (
    first_policy,
    read_policy,
    rewards_of,
    run_behind,
    stored_version,
)
from promptcodebook.progress import ProgressLine
from promptcodebook.report.private import withhold
from promptcodebook.run.evaluation import Sample
from promptcodebook.run.measuring import measuring
from promptcodebook.run.subject import Subject
from promptcodebook.store.effects import Effect
from promptcodebook.store.events import Stepped
from promptcodebook.store.header import specs_in
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run
from promptcodebook.types import Ranking, Rewrite, Variable, variable_name

_ORDER = (
    *("audit", "effect", "show", "log", "diff", "list"),
    *("freeze", "promote", "rollback", "import", "verify", "export"),
)
_EXTRA = "serve"  # what to install for the registry and audits


class _Registry(command.CommandGroup):
    """Also lists the commands that outer parts register."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_ORDER)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        outer = own is None and cmd_name in _ORDER
        return outer_command(f"registry.{cmd_name}", _EXTRA) if outer else own


app = command.command_group()
about = "Show, compare and audit codebooks; store and promote versions of them."
registry = command.command_group(about, _Registry)
app.add_typer(registry, name="registry")


@registry.command()
@options
def effect(
    ref: command.Ref,
    index: Annotated[int, typer.Argument(metavar="K", help="The instinct, 0..K-1.")],
    typed: command.Typed,
    split: command.SplitName = "test",
    count: command.Count = None,
    as_json: Json = False,
) -> None:
    """Measure what an instinct adds to the reward, by leaving it out.

    Inputs in the split that are routed to the instinct are answered twice: with and without it, all
    else equal. The difference is paired by input and has a 95 % interval. Failed rollouts are
    counted, but their pairs are left out. The maximum number of calls is printed first. A run
    stores the replies and the result, so earlier calls are not paid for again. The result then
    appears in pco view, pco registry show and the report."""
    subject = Subject.resolve(ref, typed.given("pco registry effect"))
    name = subject.reference.name
    with measuring(subject, index, Sample(split, count), again=typed.again) as asked:
        note(asked.plan)
        with ProgressLine(sys.stderr, simulated=asked.simulated) as line:

            def routed(text: str) -> None:
                line.close()
                note(text)

            stop = command.announced(asked.subject.assembled.models.interrupt)
            made = run_sync(asked.measure(line, routed), stop)
        paid = asked.subject.assembled.models.ledger.total.calls
    tree = {"ref": name, "calls_paid": paid}
    show(lambda: tree | made.as_json(), lambda: _effect_text(made, name, paid), as_json=as_json)


def _effect_text(made: Effect, name: str, paid: int) -> str:
    model = "simulated model, " if made.simulated else ""
    lines = [f"{model}{made.split} split of {name}", ""]
    lines += [wrap_text(made.text, f"instinct {made.instinct}  "), ""]
    if made.means is not None:
        with_it, without = made.means
        lines += [f"reward with it {number(with_it)}, without it {number(without)}"]
    lines += [wrap_text(made.sentence, "")]
    if any(made.failed):
        with_it, without = made.failed
        lines += [f"failed: {with_it} with it, {without} without it; their pairs are left out"]
    if made.unrouted:
        lines += [f"could not be routed: {plural(made.unrouted, 'input')}"]
    calls = f"{plural(made.usage.calls, 'call')}, {cost_text(made.usage.cost)}"
    lines += ["", f"its answers took {calls}; new calls, including routing: {paid}"]
    return printable("\n".join(lines))


@registry.command("show")
def show_codebook(ref: command.Ref, as_json: Json = False) -> None:
    """Show every instinct with its reward, how often it was selected, and its rewrites.

    An instinct's reward is the mean over the test inputs routed to it. `pco registry effect`
    measures the mean without the instinct. For rewritten text, the author and first version are
    shown."""
    reference = command.resolved(ref)
    file, best = reference.file, reference.best
    measured, rewrites = rewards_of(runs_dir(), ref, file), _rewrites(ref, file)
    rows: list[dict[str, Any]] = [
        {"index": k, "text": entry.text, "frozen": entry.frozen, "selected": entry.selected}
        | {"reward": asdict(measured[k]), "rewritten": rewrites.pop(k, None)}
        for k, entry in enumerate(file.codebook)
    ]
    learned = file.statistics.ranking
    if as_json:
        directives = {"encoder": file.encoder, "generator": file.generator}
        tree: dict[str, Any] = {"ref": reference.name, "select": file.select, **directives}
        tree |= {"codebook": rows, "rewritten": rewrites}
        if learned is not None:
            tree["router"] = {k: getattr(learned, k) for k in ("kind", "outcomes", "least")}
        emit(tree)
        return
    where = ""
    if best is not None:
        where = f", after update {best.step + 1}" if best.step >= 0 else ", untrained"
    print(f"{reference.name}: K = {len(rows)}, S = {file.select}{where}\n")
    for row, reward in zip(rows, measured, strict=True):
        mark = " (frozen)" if row["frozen"] else ""
        print(wrap_text(row["text"], f"[{row['index']}]{mark} "))
        print(wrap_text(f"reward: {reward.sentence}; selected: {row['selected']} times", "    "))
        if row["rewritten"]:
            print(_rewritten_text(row["rewritten"]))
    if learned is not None:
        print(f"\nrouter:\n{wrap_text(_router_text(learned, file.select))}")
    for title, text in (("encoder", file.encoder), ("generator", file.generator)):
        print(f"\n{title}:\n{wrap_text(text or '(none)')}")
        if title in rewrites:
            print(_rewritten_text(rewrites[title]))


def _router_text(learned: Ranking, select: int) -> str:
    if learned.kind == "distilled":
        source = f"distilled from the encoder's routes for {learned.outcomes} inputs"
        return f"{source}; calls no model. Picks {select} instincts per input."
    return (
        f"learned from {learned.outcomes} outcomes; calls no model. Picks {learned.least} to "
        f"{select} instincts per input, more only if the score rises. pco explain shows the scores."
    )


def _rewrites(ref: str, file: PolicyFile) -> dict[Variable, dict[str, Any]]:
    """For each text that training wrote: how often, who, and what it was at first."""
    found: dict[Variable, dict[str, Any]] = {}
    with suppress(PcoError), closing(RunStore.open(run_behind(runs_dir(), ref))) as store:
        first, times = store.parameters_at(-1).texts, Counter[Variable]()
        spec = specs_in(store.header.config)["updater"]
        updater = f"updater ({'your LM object' if spec == OWN_LM else spec})"
        for step in store.steps():
            for each in step.rewrites:
                if not each.kept or each.variable in step.reverted:
                    continue
                times[each.variable] += 1
                own = each.origin in ("gradient", "safety")
                who = updater if own else f"rule ({each.origin})"
                known = {"times": times[each.variable], "by": who, "first": first[each.variable]}
                if each.after == file.parameters.texts.get(each.variable) != known["first"]:
                    found[each.variable] = known
    return found


def _rewritten_text(rewritten: dict[str, Any]) -> str:
    times = "once" if rewritten["times"] == 1 else f"{rewritten['times']} times"
    head = f"    rewritten {times}, last by the {rewritten['by']}; originally: "
    return wrap_text(rewritten["first"], head)


@registry.command()
def log(
    ref: str | None = typer.Argument(
        None,
        help="A run (its id or name, a path, 'last'); or, in the registry, NAME@REF, or NAME@ "
        "for a whole codebook. Default: the whole registry.",
    ),
    as_json: Json = False,
) -> None:
    """For a run, list every rewrite, whether it was kept and why, and the feedback that led to it.
    For the registry, list every move: author, time, reason, and old and new version."""
    if ref is None or "@" in ref:
        show_moves = import_part(COMMAND_GROUP, "registry.log", "the registry", _EXTRA)
        show_moves(ref or "", as_json)
    else:
        _show_rewrites(ref, as_json)


def _show_rewrites(run: str, as_json: bool) -> None:
    trees: list[dict[str, Any]] = []
    parts: list[str] = []
    with closing(RunStore.open(find_run(runs_dir(), run))) as store:
        for step in store.steps():
            event = Stepped(step)  # quotes from private data are withheld, as in a report
            event = withhold(event) if store.header.private else event
            assert isinstance(event, Stepped)
            for each in event.step.rewrites:
                place = {"update": step.index + 1, "reverted": each.variable in event.step.reverted}
                trees.append({**place, **asdict(each), "variable": variable_name(each.variable)})
                parts.append(_rewrite_text(step.index, each))
    text = "\n\n".join(parts) or "nothing was ever rewritten"
    show(lambda: trees, lambda: text, as_json=as_json)


def _rewrite_text(step: int, rewrite: Rewrite) -> str:
    fate = "kept" if rewrite.kept else "refused"
    fate += f": {rewrite.reason}" if rewrite.reason else ""
    if rewrite.origin != "gradient":
        fate = f"{rewrite.origin}, {fate}"
    lines = [
        f"update {step + 1}  {variable_name(rewrite.variable)}  {fate}",
        wrap_text(rewrite.before, "  before    "),
        wrap_text(rewrite.after or "(nothing)", "  after     "),
        wrap_text(rewrite.gradient, "  feedback  "),
    ]
    if (earlier := rewrite.earlier) is not None:
        lines.insert(2, wrap_text(earlier.text or "(nothing)", "  at first  "))
        lines.insert(3, wrap_text(earlier.reason, "  refused   "))
    return "\n".join(lines)


@registry.command()
def diff(
    a: Annotated[str, typer.Argument(help="A run, a policy file, NAME@REF or sha256:DIGITS.")],
    b: str | None = typer.Argument(
        None,
        help="What to compare A with. Default: for a run, its first codebook is compared with the "
        "kept codebook; for NAME@REF, the previous version with the current one.",
    ),
    as_json: Json = False,
) -> None:
    """Show what changed, word by word: [-removed-] {+added+}."""
    reference = command.resolved(a)
    if b is not None:
        pair = reference.file, command.resolved(b).file
    elif reference.version and "@" in a:
        before = stored_version(a).before
        if not before:
            raise ConfigError(
                f"{a} has no earlier version", hint=f"pco registry diff OTHER {shell(a)}"
            )
        pair = read_policy(before), reference.file
    else:
        pair = first_policy(runs_dir(), a), reference.file
    texts = (file.parameters.texts for file in pair)
    old, new = ({variable_name(v): text for v, text in each.items()} for each in texts)
    changes = {
        name: {"before": old.get(name, ""), "after": new.get(name, "")}
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    }
    parts = [f"{name}\n{wrap_text(mark_changes(**each))}" for name, each in changes.items()]
    text = "\n\n".join(parts) or "no difference"
    show(lambda: changes, lambda: text, as_json=as_json)


def mark_changes(before: str, after: str) -> str:
    """`after`, with removals as [-...-] and additions as {+...+}."""
    marks = {"same": "{}", "removed": "[-{}-]", "added": "{{+{}+}}"}
    return "".join(marks[kind].format(piece) for kind, piece in word_changes(before, after))
