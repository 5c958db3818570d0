"""`pco explain`: why this input gets this prompt."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.assess import Asked, configured
from promptcodebook.cli.console import emit, wrapped
from promptcodebook.cli.options import ConfigOption, DataDir, Json, Model, Ref, Sets, TaskName
from promptcodebook.cli.settings import runs_dir
from promptcodebook.errors import ConfigError

if TYPE_CHECKING:
    from promptcodebook.session.policy import Explanation

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def explain(
    ref: Ref,
    text: Annotated[str, typer.Argument(metavar="INPUT", help="The input; '-' reads stdin.")],
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """The route, the instincts chosen, the prompt composed from them, and the encoder's reasons."""
    from promptcodebook.session.evaluation import policy_of
    from promptcodebook.session.references import referred

    given = sys.stdin.read().rstrip("\n") if text == "-" else text
    if not given.strip():
        raise ConfigError("the input is empty", hint=f'pco explain {ref} "an input"')
    found = referred(runs_dir(), ref)
    settings, base = configured(found, Asked(config, task, data, lm, None, sets or ()))
    said = policy_of(found.file, settings, base).explain(given)
    if as_json:
        emit(asdict(said))
    else:
        print(_text(said))


def _text(said: Explanation) -> str:
    route = said.route
    lines = [f"input\n{wrapped(said.input)}", ""]
    if route.constraints:
        lines += ["the encoder saw", *(wrapped(c, "  - ") for c in route.constraints), ""]
    lines.append(f"route {', '.join(map(str, route.indices))}{_doubt(said)}")
    lines += [wrapped(instinct, f"  [{k}] ") for k, instinct in said.instincts]
    if route.analysis:
        lines += ["", f"why\n{wrapped(route.analysis)}"]
    return "\n".join([*lines, "", f"prompt\n{wrapped(said.prompt or '(empty)')}"])


def _doubt(said: Explanation) -> str:
    if said.route.fallback:
        return "  (the encoder gave no valid route: filled by highest r̄)"
    return "  (asked twice)" if said.route.repaired else ""
