"""Tokenizers as users have them, each trained in a moment and saved as a `tokenizer.json`."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = "\n".join(
    f"The {n}th naïve fox jumps over {n * n} lazy dogs; 狐は{n}回跳ぶ. 🦊\n\n    indented = {n}"
    for n in range(900)
)


def byte_level() -> Tokenizer:
    """As GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def llama_like() -> Tokenizer:
    """As Llama 2's: a space is put before each text, bytes stand in for unknown characters, and `<s>` is added."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, show_progress=False, max_token_length=8
    )
    tokenizer.train_from_iterator(TEXT.split("\n"), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT's, which keeps neither case nor white space."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


#: By name: the function that makes it, and its end of text.
MADE = {
    "byte-level": (byte_level, "<|endoftext|>"),
    "llama": (llama_like, "</s>"),
    "wordpiece": (word_piece, "[SEP]"),
}


def save(folder: Path, name: str, *, config: bool = True) -> Path:
    """Write a tokenizer into a new folder and return that; `config`: with the file that names its end of text."""
    make, end = MADE[name]
    folder.mkdir(parents=True)
    make().save(str(folder / "tokenizer.json"))
    if config:
        # As older versions of transformers write it: the token is a mapping.
        (folder / "tokenizer_config.json").write_text(
            json.dumps(
                {"eos_token": {"content": end, "__type": "AddedToken"}, "tokenizer_class": "LlamaTokenizer"}
            )
        )
    return folder
