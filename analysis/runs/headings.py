"""Which heading of a foreign table is which column of a run table, by the names that people and programs use.

A heading matches by its last part, after `.`, `/` and the prefixes of trackers, without regard to capitals, spaces and
hyphens: `config.n_layer`, `params.lr`, `params_d_model`, `summary.eval/loss`, `Hidden Size`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from analysis.runs.remarks import About, Remark, flat
from core.command_line import option
from core.errors import InputError, shortened
from core.numbers import parse_number

Unit = Literal["nats", "perplexity", "bits"]


def names_in(text: str) -> tuple[str, ...]:
    """The names of a list that is written as text."""
    return tuple(text.split())


#: Column -> names of it, the best first. Headings are compared in lower case, with `_` between words.
NAMES: Mapping[str, tuple[str, ...]] = {
    "depth": names_in(
        """
        depth n_layer n_layers num_layers num_hidden_layers number_of_layers nlayer nlayers layer_count
        num_decoder_layers decoder_layers n_blocks num_blocks n_block layers
        """
    ),
    "width": names_in(
        """
        width d_model n_embd hidden_size dmodel n_embed model_dim dim_model embed_dim embedding_dim
        emb_dim embedding_size model_width hidden_width dim hidden_dim hidden
        """
    ),
    "heads": names_in(
        """
        heads n_head n_heads num_heads num_attention_heads attention_heads nhead nheads
        """
    ),
    "params": names_in(
        """
        params n_params num_params parameters n_parameters num_parameters model_size non_embedding_params
        params_non_embedding nparams param_count parameter_count
        """
    ),
    "total_params": ("total_params", "total_parameters", "params_total"),
    "seed": names_in(
        """
        seed random_seed rng_seed global_seed seed_everything random_state init_seed
        """
    ),
    "lr": names_in(
        """
        lr learning_rate learningrate peak_lr max_lr peak_learning_rate max_learning_rate base_lr
        """
    ),
    "tokens": names_in(
        """
        tokens tok n_tokens num_tokens train_tokens training_tokens tokens_seen total_tokens
        num_input_tokens_seen num_tokens_seen n_tokens_seen tokens_trained trained_tokens ntokens
        num_train_tokens n_train_tokens consumed_tokens consumed_train_tokens seen_tokens token_count
        tokens_total tokens_processed token train_tok
        """
    ),
    "vocabulary": ("vocabulary", "vocab_size", "vocabulary_size", "n_vocab", "vocab"),
    "status": ("status", "state", "run_state", "run_status", "trial_state", "job_status"),
}
#: Names of one letter count as written: d is a width, D a number of tokens.
LETTERS: Mapping[str, str] = {"L": "depth", "d": "width", "H": "heads", "N": "params", "D": "tokens"}

#: What trackers put before the name of a parameter or metric.
_PREFIXES = names_in(
    """
        params_ user_attrs_ config_ summary_ metrics_ hyperparameters_ hparams_ args_
        """
)
#: Parts of another network than the language model, or of one layer: their sizes are not those of the model.
_OTHER_NETWORKS = frozenset(
    names_in(
        """
        teacher draft vision audio encoder discriminator reward critic mlp ffn attn attention rope moe
        expert experts router head lora adapter
        """
    )
)

#: A decimal prefix in brackets at the end of a heading.
_SCALE = re.compile(r"\s*[\[(]\s*(?:in\s+)?([kKMBGT]|[mb]n|thousand|million|billion|trillion)s?\s*[\])]\s*$")
_LOSS = {"loss", "ce", "nll", "xent", "crossentropy"}
_PERPLEXITY = {"ppl", "perplexity"}
_BITS = {"bpb", "bpc", "bpt", "bits"}
_EVALUATION = frozenset(
    names_in(
        """
        val eval valid validation evaluation dev heldout holdout held test
        """
    )
)
_TRAINING = {"train", "training", "tr"}
#: Words that a heading of the loss itself has not: parts of the objective, statistics of the loss, settings.
_NOT_A_LOSS = frozenset(
    names_in(
        """
        z zloss aux auxiliary moe router routing balance balancing kl distill mtp distillation reg
        regularization weight weights coef coefficient coeff scale scaling scaler delta diff gap std stdev
        sd sem stderr err error var variance ci lower upper low high min max best type name fn function
        reduction chunk chunked chunks target threshold tokens spike spikes accuracy acc time seconds steps
        epoch seed ratio rank log2 log10 noise ema smoothed smooth count num initial init start smoothing label masked
        window
        """
    )
)
#: Words of a heading of the evaluation loss at the end of a run, without another data set or detail.
_PLAIN = frozenset(
    names_in(
        """
        loss final last end ce nll cross entropy summary metrics mean avg
        """
    )
)


@dataclass(frozen=True)
class LossHeading:
    """A heading of a loss, with its unit and its data (0 evaluation, 1 not named, 2 training)."""

    heading: str
    unit: Unit
    data: int
    rank: tuple[int, ...]


@dataclass(frozen=True)
class Headings:
    """The headings of a table.

    Attributes:
        columns: column -> heading, for those that were found by their names.
        notes: how they were read.
    """

    columns: Mapping[str, str]
    notes: tuple[Remark, ...] = ()


def words_of(heading: str) -> list[str]:
    """The words of a heading in lower case: `summary.eval/c4_CE` -> summary, eval, c4, ce."""
    return [word for word in re.split(r"[^a-z0-9]+", _plain(heading)) if word]


def last_part(heading: str) -> str:
    """The name at the end of a heading, as it is compared: `config.model.nLayer` -> n_layer."""
    name = re.split(r"[./]", _plain(heading))[-1].strip("_")
    while prefix := next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None):
        if name in _ALL_NAMES:
            break
        name = name.removeprefix(prefix)
    return name


def scale_of(heading: str) -> float:
    """What the numbers below a heading count in: `tokens (M)` are millions, other headings ones."""
    match = _SCALE.search(heading)
    return parse_number(f"1{match[1]}") if match else 1.0


def _plain(heading: str) -> str:
    """The heading in lower case, with `_` for spaces, hyphens and camel case, without a unit in brackets."""
    heading = _SCALE.sub("", heading)
    text = re.sub(
        r"\s*[\[(]\s*(?:nats|tokens|nats\s*(?:/|per)\s*tok(?:en)?)\s*[\])]\s*$",
        "",
        heading.strip(),
        flags=re.I,
    )
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return re.sub(r"[\s\-]+", "_", text).lower()


_ALL_NAMES = {name for names in NAMES.values() for name in names}


def column_of(heading: str) -> str | None:
    """The column of a run table that a heading names, other than the loss; None if it names none."""
    place = _place(heading)
    return place and place[0]


def _place(heading: str) -> tuple[str, int] | None:
    """The column, and the place of its name in `NAMES`."""
    bare = heading.strip()
    if bare in LETTERS:
        return LETTERS[bare], 99
    name = last_part(heading)
    for column, names in NAMES.items():
        if name in names:
            path = set(words_of(heading)[:-1]) - set(name.split("_"))
            # `train/learning_rate` is the rate of the last step, not the peak rate.
            other = column in ("depth", "width", "heads", "params") and path & _OTHER_NETWORKS
            if other or (column == "lr" and path & _TRAINING) or (column == "tokens" and path & _EVALUATION):
                return None
            return column, names.index(name)
    return None


def loss_heading(heading: str) -> LossHeading | None:
    """The unit and the data of a heading of a loss; None if it names no loss of a model."""
    words = words_of(heading)
    have = set(words)
    if have & _NOT_A_LOSS:
        return None
    unit = unit_of(heading)
    if unit == "nats" and not _is_loss(have):
        return None
    data = 0 if have & _EVALUATION else 2 if have & _TRAINING else 1
    extra = have - _PLAIN - _EVALUATION - _TRAINING - _PERPLEXITY - _BITS - {"byte", "token", "per"}
    final = 0 if have & {"final", "last", "end"} else 1
    # Evaluation first, then nats, then names without a data set, validation before test, the end before an average.
    rank = (data, unit != "nats", bool(extra), "test" in have, final, len(words))
    return LossHeading(heading, unit, data, tuple(map(int, rank)))


def unit_of(heading: str) -> Unit:
    """The unit that a heading of losses names; nats if it names none."""
    have = set(words_of(heading))
    if have & _PERPLEXITY:
        return "perplexity"
    # `bits` alone is the precision of weights.
    of_loss = "bits" in have and ("per" in have or _is_loss(have))
    return "bits" if have & {"bpb", "bpc", "bpt"} or of_loss else "nats"


def _is_loss(words: set[str]) -> bool:
    return bool(words & _LOSS) or {"cross", "entropy"} <= words


def best_loss(headings: Iterable[str]) -> tuple[LossHeading, ...]:
    """The heading of the loss: evaluation loss wins over training loss; several if nothing decides between them."""
    losses = sorted(
        (item for heading in headings if (item := loss_heading(heading))),
        key=lambda item: (item.rank, item.heading),
    )
    if not losses:
        return ()
    best = losses[0]
    # Of names without a data set the better one wins; two data sets, or `val` beside `eval`, are a choice of the user.
    level = 5 if not best.rank[2] else 3
    return tuple(item for item in losses if item.rank[:level] == best.rank[:level])


def read_headings(headings: Iterable[object], given: Mapping[str, str], ours: Iterable[str]) -> Headings:
    """Find the columns of a run table in a foreign one.

    Args:
        headings: of the table.
        given: column -> heading, as named by the user; these are kept.
        ours: the columns of run tables.

    Raises:
        InputError: several headings can be the loss.
    """
    names = [str(name) for name in headings]
    free = [name for name in names if name not in given.values()]
    taken: dict[str, str] = {}
    also: dict[str, list[str]] = {}
    places: dict[str, list[tuple[int, int, str]]] = {}
    for heading in free:
        if heading in ours and heading != "loss":
            continue
        if (place := _place(heading)) and place[0] not in given and place[0] not in names:
            places.setdefault(place[0], []).append((place[1], len(heading), heading))
        elif (
            (lower := _plain(heading)) in ours
            and lower not in given
            and lower not in names
            and lower != "loss"
        ):
            places.setdefault(lower, []).append((0, len(heading), heading))
    for column, candidates in places.items():
        taken[column], *also[column] = [heading for _, _, heading in sorted(candidates)]
    notes: list[Remark] = []
    if "loss" not in given:
        loss, others, notes = _find_loss(free, names)
        if loss and loss != "loss":
            taken["loss"], also["loss"] = loss, others
    if taken:
        read = [
            (shortened(heading), column, ", ".join(map(shortened, also[column])))
            for column, heading in taken.items()
        ]
        notes.insert(0, Remark(About.COMMON_NAMES, flat(read)))
    return Headings(taken, tuple(notes))


def _find_loss(free: list[str], names: list[str]) -> tuple[str | None, list[str], list[Remark]]:
    """The heading of the loss among those that are free, the other headings of a loss, and notes; None without one."""
    best = best_loss(free)
    if len(best) > 1:
        choice = option("column", f"loss={shortened(best[0].heading)}")
        several = ", ".join(shortened(item.heading) for item in best)
        raise InputError(f"Several headings can be the loss: {several}. Choose one with {choice}.")
    if not best:
        # The objective of a table of Optuna's trials.
        is_optuna = "value" in free and {"number", "state"} <= set(names)
        return "value" if is_optuna else None, [], []
    (chosen,) = best
    others = [heading for heading in free if heading != chosen.heading and loss_heading(heading)]
    notes: list[Remark] = []
    if chosen.heading == "loss" and others:
        notes.append(Remark(About.LOSS_COLUMN, ("loss", *map(shortened, others))))
    if chosen.data == 2:
        notes.append(Remark(About.TRAINING_LOSS, (shortened(chosen.heading),)))
    return chosen.heading, others, notes
