"""What a GGUF file says of its model; and the model unpacked to bf16, to train it.

`transformers` reads the weights. The tokenizer is made here: theirs does not take "½" for a digit,
as the engine does. A model that is read almost right trains to almost nothing. So a tokenizer is
refused unless it is byte-level BPE over text that is split as for GPT-2 or SmolLM.

Source: the GGUF specification, version 3 (ggml, docs/gguf.md)."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from promptcodebook.base.paths import cache_folder, settle
from promptcodebook.errors import ConfigError, import_extra
from promptcodebook.models.local.engine import Weights, identify

_SCALARS: Mapping[int, str] = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Types of tokens that are never cut into parts: marks, and texts that the vocabulary adds.
_CONTROL, _DEFINED = 3, 4
_WORDS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_LONGEST = 1 << 27  # bytes of a field
_MOST = 1 << 24  # values of an array
_MERGES = "tokenizer.ggml.merges"
# The values of `tokenizer.ggml.pre` that are known: how text is split before the merges.
_AT_WORDS, _AT_WORDS_AND_DIGITS = "gpt-2", "smollm"
_VERSION = 2  # of what is written here: a folder of another one is not used


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`control_tokens` as written; `cache_bytes` of one token at 16 bits, 0 = unknown."""

    context_length: int
    control_tokens: tuple[str, ...]
    cache_bytes: int


def read_gguf(path: str | Path) -> GgufHeader:
    """Raises ConfigError for what is not a GGUF file or breaks off."""
    fields = _read(path)
    kind = str(fields.get("general.architecture", ""))

    def count(name: str) -> int:
        value = fields.get(f"{kind}.{name}")
        return value if isinstance(value, int) and value > 0 else 0

    tokens, kinds = (cast("list[Any]", fields.get(key, [])) for key in (_WORDS, _KINDS))
    heads = count("attention.head_count") or 1
    width = count("attention.key_length") or count("embedding_length") // heads
    return GgufHeader(
        count("context_length") or 2048,
        tuple(word for word, of in zip(tokens, kinds, strict=False) if of == _CONTROL and word),
        4 * count("block_count") * (count("attention.head_count_kv") or heads) * width,
    )


def _read(path: str | Path) -> dict[str, object]:
    """Fields by their keys; of the arrays those of the vocabulary alone."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError("it does not begin with GGUF")
            version, _, count = _unpack(file, "IQQ")
            if version not in (2, 3):
                raise ValueError(f"version {version} is not known here")
            fields: dict[str, object] = {}
            for _ in range(count):
                key = _string(file)
                fields[key] = _value(file, _unpack(file, "I")[0], key in (_WORDS, _KINDS, _MERGES))
    except (OSError, struct.error, ValueError, KeyError) as error:
        message = f"{path} cannot be read as a GGUF file: {error}"
        raise ConfigError(message, hint="download it again") from None
    return fields


def _value(file: BinaryIO, kind: int, kept: bool) -> object:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])[0]
    inner, count = _unpack(file, "IQ")
    if count > _MOST:
        raise ValueError(f"an array of {count} values is longer than any model needs")
    if inner in _SCALARS:
        values = list(_unpack(file, f"{count}{_SCALARS[inner]}"))
    else:
        values = [_value(file, inner, kept) for _ in range(count)]
    return values if kept else None


def _string(file: BinaryIO) -> str:
    return _take(file, _unpack(file, "Q")[0]).decode("utf-8", "replace")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", _take(file, struct.calcsize(f"<{form}")))


def _take(file: BinaryIO, size: int) -> bytes:
    if size > _LONGEST:
        raise ValueError(f"a field of {size} bytes is longer than any model needs")
    data = file.read(size)
    if len(data) < size:
        raise ValueError("it breaks off")
    return data


def convert_gguf(weights: Weights) -> Path:
    """The folder, in the user's cache; made once for a file of these bytes. Raises ConfigError for
    a file that is not there or is no model that is known here, and MissingExtra."""
    from filelock import FileLock  # takes long to import

    file = Path(weights.source)

    def library(module: str) -> Any:
        return import_extra(module, f"training {file.name}", "grpo")

    name = f"{weights.name}-{identify(weights)[:16]}-{_VERSION}"
    folder = cache_folder() / "models" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{name}.lock")):
        if folder.is_dir():
            return folder
        part = folder.with_name(f"{name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        fields = _read(file)
        try:
            tokenizer = _tokenizer(fields, library)
            transformers = library("transformers")
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(file.parent),
                gguf_file=file.name,
                dtype="bfloat16",
                quantization_config=transformers.GgufConfig(dequantize=True),
            )
        except (ValueError, LookupError, NotImplementedError, OSError) as error:
            message = f"{file.name} cannot be unpacked: {error}"
            hint = "train the model that it was made of: --lm hf:OWNER/NAME"
            raise ConfigError(message, hint=hint) from error
        marks = ("bos_token_id", "eos_token_id", "pad_token_id")
        kept = {mark: getattr(tokenizer, mark) for mark in marks}
        model.generation_config = transformers.GenerationConfig(**kept)
        tokenizer.save_pretrained(part)
        model.save_pretrained(part)
        settle(part, folder)
    return folder


def _tokenizer(fields: Mapping[str, Any], library: Callable[[str], Any]) -> Any:
    """Raises ValueError for what is not known here."""
    wanted = (
        ("general.architecture", ("llama",)),
        ("tokenizer.ggml.model", ("gpt2",)),
        ("tokenizer.ggml.pre", (_AT_WORDS, _AT_WORDS_AND_DIGITS)),
    )
    for key, known in wanted:
        if fields.get(key) not in known:
            raise ValueError(f"its {key} is {fields.get(key)}, not {' or '.join(known)}")
    end = "tokenizer.ggml.eos_token_id"
    needed = (_WORDS, _KINDS, _MERGES, end, "tokenizer.chat_template", "llama.context_length")
    # Where the first is missing, `transformers` leaves queries and keys in another order.
    for key in ("llama.attention.head_count_kv", *needed):
        if key not in fields:
            raise ValueError(f"it has no {key}")
    tokenizers, before = (library(f"tokenizers{name}") for name in ("", ".pre_tokenizers"))
    words, kinds = fields[_WORDS], fields[_KINDS]
    merges = [tuple(pair.split(" ")) for pair in fields[_MERGES]]
    bpe = library("tokenizers.models").BPE({w: at for at, w in enumerate(words)}, merges)
    made = tokenizers.Tokenizer(bpe)
    # Text is cut before the merges: at words, as GPT-2 does; or each digit off, too.
    made.pre_tokenizer = before.ByteLevel(add_prefix_space=False)
    if fields["tokenizer.ggml.pre"] == _AT_WORDS_AND_DIGITS:
        digits = before.Digits(individual_digits=True)
        made.pre_tokenizer = before.Sequence([digits, made.pre_tokenizer])
    made.decoder = library("tokenizers.decoders").ByteLevel()
    token = tokenizers.AddedToken
    for add, of in ((made.add_special_tokens, _CONTROL), (made.add_tokens, _DEFINED)):
        found = (word for word, kind in zip(words, kinds, strict=True) if kind == of)
        add([token(word, normalized=False, special=of == _CONTROL) for word in found])
    marks = {"pad_token": end, "eos_token": end}
    for mark, name in (("bos_token", "bos"), ("pad_token", "padding")):
        if f"tokenizer.ggml.{name}_token_id" in fields:
            marks[mark] = f"tokenizer.ggml.{name}_token_id"
    tokenizer = library("transformers").PreTrainedTokenizerFast(
        tokenizer_object=made,
        clean_up_tokenization_spaces=False,
        model_max_length=fields["llama.context_length"],
        **{mark: words[fields[key]] for mark, key in marks.items()},
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"]
    return tokenizer
