"""Prompt Codebook Optimization: learn a codebook of short instincts, compose a prompt per input.

    import promptcodebook as pco
    data = pco.load("tickets.jsonl", input="question", target="answer")
    run = pco.optimize(data, reward, lm="http://localhost:8000/v1#my-model")
    run.policy.save("tickets.pco.json")

Names are looked up when first used, so that the import itself stays fast."""

from __future__ import annotations

import importlib
from types import FunctionType

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from promptcodebook.calls import LM, Chat, Message, Reply, Request, Usage
    from promptcodebook.config import Config
    from promptcodebook.data import Dataset, load
    from promptcodebook.deploy.agents.agent import Agent
    from promptcodebook.deploy.audit.report import audit
    from promptcodebook.deploy.online.served_log import feedback
    from promptcodebook.deploy.registry.registry import Registry, open_registry
    from promptcodebook.errors import PcoError
    from promptcodebook.estimation.estimate import Estimate, estimate
    from promptcodebook.lm.scripted import ScriptedLM
    from promptcodebook.policy.policy import Explanation, Policy, Response, load_policy
    from promptcodebook.run.evaluation import (
        Assessment,
        Comparison,
        acompare,
        aevaluate,
        compare,
        evaluate,
    )
    from promptcodebook.run.measuring import Distillation, aeffect, distill, effect
    from promptcodebook.run.optimize import Run, aoptimize, load_run, optimize
    from promptcodebook.store.effects import Effect
    from promptcodebook.tasks.rewards import library as rewards
    from promptcodebook.types import Codebook, Example, Instinct, Output, Prompt, Score, Stage

__all__ = [
    "LM",
    "Agent",
    "Assessment",
    "Chat",
    "Codebook",
    "Comparison",
    "Config",
    "Dataset",
    "Distillation",
    "Effect",
    "Estimate",
    "Example",
    "Explanation",
    "Instinct",
    "Message",
    "Output",
    "PcoError",
    "Policy",
    "Prompt",
    "Registry",
    "Reply",
    "Request",
    "Response",
    "Run",
    "Score",
    "ScriptedLM",
    "Stage",
    "Usage",
    "acompare",
    "aeffect",
    "aevaluate",
    "aoptimize",
    "audit",
    "compare",
    "distill",
    "effect",
    "estimate",
    "evaluate",
    "feedback",
    "load",
    "load_policy",
    "load_run",
    "open_registry",
    "optimize",
    "rewards",
]

# Where the names come from; all others are of `types`.
_HOMES = {
    "calls": "LM Chat Message Reply Request Usage",
    "config": "Config",
    "data": "Dataset load",
    "deploy.agents": "Agent",
    "deploy.audit.report": "audit",
    "deploy.online.served_log": "feedback",
    "deploy.registry.registry": "Registry open_registry",
    "errors": "PcoError",
    "estimation.estimate": "Estimate estimate",
    "lm.scripted": "ScriptedLM",
    "policy.policy": "Explanation Policy Response load_policy",
    "run.evaluation": "Assessment Comparison acompare aevaluate compare evaluate",
    "run.measuring": "Distillation aeffect distill effect",
    "run.optimize": "Run aoptimize load_run optimize",
    "store.effects": "Effect",
}
_OUTER = ("promptcodebook.deploy", "aiohttp")


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("promptcodebook")
    if name not in __all__:
        raise AttributeError(f"module 'promptcodebook' has no attribute {name!r}")
    if name == "rewards":
        return importlib.import_module("promptcodebook.tasks.rewards.library")
    homes = (home for home, names in _HOMES.items() if name in names.split())
    home = f"promptcodebook.{next(homes, 'types')}"
    try:
        found = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(_OUTER):
            raise
        from promptcodebook.errors import MissingExtra

        raise MissingExtra(f"pco.{name}", "serve") from error
    from promptcodebook.errors import names_keywords

    return names_keywords(found) if isinstance(found, FunctionType) else found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
