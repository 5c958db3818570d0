"""(θ, φ, C, S) as plain JSON: what a policy is on disk.

The file holds what decides a prompt and nothing else (no run id, time, path, cost or model), so
that equal training gives equal bytes. Each instinct carries its success and r̄, because the encoder
reads them when it routes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from promptcodebook.config import Config, load_config
from promptcodebook.errors import PolicyError
from promptcodebook.method.encoder import Standing
from promptcodebook.types import Codebook, Instinct, Parameters

__all__ = ["PolicyFile", "config_of", "read_policy_file"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(min_length=1)
    frozen: bool = False
    success: float = 0.0
    ema: float = 0.0
    selected: int = 0


class PolicyFile(BaseModel):
    """(θ, φ, C, S) and the template set, as written to disk."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["promptcodebook policy 1"] = "promptcodebook policy 1"
    templates: Literal["default", "paper"]
    select: int = Field(ge=1)
    compose: Literal["generator", "verbatim"]
    base_prompt: str
    output_format: str
    input: str = "input"
    encoder: str
    generator: str
    codebook: tuple[_Entry, ...]

    @model_validator(mode="after")
    def _routable(self) -> PolicyFile:
        if self.select > len(self.codebook):
            raise ValueError(
                f"select (S = {self.select}) is larger than the codebook (K = {len(self.codebook)})"
            )
        return self

    @classmethod
    def of(cls, parameters: Parameters, standing: Standing, config: Config) -> PolicyFile:
        """The file of a state; ψ is left out, since deployment drops it."""
        rows = zip(
            parameters.codebook.instincts,
            standing.success,
            standing.ema,
            standing.selected,
            strict=True,
        )
        return cls(
            templates=config.templates,
            select=config.select,
            compose=config.compose,
            base_prompt=config.base_prompt,
            output_format=config.output_format,
            input=config.data.input,
            encoder=parameters.encoder,
            generator=parameters.generator,
            codebook=tuple(
                _Entry(
                    text=c.text, frozen=c.frozen, success=round(s, 6), ema=round(r, 6), selected=n
                )
                for c, s, r, n in rows
            ),
        )

    def text(self) -> str:
        """Stable JSON: same policy, same bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def save(self, target: Path) -> None:
        """Writes the file whole or not at all."""
        fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            fresh.write_text(self.text(), "utf-8")
            fresh.replace(target)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise PolicyError(
                f"cannot write the policy to {target}: {error.strerror}",
                hint="choose a folder that exists and has space",
            ) from error

    @property
    def parameters(self) -> Parameters:
        book = Codebook(tuple(Instinct(e.text, e.frozen) for e in self.codebook))
        return Parameters(self.encoder, self.generator, book, critic="")

    @property
    def standing(self) -> Standing:
        return Standing(
            tuple(e.ema for e in self.codebook),
            tuple(e.success for e in self.codebook),
            tuple(e.selected for e in self.codebook),
        )


def read_policy_file(path: Path) -> PolicyFile:
    """The policy at `path`. Raises PolicyError with file and reason."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise PolicyError(
            f"no policy file at {path}", hint="pco runs list shows the runs that hold one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"cannot read the policy file {path}: {error}") from error
    try:
        return PolicyFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise PolicyError(
            f"{path} is not a policy file: {where}: {first['msg']}",
            hint="it must have been written by policy.save or `pco train`",
        ) from None


def config_of(file: PolicyFile, layers: Mapping[str, Any]) -> Config:
    """The configuration a policy file runs under."""
    fixed = {
        "size": len(file.codebook),
        "select": file.select,
        "templates": file.templates,
        "compose": file.compose,
        "base_prompt": file.base_prompt,
        "output_format": file.output_format,
        "data": {"input": file.input},
        "encoder": {"mode": "learned" if file.encoder else "none"},
    }
    return load_config(layers, fixed, where="the policy file")
