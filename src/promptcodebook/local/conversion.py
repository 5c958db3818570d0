"""A GGUF model as a folder that `transformers` reads: its weights unpacked to bf16.

What 4 bits have rounded off stays so. `transformers` does the unpacking; it reads a tokenizer of
GPT-2's kind alike for all models, so the split before it is set here where the file names another.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from promptcodebook.errors import ConfigError, import_extra
from promptcodebook.local.gguf import read_gguf
from promptcodebook.local.weights import Weights, identify
from promptcodebook.paths import cache_folder

__all__ = ["convert_gguf"]

_EXTRA = "grpo"
_DIGITS_APART = ("smollm",)
"""Values of `tokenizer.ggml.pre` under which every digit is a word of its own."""


def convert_gguf(weights: Weights) -> Path:
    """The folder, in the user's cache; made once for a file of these bytes. Takes a minute.

    Raises ConfigError for a file that is not there or that `transformers` cannot unpack, and
    MissingExtra.
    """
    folder = cache_folder() / "models" / f"{weights.name}-{identify(weights)[:16]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        _write(Path(weights.source), part)
        try:
            os.rename(part, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _write(source: Path, folder: Path) -> None:
    what = f"training {source.name}"
    for module in ("gguf", "accelerate"):
        import_extra(module, what, _EXTRA)
    torch: Any = import_extra("torch", what, _EXTRA)
    library: Any = import_extra("transformers", what, _EXTRA)
    place, options = str(source.parent), {"gguf_file": source.name}
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(place, **options)
        model = library.AutoModelForCausalLM.from_pretrained(
            place,
            dtype=torch.float32,
            quantization_config=library.GgufConfig(dequantize=True),
            **options,
        )
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ConfigError(
            f"{source.name} cannot be unpacked: {str(error).splitlines()[0]}",
            hint="train the model that it was made of: hf:OWNER/NAME",
        ) from error
    if read_gguf(source).words in _DIGITS_APART:
        split: Any = import_extra("tokenizers.pre_tokenizers", what, _EXTRA)
        tokenizer.backend_tokenizer.pre_tokenizer = split.Sequence(
            [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
        )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
