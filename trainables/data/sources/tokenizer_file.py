"""The user's own tokenizer: a `tokenizer.json` of HuggingFace's `tokenizers`, and the end of text of its folder."""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import near_misses, some
from trainables.data.sources.files import file_sha256, unreadable
from trainables.errors import DataError

#: The file of a tokenizer, and the one beside it that names its end of text.
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
#: Files of a folder that has a tokenizer of another library.
_OTHERS = ("*.model", "*.tiktoken", "vocab.json", "vocab.txt", "merges.txt")
#: Tokenizers that are kept parsed; one of 9 MB takes 0.3 s to parse.
_KEPT = 4


class TokenizerFile(NamedTuple):
    """What is known about a tokenizer; `vocabulary` is its largest id + 1, `end_of_text` an id."""

    path: Path
    sha256: str
    vocabulary: int
    end_of_text: int


def read_tokenizer(path: str, end_of_text: str | None, base: Path) -> TokenizerFile:
    """Read the tokenizer of a folder with `tokenizer.json`, or of that file; a relative path starts from `base`.

    `end_of_text` is the token that ends a document; by default the `eos_token` of `tokenizer_config.json` beside it.

    Raises:
        DataError: there is no such tokenizer, it cannot be read, or it has no token that ends a document.
    """
    file = find_tokenizer(path, base)
    sha256 = file_sha256(file)
    tokenizer = load_tokenizer(file)
    return TokenizerFile(
        file,
        sha256,
        largest_id(tokenizer) + 1,
        _end_of_text(tokenizer, file, end_of_text),
    )


def load_tokenizer(file: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a file, as it encodes text for training.

    It adds no token, keeps text that spells a special token as text, and neither truncates, pads nor draws at random
    (BPE dropout), whatever its file says.

    Raises:
        DataError: the file cannot be read.
    """
    return _loaded(file, file_sha256(file))


@functools.lru_cache(maxsize=_KEPT)
def _loaded(file: Path, sha256: str) -> Any:
    from tokenizers import Tokenizer

    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(file, error) from error
    except ValueError as error:
        raise DataError(
            f"data.tokenizer: {file} is no JSON, or is damaged ({error}); copy it again. If it is of another library, "
            f"{_save_it(str(file.parent))}"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise DataError(
            f"data.tokenizer: {file} has no `model`, so it is no tokenizer of the library `tokenizers`; name the "
            f"folder with the {TOKENIZER} of a model"
        )
    try:
        content |= {"truncation": None, "padding": None, "post_processor": None}
        if "dropout" in content["model"]:
            content["model"]["dropout"] = None
        tokenizer = Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    # The library raises plain `Exception`.
    except Exception as error:
        raise DataError(
            f"data.tokenizer: {file} is no tokenizer that the library `tokenizers` reads ({type(error).__name__}: "
            f"{error}); {_save_it(str(file.parent))}"
        ) from error
    if not tokenizer.get_vocab_size():
        raise DataError(f"data.tokenizer: {file} has no tokens; name the tokenizer of a model")
    tokenizer.encode_special_tokens = True
    return tokenizer


def largest_id(tokenizer: Any) -> int:
    """Return the largest id of a tokenizer, which may be above the number of its tokens."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values()))


def find_tokenizer(path: str, base: Path) -> Path:
    """Return the `tokenizer.json` that a path names; a DataError with the fix if there is none."""
    place = base / Path(path).expanduser()
    if place.is_file():
        return place
    if (place / TOKENIZER).is_file():
        return place / TOKENIZER
    if not place.is_dir():
        near = near_misses(place.name, ["bytes", "bpe"])
        hint = f"did you mean `{near[0]}`?" if near else "correct the path."
        raise DataError(
            f"data.tokenizer is {path!r}, which does not exist; {hint} It is `bytes`, `bpe`, a folder with "
            f"{TOKENIZER}, or that file"
        )
    others = [other.name for pattern in _OTHERS for other in sorted(place.glob(pattern))]
    if not others:
        raise DataError(
            f"data.tokenizer: the folder {place} holds no tokenizer; name a folder with a {TOKENIZER}, or that file"
        )
    raise DataError(
        f"data.tokenizer: the folder {place} has no {TOKENIZER}: it has {some(others)}, of another library; "
        f"{_save_it(str(place))}"
    )


def _save_it(folder: str) -> str:
    return (
        'load it with transformers and save it, then name that folder: python -c "from transformers import '
        f"AutoTokenizer; AutoTokenizer.from_pretrained('{folder}').save_pretrained('my-tokenizer')\""
    )


def _end_of_text(tokenizer: Any, file: Path, given: str | None) -> int:
    """Return the id of the token that ends a document; a DataError names the special tokens of the file."""
    origin, token = "data.end_of_text", given
    if token is None:
        origin, token = f"the eos_token of {file.with_name(CONFIG)}", _eos_token(file.with_name(CONFIG))
    number: int | None = None if token is None else tokenizer.token_to_id(token)
    if number is not None:
        return number
    wrong = (
        f"no eos_token is beside {file} in {CONFIG}, so that no token ends a document"
        if token is None
        else f"{origin} is {token!r}, which is no token of {file}"
    )
    special = [added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special]
    example = next((added for added in special if added in ("</s>", "<|endoftext|>", "<eos>", "[SEP]")), None)
    example = example or (special[0] if special else "</s>")
    raise DataError(
        f"data.tokenizer: {wrong}; set data.end_of_text to one of its special tokens ("
        f"{some(special) if special else 'it marks none as special'}), for example data.end_of_text: "
        f"{json.dumps(example, ensure_ascii=False)}"
    )


def _eos_token(config: Path) -> str | None:
    if not config.is_file():
        return None
    try:
        token = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
    except OSError as error:
        raise unreadable(config, error) from error
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{config} is no JSON object ({error}); repair it, or remove it and set data.end_of_text"
        ) from error
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
