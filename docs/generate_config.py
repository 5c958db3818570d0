"""Writes docs/config.md from the settings' own docstrings: python docs/generate_config.py"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

from promptcodebook.cli.plan import usual_settings
from promptcodebook.config.loading import Key, describe, describe_group

_HEAD = """# Settings

Written by `python docs/generate_config.py` from the settings' docstrings. `pco config --all`
prints all settings.

Set a key in `pco.toml`, where a group is a table, or on the command line (`--set key=value`). In
Python, a key is an argument of `pco.optimize` or part of its `config`. Precedence: command line >
`PCO_*` variables > `pco.toml` > preset.

```toml
size = 12

[roles.critic]
model = "openai/MODEL"
```

"none" means that the key is not set; `--set key=none` removes a value (but "none" is a valid value
of `encoder.mode` and `explore.policy`). The defaults come from the preset `default`.
`config/presets.toml` says where the presets differ and why.

Parentheses contain the paper's symbol, accepted values and unit, unless the description names them.

## Usual settings

`pco init` writes these settings into `pco.toml`.

"""
_SYMBOLS = {
    "size": "K",
    "select": "S",
    "compose": "G_φ",
    "executor": "M",
    "reward": "r",
    "explore.policy": "SuccWtd",
    "explore.epsilon": "ε₀",
    "explore.epsilon_min": "ε_min",
    "explore.gamma": "γ",
    "explore.tau": "τ_soft",
    "explore.alpha": "α",
    "router.kind": "E_θ",
    "encoder.mode": "E_θ, θ",
    "critic.trainable": "ψ",
    "critic.penalty_weight": "ρ",
    "update.mode": "Algorithm 1",
    "update.batch_size": "batch size",
    "update.epochs": "T",
    "update.text_updates": "LLM_upd",
    "update.encoder_on_explored": "g_θ",
    "init.instincts": "C",
}
_UNITS = {
    "verdict_examples": "examples",
    "samples": "answers",
    "concurrency": "calls",
    "timeout": "seconds",
    "retries": "tries",
    "max_reply_mb": "MB",
    "data.fractions": "shares",
    "roles.ROLE.top_p": "probability",
    "roles.ROLE.max_tokens": "tokens",
    "prices.MODEL.prompt": "US$/Mtok",
    "prices.MODEL.completion": "US$/Mtok",
    "prices.MODEL.cached": "US$/Mtok",
    "explore.epsilon": "probability",
    "explore.epsilon_min": "probability",
    "explore.gamma": "factor per epoch",
    "router.scale": "standard deviations",
    "router.floor": "share of routes",
    "router.least": "instincts",
    "encoder.max_fallback": "share of routes",
    "update.batch_size": "examples",
    "update.steps_per_epoch": "batches",
    "update.epochs": "epochs",
    "update.max_gradients": "gradients",
    "update.instinct_words": "words",
    "update.directive_words": "words",
    "validation.every": "batches",
    "validation.subset": "examples",
    "validation.examples": "examples",
    "validation.finalists": "states",
    "validation.patience": "validations",
    "validation.target_score": "reward",
    "gepa.rollouts": "rollouts",
    "gepa.minibatch": "examples",
    "gepa.merges": "merges",
    "mipro.demos": "examples",
    "budget.calls": "calls",
    "budget.tokens": "tokens",
    "budget.usd": "US dollars",
    "budget.seconds": "seconds",
    "budget.reserve_for_verdict": "share of the limit",
    "user_code.threads": "calls at once",
    "user_code.seconds": "seconds",
}
"""Both by key; one that there is no longer is an error."""
_SHORT = {
    r"whole number": "integer",
    r"number \(at least (\S+), at most (\S+)\)": r"\1–\2",
    r" \(at least (\S+)\)": r" ≥\1",
    r" \(above (\S+)\)": r" >\1",
    r" or none": "/none",
}
"""How a kind is written here."""
_EVIDENT = ("string", "integer", "true or false", "table", "list of strings", "list of numbers")
"""Kinds that a default shows."""


def page() -> str:
    """The whole of docs/config.md. Raises ValueError for a symbol or unit of an unknown key."""
    if lost := {*_SYMBOLS, *_UNITS} - {key.key for key in describe()}:
        raise ValueError(f"docs/generate_config.py names unknown keys: {', '.join(sorted(lost))}")
    usual = usual_settings(describe())
    parts = [_HEAD + "\n".join(map(_line, usual)) + "\n"]
    others = [key for key in describe() if key not in usual]
    for group, keys in groupby(others, key=lambda key: key.group):
        title, text = (f"`{group}`", describe_group(group)) if group else ("The run", "")
        lines = "\n".join(map(_line, keys))
        parts.append("\n\n".join([f"## {title}", *([text] if text else []), lines]) + "\n")
    return "\n".join(parts)


def _line(key: Key) -> str:
    default = f"={key.default}" if key.default else ""
    kind = key.kind if default else f"{key.kind}, must be given"
    for pattern, short in _SHORT.items():
        kind = re.sub(pattern, short, kind)
    if re.fullmatch(r"[\d.]+", key.default or ""):
        kind = re.sub(r"^(integer|number) (?=[≥>])", "", kind)
    symbol, unit = (names.get(key.key, "") for names in (_SYMBOLS, _UNITS))
    of = ", ".join(filter(None, [_unsaid(symbol, key.text), kind, _unsaid(unit, key.text)]))
    beside = "" if default and of in _EVIDENT else f" ({of})"
    return f"- `{key.key}{default}`{beside}: {key.text}"


def _unsaid(name: str, text: str) -> str:
    """The symbol or unit, unless the text names it."""
    return "" if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.I) else name


if __name__ == "__main__":
    target = Path(__file__).parent / "config.md"
    target.write_text(page(), "utf-8")
    sys.stderr.write(f"{target}\n")
