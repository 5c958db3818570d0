"""A policy in the forms that other tools take: one file, or a folder of code with the policy in it.

What is code composes a prompt for each input, as the policy does (tests/policy/test_exports.py
holds that it is the very same). What is a text cannot, and says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version

from promptcodebook.errors import ConfigError, PolicyError, did_you_mean
from promptcodebook.policy.file import BEST_FIXED, CONCAT, PolicyFile
from promptcodebook.types import Prompt

_POLICY = "policy.json"


@dataclass(frozen=True, slots=True)
class Export:
    """Files by name. `live` = it composes a prompt for each input; a `folder` holds several files
    that belong together."""

    files: Mapping[str, str]
    live: bool
    folder: bool = False


def export_policy(file: PolicyFile, kind: str, name: str, *, trusted: bool = False) -> Export:
    """The policy as one of KINDS; `name` is what it is called in the files. Raises ConfigError for
    another kind, and for a policy that has a prompt for each stage where code is wanted;
    RunNotTrusted where the code would use a policy that is not `trusted` and must be."""
    if kind not in KINDS:
        raise ConfigError(
            f"cannot export to {kind!r}{did_you_mean(kind, KINDS)}",
            hint=f"--to {' | '.join(KINDS)}",
        )
    made = KINDS[kind](file, re.sub(r"[^\w.@-]+", "-", name))
    if made.folder:
        file.require_trust(name, trusted=trusted)
    return made


def _json(file: PolicyFile, name: str) -> Export:
    return Export({_POLICY: file.text()}, live=True)


def _code(templates: Mapping[str, str]) -> Callable[[PolicyFile, str], Export]:
    """A folder with the policy, and files made of templates by name."""

    def make(file: PolicyFile, name: str) -> Export:
        if file.stages:
            raise ConfigError(
                f"the policy composes a prompt for each of the stages {', '.join(file.stages)}, "
                "and what it is exported to asks a model once",
                hint="--to json, and in a program with these stages: load_policy(...).compose(x)",
            )
        known = {
            "name": name,
            "digest": f"sha256:{file.digest}",
            "version": version("promptcodebook"),
            "how": _how(file),
            "trust": ", trust=True" if file.beyond_sampling else "",
        }
        files = {target: _filled(template, known) for target, template in templates.items()}
        return Export({_POLICY: file.text(), **files}, live=True, folder=True)

    return make


def _how(file: PolicyFile) -> str:
    """What a prompt takes, in words."""
    routing = "an encoder's call" if file.router is None and file.encoder else "no call"
    composing = "a generator's call" if file.compose == "generator" else "no call"
    return f"{routing} routes, {composing} composes"


def _filled(template: str, known: Mapping[str, str]) -> str:
    """In one pass: what is put in is text, never a template."""
    text = resources.files("promptcodebook.exports").joinpath("files", f"{template}.txt")
    return re.sub(r"<<(\w+)>>", lambda found: known[found[1]], text.read_text("utf-8"))


def _one_prompt(file: PolicyFile) -> tuple[str, Prompt]:
    """The row of the verdict that is the policy's best prompt for every input, and the prompt."""
    try:
        return BEST_FIXED, file.fixed_prompt(BEST_FIXED)
    except PolicyError:
        return CONCAT, Prompt(file.concat)


def _says(row: str) -> str:
    """What a single prompt leaves out."""
    which = {
        BEST_FIXED: "the composed prompt that did best for all inputs (row best_fixed)",
        CONCAT: "all instincts at once (row concat)",
    }[row]
    return (
        "One prompt for every input. The policy chooses instincts and composes a prompt for each "
        f"input; that cannot be carried by a single text. This is {which} of the run's verdict, "
        "which says what it scored."
    )


def _system_prompt(file: PolicyFile, name: str) -> Export:
    row, prompt = _one_prompt(file)
    said = {stage: _messages(text) for stage, text in prompt.stages.items()}
    tree = {
        "note": _says(row),
        "policy": f"sha256:{file.digest}",
        "row": row,
        **({"stages": said} if said else {"messages": _messages(prompt.text)}),
    }
    return Export({"system-prompt.json": json.dumps(tree, indent=2) + "\n"}, live=False)


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": prompt}]


def _markdown(file: PolicyFile, name: str) -> Export:
    row, prompt = _one_prompt(file)
    parts = [
        f"# {name}",
        f"`sha256:{file.digest}`, K = {len(file.codebook)}, S = {file.select}. For reading: the "
        "choice of instincts for each input is not in this file (`--to json` has it).",
        "## Instincts",
        *(
            f"### {k}\n\nSuccess {entry.success:.2f}, r̄ {entry.ema:.2f}, selected "
            f"{entry.selected} times{', frozen' if entry.frozen else ''}.\n\n{_fenced(entry.text)}"
            for k, entry in enumerate(file.codebook)
        ),
    ]
    texts = {
        "Encoder θ": file.encoder,
        "Generator φ": file.generator,
        "Before every prompt": file.base_prompt,
        "Output format": file.output_format,
    }
    parts += [f"## {title}\n\n{_fenced(text)}" for title, text in texts.items() if text]
    parts.append(f"## One prompt for every input\n\n{_says(row)}")
    texts = prompt.stages or {"": prompt.text}
    parts += [f"### {stage}\n\n{_fenced(text)}" if stage else _fenced(text)
              for stage, text in texts.items()]  # fmt: skip
    return Export({"codebook.md": "\n\n".join(parts) + "\n"}, live=False)


def _fenced(text: str) -> str:
    """As a block that no line of the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    clean = text.encode(errors="backslashreplace").decode()
    return f"{fence}text\n{clean}\n{fence}"


KINDS: Mapping[str, Callable[[PolicyFile, str], Export]] = {
    "json": _json,
    "markdown": _markdown,
    "dspy": _code({"program.py": "dspy"}),
    "langchain": _code({"chain.py": "langchain"}),
    "promptfoo": _code({"prompts.py": "promptfoo", "promptfooconfig.yaml": "promptfoo-config"}),
    "mlflow": _code({"model.py": "mlflow"}),
    "openai-system-prompt": _system_prompt,
}
"""What a policy can be exported to."""
