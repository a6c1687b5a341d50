"""The tokenizer of packed data as a HuggingFace tokenizer, for exported models."""

from typing import Any

from trainables.data.kind import BYTES_END
from trainables.data.packing.tokenizer import END_OF_TEXT
from trainables.data.store.token_store import TokenStore
from trainables.errors import DataError


def huggingface_tokenizer(store: TokenStore, context: int) -> Any:
    """Return the tokenizer of a store as HuggingFace's fast tokenizer; None if tokens are symbols.

    It gives the ids of training, also for text that spells the end-of-text token, and adds no token. A damaged
    `tokenizer.json` is a DataError.
    """
    kind = store.manifest["spec"].get("tokenizer")
    if kind is None:
        return None
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    if kind == "bytes":
        tokenizer = _bytes_tokenizer()
    else:
        path = store.path / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:
            raise DataError(
                f"the tokenizer {path} cannot be read ({error}); remove the folder {store.path}, and it is packed again"
            ) from error
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def _bytes_tokenizer() -> Any:
    """Return byte-level BPE without merges: the id of a byte is its value, end of text follows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, END_OF_TEXT: BYTES_END}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer
