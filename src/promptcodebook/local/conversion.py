"""A GGUF model of Llama's kind, unpacked to bf16 as a folder that `transformers` reads.

A model that is read almost right trains to almost nothing, so everything that is not known exactly
is refused: biases, experts, stretched positions, and tokenizers other than byte-level BPE over text
that is split as for GPT-2 or SmolLM.

Sources: the GGUF specification, version 3 (ggml, docs/gguf.md); llama.cpp (convert_hf_to_gguf.py)
for the order of the rows of queries and keys, and for `tokenizer.ggml.pre`."""

from __future__ import annotations

import math
import shutil
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from promptcodebook.errors import ConfigError, import_extra
from promptcodebook.local.engine import Weights, identify
from promptcodebook.paths import cache_folder, settle

_SCALARS: Mapping[int, str] = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL, _DEFINED = 3, 4
"""Types of tokens that are never cut into parts: marks, and texts that the vocabulary adds."""
_WORDS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_LONGEST = 1 << 27  # bytes of a field
_MOST = 1 << 24  # values of an array
_MOST_DIMENSIONS = 4
_EXTRA = "grpo"
_VERSION = 1  # of what is written here: a folder of another one is not used
_AT_WORDS, _AT_WORDS_AND_DIGITS = "gpt-2", "smollm"
"""The values of `tokenizer.ggml.pre` that are known: how text is split before the merges."""
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_PLACES = {
    _EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _HEAD: "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`control_tokens` as written; `cache_bytes` of one token at 16 bits, 0 = unknown."""

    name: str
    architecture: str
    context_length: int
    control_tokens: tuple[str, ...]
    cache_bytes: int


class GgufTensor(NamedTuple):
    """`shape`, what varies fastest last; `kind` = its type in ggml; `start` = its first byte."""

    shape: tuple[int, ...]
    kind: int
    start: int


def read_gguf(path: str | Path) -> GgufHeader:
    """Raises ConfigError for what is not a GGUF file or breaks off."""
    fields, _ = _read(path, (_WORDS, _KINDS))
    kind = str(fields.get("general.architecture", ""))

    def count(name: str) -> int:
        value = fields.get(f"{kind}.{name}")
        return value if isinstance(value, int) and value > 0 else 0

    tokens, kinds = (cast("list[Any]", fields.get(key, [])) for key in (_WORDS, _KINDS))
    heads = count("attention.head_count") or 1
    width = count("attention.key_length") or count("embedding_length") // heads
    return GgufHeader(
        str(fields.get("general.name") or Path(path).stem),
        kind,
        count("context_length") or 2048,
        tuple(word for word, of in zip(tokens, kinds, strict=False) if of == _CONTROL and word),
        4 * count("block_count") * (count("attention.head_count_kv") or heads) * width,
    )


def _read(
    path: str | Path, kept: Collection[str] | None = None
) -> tuple[dict[str, object], dict[str, GgufTensor]]:
    """Fields by their keys, of the arrays those that are `kept` (None = all), and tensors by their
    names. ConfigError for what is not a GGUF file or breaks off before the tensors."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError("it does not begin with GGUF")
            version, tensors, count = _unpack(file, "IQQ")
            if version not in (2, 3):
                raise ValueError(f"version {version} is not known here")
            fields: dict[str, object] = {}
            for _ in range(count):
                key = _string(file)
                fields[key] = _value(file, _unpack(file, "I")[0], kept is None or key in kept)
            found: dict[str, GgufTensor] = {}
            for _ in range(tensors):
                name, (size,) = _string(file), _unpack(file, "I")
                if size > _MOST_DIMENSIONS:
                    raise ValueError(f"a tensor of {size} dimensions")
                *shape, inner, offset = _unpack(file, f"{size}QIQ")
                found[name] = GgufTensor(tuple(reversed(shape)), inner, offset)
            step = fields.get("general.alignment", 32)
            if not isinstance(step, int) or step < 1:
                raise ValueError("its alignment is no number")
            begin = -(-file.tell() // step) * step
    except (OSError, struct.error, ValueError, KeyError) as error:
        said = f"{path} cannot be read as a GGUF file: {error}"
        raise ConfigError(said, hint="download it again") from None
    return fields, {name: each._replace(start=begin + each.start) for name, each in found.items()}


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

    name = f"{weights.name}-{identify(weights)[:16]}-{_VERSION}"
    folder = cache_folder() / "models" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{name}.lock")):
        if not folder.is_dir():
            part = folder.with_name(f"{name}.part")
            shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            part.mkdir()
            _Model(Path(weights.source), *_read(weights.source)).write(part)
            settle(part, folder)
    return folder


@dataclass(frozen=True, slots=True)
class _Model:
    source: Path
    fields: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]

    def write(self, folder: Path) -> None:
        """Configuration, tokenizer and weights, as `save_pretrained` writes them."""
        names = self._names()
        kind, split = self._text("tokenizer.ggml.model"), self._text("tokenizer.ggml.pre")
        if kind != "gpt2":
            raise self._refuse(f"its tokenizer is of kind {kind}, and only gpt2 is known here")
        if split not in (_AT_WORDS, _AT_WORDS_AND_DIGITS):
            said = f"its tokenizer splits text as {split} does, which is not known here"
            raise self._refuse(said)
        self._text("tokenizer.chat_template")
        library = self._import("transformers")
        marks = self._marks()
        config = library.LlamaConfig(**self._shape(), **marks)
        tokenizer = self._tokenizer(library)
        config.save_pretrained(folder)
        library.GenerationConfig(**marks).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self._write_weights(names, folder / "model.safetensors")

    def _import(self, module: str) -> Any:
        return import_extra(module, f"training {self.source.name}", _EXTRA)

    def _refuse(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.source.name} cannot be unpacked: {why}",
            hint="train the model that it was made of: --lm hf:OWNER/NAME",
        )

    def _number(self, key: str) -> float:
        value = self.fields.get(key)
        if not isinstance(value, int | float):
            raise self._refuse(f"its {key} is no number")
        return value

    def _count(self, key: str) -> int:
        return int(self._number(key))

    def _text(self, key: str, kind: type = str) -> Any:
        value = self.fields.get(key)
        if not isinstance(value, kind):
            raise self._refuse(f"it has no {key}")
        return value

    def _heads(self) -> tuple[int, int]:
        queries, pairs = "llama.attention.head_count", "llama.attention.head_count_kv"
        return self._count(queries), self._count(pairs if pairs in self.fields else queries)

    def _shape(self) -> Mapping[str, Any]:
        heads, pairs = self._heads()
        hidden = self._count("llama.embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "dtype": "bfloat16",
            "vocab_size": self.tensors[_EMBEDDING].shape[0],
            "hidden_size": hidden,
            "intermediate_size": self._count("llama.feed_forward_length"),
            "num_hidden_layers": self._count("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": pairs,
            "head_dim": hidden // heads,
            "max_position_embeddings": self._count("llama.context_length"),
            "rms_norm_eps": self._number("llama.attention.layer_norm_rms_epsilon"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.fields.get("llama.rope.freq_base", 10000.0),
            },
            "tie_word_embeddings": _HEAD not in self.tensors,
        }

    def _names(self) -> Mapping[str, str]:
        kind = self._text("general.architecture")
        if kind != "llama":
            raise self._refuse(f"its architecture is {kind}, and only llama is known here")
        width = self._count("llama.embedding_length") / self._heads()[0]
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            if self.fields.get(f"llama.{key}", width) != width:
                raise self._refuse(f"its llama.{key} is not {width:g}")
        for key in self.fields:
            if key.startswith("llama.rope.scaling."):
                raise self._refuse(f"it has a {key}")
        wanted = dict(_PLACES)
        for layer in range(self._count("llama.block_count")):
            for theirs, ours in _LAYER.items():
                wanted[f"blk.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
        found = self.tensors.keys()
        if odd := sorted((found ^ wanted.keys()) - {_HEAD}):
            there = "it has a" if odd[0] in found else "it has no"
            raise self._refuse(f"{there} tensor {odd[0]}")
        return {name: wanted[name] for name in found}

    def _marks(self) -> Mapping[str, int]:
        end = self._count("tokenizer.ggml.eos_token_id")
        given = {"bos_token_id": "bos", "pad_token_id": "padding"}
        fields = ((ours, f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in given.items())
        found = {ours: self._count(key) for ours, key in fields if key in self.fields}
        return {"pad_token_id": end, **found, "eos_token_id": end}

    def _tokenizer(self, library: Any) -> Any:
        tokenizers, before = (self._import(f"tokenizers{name}") for name in ("", ".pre_tokenizers"))
        words, kinds = self._text(_WORDS, list), self._text(_KINDS, list)
        merges = [tuple(pair.split(" ")) for pair in self._text("tokenizer.ggml.merges", list)]
        bpe = self._import("tokenizers.models").BPE({w: at for at, w in enumerate(words)}, merges)
        made = tokenizers.Tokenizer(bpe)
        # Text is cut before the merges: at words, as GPT-2 does; or each digit off, too.
        made.pre_tokenizer = before.ByteLevel(add_prefix_space=False)
        if self._text("tokenizer.ggml.pre") == _AT_WORDS_AND_DIGITS:
            digits = before.Digits(individual_digits=True)
            made.pre_tokenizer = before.Sequence([digits, made.pre_tokenizer])
        made.decoder = self._import("tokenizers.decoders").ByteLevel()
        token = tokenizers.AddedToken
        for add, of in ((made.add_special_tokens, _CONTROL), (made.add_tokens, _DEFINED)):
            found = (word for word, kind in zip(words, kinds, strict=True) if kind == of)
            add([token(word, normalized=False, special=of == _CONTROL) for word in found])
        marks = {name.removesuffix("_id"): words[at] for name, at in self._marks().items()}
        tokenizer = library.PreTrainedTokenizerFast(
            tokenizer_object=made,
            clean_up_tokenization_spaces=False,
            model_max_length=self._count("llama.context_length"),
            **marks,
        )
        tokenizer.chat_template = self._text("tokenizer.chat_template")
        return tokenizer

    def _write_weights(self, names: Mapping[str, str], path: Path) -> None:
        torch, save = self._import("torch"), self._import("safetensors.torch").save_file
        heads, pairs = self._heads()
        order = {"attn_q.weight": heads, "attn_k.weight": pairs}
        made: dict[str, Any] = {}
        for name, place in names.items():
            array = self._unpack(name, self.tensors[name])
            if of_heads := order.get(name.partition(".")[2].partition(".")[2]):
                # In the order of `transformers`: of a head the first of all pairs that turn
                # together, then the second of all; the file has each pair side by side.
                rows, columns = array.shape
                paired = array.reshape(of_heads, rows // of_heads // 2, 2, columns)
                array = paired.swapaxes(1, 2).reshape(rows, columns)
            made[place] = torch.from_numpy(array).to(torch.bfloat16).contiguous()
        save(made, path, metadata={"format": "pt"})

    def _unpack(self, name: str, tensor: GgufTensor) -> Any:
        """In 32 bits. ConfigError for a type that is not known, and for a file that breaks off."""
        numpy, gguf = self._import("numpy"), self._import("gguf")
        try:
            kind = gguf.GGMLQuantizationType(tensor.kind)
            shape = gguf.quant_shape_to_byte_shape(tensor.shape, kind)
            data = numpy.fromfile(self.source, "uint8", math.prod(shape), offset=tensor.start)
            return gguf.dequantize(data.reshape(shape), kind)
        except (ValueError, NotImplementedError) as error:
            raise self._refuse(f"{name}: {error}") from error
