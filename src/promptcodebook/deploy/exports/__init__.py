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

from promptcodebook.base.text import fenced, markdown
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


def export_policy(file: PolicyFile, kind: str, name: str, *, trusted: bool = False) -> Export:
    """The policy as one of KINDS; `name` is its name in the files. ConfigError: another kind, or
    code of a policy with prompts by stage; RunNotTrusted unless `trusted`."""
    if kind not in KINDS:
        message = f"cannot export to {kind!r}{did_you_mean(kind, KINDS)}"
        raise ConfigError(message, hint=f"--to {' | '.join(KINDS)}")
    made = KINDS[kind](file, re.sub(r"[^\w.@-]+", "-", name))
    if made.folder:
        file.require_trust(name, trusted=trusted)
    return made


def _code(templates: Mapping[str, str]) -> Callable[[PolicyFile, str], Export]:
    def make(file: PolicyFile, name: str) -> Export:
        if file.stages:
            raise ConfigError(
                f"the policy composes a prompt for each of the stages {', '.join(file.stages)}, "
                "and what it is exported to asks a model once",
                hint="--to json, and in a program with these stages: load_policy(...).compose(x)",
            )
        calls = ", ".join(_CALLS[role] for role in file.asks)
        fields = file.answer_fields
        known = {
            "name": name,
            "digest": f"sha256:{file.digest}",
            "version": version("promptcodebook"),
            "how": calls or "no call routes or composes, so that no model has to be named",
            "trust": ", trust=True" if file.beyond_sampling else "",
            "fields": _names_of(fields) or "no field of its own",
            "config": _as_yaml(fields),
        }
        files = {_POLICY: file.text()}
        for target, template in templates.items():
            text = resources.files("promptcodebook.deploy.exports").joinpath(
                "files", f"{template}.txt"
            )
            # In one pass: what is put in is text, never a template.
            files[target] = re.sub(r"<<(\w+)>>", lambda m: known[m[1]], text.read_text("utf-8"))
        return Export(files, live=True, folder=True)

    return make


def _names_of(fields: Mapping[str, Any]) -> str:
    """Their names, as they may stand in a comment of any language."""
    return ", ".join(re.sub(r"[^\w.-]", "?", name) for name in fields)


def _as_yaml(fields: Mapping[str, Any]) -> str:
    """Fields for a file of promptfoo's, in which Nunjucks renders each text."""
    text = json.dumps(fields)  # in which braces follow each other only within a text
    return re.sub(r"\{(?=[{%#])|#(?=\})", lambda found: "{{ '" + found[0] + "' }}", text)


def _one_prompt(file: PolicyFile) -> tuple[str, Prompt, str]:
    """The policy's best prompt for every input: its row of the verdict, it, and what it lacks."""
    try:
        row, prompt = BEST_FIXED, file.fixed_prompt(BEST_FIXED)
        which = "the composed prompt that did best for all inputs (row best_fixed)"
    except PolicyError:
        row, prompt = CONCAT, Prompt(file.concat)
        which = "all instincts at once (row concat)"
    about = (
        "One prompt for every input. The policy chooses instincts and composes a prompt for each "
        f"input; that cannot be carried by a single text. This is {which} of the run's verdict, "
        "which says what it scored."
    )
    return row, prompt, about


def _system_prompt(file: PolicyFile, name: str) -> Export:
    row, prompt, about = _one_prompt(file)
    texts = prompt.stages or {"": prompt.text}
    said = {stage: [{"role": "system", "content": text}] for stage, text in texts.items()}
    messages = {"stages": said} if prompt.stages else {"messages": said[""]}
    tree = {"note": about, "policy": f"sha256:{file.digest}", "row": row, **messages}
    tree["measured_with"] = file.answer_fields
    return Export({"system-prompt.json": json.dumps(tree, indent=2) + "\n"}, live=False)


def _markdown(file: PolicyFile, name: str) -> Export:
    _, prompt, about = _one_prompt(file)
    parts = [
        f"# {name}",
        f"`sha256:{file.digest}`, K = {len(file.codebook)}, S = {file.select}. For reading: the "
        "choice of instincts for each input is not in this file (`--to json` has it).",
        "## Instincts",
        *(
            f"### {k}\n\nSuccess {entry.success:.2f}, selected {entry.selected} times"
            f"{', frozen' if entry.frozen else ''}.\n\n{fenced(entry.text)}"
            for k, entry in enumerate(file.codebook)
        ),
    ]
    texts = {
        "Encoder": file.encoder,
        "Generator": file.generator,
        "Before every prompt": file.base_prompt,
        "Output format": file.output_format,
    }
    parts += [f"## {title}\n\n{fenced(text)}" for title, text in texts.items() if text]
    parts.append(f"## Measured with\n\n{fenced(json.dumps(file.answer_fields, indent=2))}")
    parts.append(f"## One prompt for every input\n\n{about}")
    for stage, text in (prompt.stages or {"": prompt.text}).items():
        parts.append(f"### {markdown(stage)}\n\n{fenced(text)}" if stage else fenced(text))
    return Export({"codebook.md": "\n\n".join(parts) + "\n"}, live=False)


KINDS: Mapping[str, Callable[[PolicyFile, str], Export]] = {
    "json": lambda file, name: Export({_POLICY: file.text()}, live=True),
    "markdown": _markdown,
    "dspy": _code({"program.py": "dspy"}),
    "langchain": _code({"chain.py": "langchain"}),
    "promptfoo": _code({"prompts.py": "promptfoo", "promptfooconfig.yaml": "promptfoo-config"}),
    "mlflow": _code({"model.py": "mlflow"}),
    "openai-system-prompt": _system_prompt,
}
"""What a policy can be exported to."""
