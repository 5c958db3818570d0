"""Writes a tiny Llama with random weights, a tokenizer and a chat template into a folder; and GGUF
files as a test wants them.

Run as a program (`python tiny.py FOLDER`), so that torch stays out of the tests' own process. A
random model would never end a reply. One coordinate is therefore wired: it is set in the embedding
of every second word, no layer writes to it, and the end of the turn reads nothing else. So a
reply ends exactly after such a word: it is never empty, and a drawn one seldom reaches its cap.
"""

from __future__ import annotations

import string
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BEGIN, TURN, END = "<|pad|>", "<|begin|>", "<|turn|>", "<|end|>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    f"{TURN}{{{{ m['role'] }}}}\n{{{{ m['content'] }}}}{{{{ eos_token }}}}"
    f"{{% endfor %}}{{% if add_generation_prompt %}}{TURN}assistant\n{{% endif %}}"
)
_SENTENCES = (
    "Answer the question in one short sentence.",
    "A river carries water and boats to the sea.",
    "Bread is baked from flour, water and a little salt.",
    "A map shows where the roads and bridges lead.",
    "The lamp gives light when the night is dark.",
    "The clock in the tower counts the hours of the day.",
)
_WIDTH = 64


def make(folder: Path) -> None:
    """The model and its tokenizer, as `transformers` saves them (about half a megabyte)."""
    tokenizer = _tokenizer()
    model = _model(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[PAD, BEGIN, TURN, END],
        # Every byte is a token: any text goes in, and any bytes come out.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(_SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[TURN],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    marks = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        **marks,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        _wire_the_end(model, tokenizer)
    # Without do_sample the server would draw nothing, whatever temperature a request asks for.
    model.generation_config = GenerationConfig(do_sample=True, **marks)
    return model


def _wire_the_end(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    embedding = model.model.embed_tokens.weight
    embedding[:, 0] = -0.1
    embedding[_closing(tokenizer), 0] = 0.1
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0, :] = 0.0
        layer.mlp.down_proj.weight[0, :] = 0.0
    head = model.lm_head.weight
    head[:, 0] = 0.0
    head[tokenizer.eos_token_id, :] = 0.0
    head[tokenizer.eos_token_id, 0] = 10.0


def _closing(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Every second token of two letters or more: about one in seven of all."""
    letters = set(string.ascii_letters)
    texts = ((i, tokenizer.decode([i]).strip()) for i in range(len(tokenizer)))
    words = [i for i, text in texts if len(text) > 1 and letters.issuperset(text)]
    return words[::2]


_INT, _FLOAT, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9


def write_gguf(path: Path, fields: Mapping[str, Any]) -> None:
    """The header of a file without weights, with fields of a few kinds."""
    head = [b"GGUF", struct.pack("<IQQ", 3, 0, len(fields))]
    path.write_bytes(b"".join([*head, *(_text(key) + _value(v) for key, v in fields.items())]))


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    kind, data = _typed(value[0] if isinstance(value, list) else value)
    if not isinstance(value, list):
        return struct.pack("<I", kind) + data
    items = b"".join(_typed(each)[1] for each in value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items


def _typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return _INT, struct.pack("<I", value)
    if isinstance(value, float):
        return _FLOAT, struct.pack("<f", value)
    return _STRING, _text(value)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
