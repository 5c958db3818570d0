"""A policy in the forms that other tools take: one file, or a folder of code with the policy in it.
Code composes a prompt for each input, as the policy does; a text cannot, and says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from typing import Any

from promptcodebook.errors import ConfigError, PolicyError, did_you_mean
from promptcodebook.policy.file import BEST_FIXED, CONCAT, PolicyFile
from promptcodebook.types import Prompt

_POLICY = "policy.json"
_CALLS = {"encoder": "an encoder's call routes", "generator": "a generator's call composes"}


@dataclass(frozen=True, slots=True)
class Export:
    """Files by name, which a `folder` holds together. `live` = it composes a prompt per input."""

    files: Mapping[str, str]
    live: bool
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a policy. `about` says in a line what it is, for the help of the command; `make`
    takes the policy and the name that its files give it."""

    about: str
    make: Callable[[PolicyFile, str], Export]


def export_policy(file: PolicyFile, kind: str, name: str, *, trusted: bool = False) -> Export:
    """The policy in one of FORMS; `name` is its name in the files. Raises ConfigError for another
    kind, and for code of a policy with prompts by stage. Raises RunNotTrusted unless `trusted`."""
    if kind not in FORMS:
        message = f"no form {kind!r}{did_you_mean(kind, FORMS)}" if kind else "missing option --to"
        raise ConfigError(message, hint=f"choose one: --to {', --to '.join(FORMS)}")
    made = FORMS[kind].make(file, re.sub(r"[^\w.@-]+", "-", name))
    if made.folder:
        file.require_trust(name, trusted=trusted)
    return made


def _code(about: str, target: str, template: str) -> Form:
    def make(file: PolicyFile, name: str) -> Export:
        if file.stages:
            message = f"exported code calls a model once, not for each of {', '.join(file.stages)}"
            hint = "--to json, then load_policy(...).compose(x) in a program with these stages"
            raise ConfigError(message, hint=hint)
        calls = ", ".join(_CALLS[role] for role in file.asks)
        fields = file.answer_fields
        known = {
            "name": name,
            "digest": f"sha256:{file.digest}",
            "version": version("promptcodebook"),
            "how": calls or "routing and composing call no model, so none has to be named",
            "trust": ", trust=True" if file.beyond_sampling else "",
            # Names as they may stand in a comment of any language.
            "fields": ", ".join(re.sub(r"[^\w.-]", "?", each) for each in fields)
            or "no field of its own",
        }
        folder = resources.files("promptcodebook.deploy.exports") / "files"
        text = (folder / f"{template}.txt").read_text("utf-8")
        # In one pass: what is put in is text, never a template.
        code = re.sub(r"<<(\w+)>>", lambda m: known[m[1]], text)
        return Export({_POLICY: file.text(), target: code}, live=True, folder=True)

    return Form(f"{target}, {about}", make)


def _system_prompt(file: PolicyFile, name: str) -> Export:
    """The policy's best prompt for every input: its row of the verdict, it, and what it lacks."""
    try:
        row, prompt = BEST_FIXED, file.fixed_prompt(BEST_FIXED)
        which = "the composed prompt that scored best over all inputs (row best_fixed)"
    except PolicyError:
        row, prompt = CONCAT, Prompt(file.concat)
        which = "all instincts at once (row concat)"
    note = (
        "The policy composes a prompt for each input, which a single prompt cannot do. This is "
        f"{which} from the run's verdict, which shows its score."
    )
    texts = prompt.stages or {"": prompt.text}
    messages = {stage: [{"role": "system", "content": text}] for stage, text in texts.items()}
    tree: dict[str, Any] = {"note": note, "policy": f"sha256:{file.digest}", "row": row}
    tree |= {"stages": messages} if prompt.stages else {"messages": messages[""]}
    tree["measured_with"] = file.answer_fields
    return Export({"system-prompt.json": json.dumps(tree, indent=2) + "\n"}, live=False)


FORMS: Mapping[str, Form] = {
    "json": Form("the policy file", lambda file, name: Export({_POLICY: file.text()}, live=True)),
    "dspy": _code("a dspy.Module named Composed", "program.py", "dspy"),
    "langchain": _code("a runnable composed() to put before a chat model", "chain.py", "langchain"),
    "mlflow": _code("a model as code, mapping inputs to prompts", "model.py", "mlflow"),
    "openai-system-prompt": Form(
        "one system message for all inputs, the verdict's best_fixed or concat", _system_prompt
    ),
}
