"""Prompt Codebook Optimization: learn a codebook of short instincts, compose a prompt per input.

    import promptcodebook as pco
    data = pco.load("tickets.jsonl", input="question", target="answer")
    run = pco.optimize(data, reward, lm="http://localhost:8000/v1#my-model")
    run.policy.save("tickets.pco.json")

Names are looked up when first used, so that the import itself stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.data import Dataset, load
    from promptcodebook.errors import PcoError
    from promptcodebook.lm.base import LM, Chat, Reply, Request
    from promptcodebook.lm.scripted import ScriptedLM
    from promptcodebook.session.optimize import Run, aoptimize, optimize
    from promptcodebook.session.policy import Policy, load_policy
    from promptcodebook.types import Codebook, Example, Instinct, Message, Output, Score, Stage

__all__ = [
    "LM",
    "Chat",
    "Codebook",
    "Config",
    "Dataset",
    "Example",
    "Instinct",
    "Message",
    "Output",
    "PcoError",
    "Policy",
    "Reply",
    "Request",
    "Run",
    "Score",
    "ScriptedLM",
    "Stage",
    "aoptimize",
    "load",
    "load_policy",
    "optimize",
]

_HOME = {
    "LM": "lm.base",
    "Chat": "lm.base",
    "Reply": "lm.base",
    "Request": "lm.base",
    "ScriptedLM": "lm.scripted",
    "Config": "config",
    "Dataset": "data",
    "load": "data",
    "PcoError": "errors",
    "Run": "session.optimize",
    "aoptimize": "session.optimize",
    "optimize": "session.optimize",
    "Policy": "session.policy",
    "load_policy": "session.policy",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from promptcodebook.version import version

        return version()
    if name not in __all__:
        raise AttributeError(f"module 'promptcodebook' has no attribute {name!r}")
    module = importlib.import_module(f"promptcodebook.{_HOME.get(name, 'types')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
