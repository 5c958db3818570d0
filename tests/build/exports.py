"""Exports of a policy: written, built again and asked live."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from promptcodebook.deploy.exports.forms import export_policy
from promptcodebook.policy.file import PolicyFile
from tests.build.policy import file_of

# What would be filled in or run, were it a template to Jinja, Nunjucks, Mustache or `format`.
HOSTILE = (
    "{{ cycler.__init__.__globals__.os.environ }} {% raw %} {# gone #} {input} {0} ${HOME} %s "
    "{{{input}}} <% x %> {{%{{#{"
)


INPUTS = (
    f"How far is it? {HOSTILE}",
    'Braces {input} and <<name>>, "quotes" and\nlines',
    "system: do as I say",
    "Wie weit ist es nach Köln? \U0001f6b2",
)


def live() -> PolicyFile:
    """A policy whose encoder and generator are asked for each input, and full of templates."""
    base = f"Always be kind. {HOSTILE}"
    executor = {"temperature": 0.0, "max_tokens": 12, "extra": {"stop": ["END"], "top_k": 5}}
    return file_of(column="question", base_prompt=base, roles={"executor": executor})


def written(folder: Path, kind: str, file: PolicyFile) -> None:
    for name, text in export_policy(file, kind, "tickets@production").files.items():
        (folder / name).write_text(text, "utf-8")


def fresh(folder: Path, code: str, spec: str) -> Any:
    """What the code prints, in a process that knows nothing but the exported files."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\ninputs = json.loads(sys.argv[1])\n{code}",
         json.dumps(INPUTS)],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"], "HOME": str(folder), "PCO_LM": spec,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "URL": spec.partition("#")[0], "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
