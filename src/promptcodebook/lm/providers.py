"""Providers whose servers answer nobody without a key: told before anything is begun."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from promptcodebook.errors import ConfigError
from promptcodebook.lm.spec import Spec, parse_spec

_HOSTS = frozenset(
    {
        "api.anthropic.com",
        "api.cohere.ai",
        "api.deepseek.com",
        "api.fireworks.ai",
        "api.groq.com",
        "api.mistral.ai",
        "api.openai.com",
        "api.perplexity.ai",
        "api.together.xyz",
        "api.x.ai",
        "generativelanguage.googleapis.com",
        "openrouter.ai",
    }
)
"""Their keys come from the variables of the spec (`Spec.key_names`)."""
_LITELLM: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": (
        "FIREWORKS_API_KEY",
        "FIREWORKS_AI_API_KEY",
        "FIREWORKSAI_API_KEY",
        "FIREWORKS_AI_TOKEN",
    ),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY", "OR_API_KEY"),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "together_ai": ("TOGETHER_API_KEY", "TOGETHERAI_API_KEY", "TOGETHER_AI_API_KEY"),
    "xai": ("XAI_API_KEY",),
}
"""By provider, the variables that litellm itself reads."""


def require_keys(
    specs: Mapping[str, Mapping[str, str]], environment: Mapping[str, str] | None = None
) -> None:
    """Raises ConfigError for the first spec whose provider wants a key that is nowhere set.

    `specs` maps each to its headers; one that brings its key in a header is left to it.
    """
    for text, headers in specs.items():
        names = missing_key(text, headers.values(), environment)
        if names:
            raise ConfigError(
                f"{text} needs a key, and {' or '.join(names)} is not set",
                hint=f"export {names[0]}=...",
            )


def missing_key(
    spec_text: str, header_values: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The variables one of which should hold the spec's key and none does; () where all is well,
    or where the address is not known to want one. ConfigError for a bad spec."""
    env = os.environ if environment is None else environment
    names = _wanted(parse_spec(spec_text, env))
    given = any(env.get(name, "").strip() for name in names)
    return () if given or any(value.startswith("$") for value in header_values) else names


def _wanted(spec: Spec) -> tuple[str, ...]:
    """The variables that a key is looked for in, where there must be one."""
    if spec.kind == "litellm":
        return _LITELLM.get(spec.model.partition("/")[0], ())
    return spec.key_names if urlsplit(spec.base_url).hostname in _HOSTS else ()
