"""What all tasks have in common, and each of them against a slow reference that reads the inputs alone."""

import statistics

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from core.errors import InputError
from trainables.data import data_key
from trainables.data.kinds.connectivity import ConnectivityData
from trainables.data.kinds.expressions import ExpressionsData
from trainables.data.kinds.hops import HopsData
from trainables.data.kinds.repeats import RepeatsData
from trainables.data.kinds.stairs import StairsData
from trainables.data.sources.random_rows import Draws
from trainables.data.task import UNSCORED

SIZES = {"sequences": 400, "validation_sequences": 60}
#: Each task with contexts: the least it takes, an odd one, and one with room to spare.
TASKS = [
    *((RepeatsData(alphabet=17, **SIZES), context) for context in (8, 21, 34)),
    *((HopsData(hops=hops, **SIZES), context) for hops, context in ((0, 6), (1, 9), (2, 24), (5, 40), (16, 100))),
    (HopsData(hops=3, alphabet=3, **SIZES), 16),
    (HopsData(hops=2, alphabet=9, **SIZES), 50),
    (HopsData(hops=(1, 4, 0), **SIZES), 30),
    (ConnectivityData(diameter=1, vertices=6, names=6, questions=1, **SIZES), 14),
    (ConnectivityData(diameter=2, questions=3, **SIZES), 53),
    (ConnectivityData(diameter=7, vertices=45, names=60, questions=20, **SIZES), 120),
    (ConnectivityData(diameter=(6, 1, 3), questions=24, **SIZES), 73),
    *((ExpressionsData(levels=n, arguments=m, **SIZES), t) for n, m, t in ((1, 2, 12), (3, 4, 40), (6, 5, 64))),
    *((StairsData(height=k, **SIZES), t) for k, t in ((1, 12), (2, 30), (5, 13), ((1, 2, 3, 4, 5), 31))),
]  # fmt: skip
IDS = [f"{spec.kind}-{context}" for spec, context in TASKS]
#: Each kind once, small.
EACH = [TASKS[1], TASKS[5], TASKS[12], TASKS[16], TASKS[-1]]


def sides(spec, context):
    return [np.concatenate(list(spec.rows(context, validation=side))) for side in (False, True)]


def next_of_block(spec, context, inputs):
    """Repeats: what followed the last occurrence of the present token; None where it was not seen before."""
    assert inputs[0] == spec.vocabulary_size - 1
    answers = []
    for i, token in enumerate(inputs):
        before = [j for j in range(1, i) if inputs[j] == token]
        answers.append(inputs[before[-1] + 1] if before else None)
    return answers


def hopped(spec, context, inputs):
    """Hops: the definition of the paper, word for word, positions counted from 1 and 0 being nowhere."""
    hops = start_of(spec, inputs)
    x = inputs  # x[1] is the first token: the start token stands at 0

    def find(i):
        return max([0, *(j for j in range(2, i + 1) if x[j - 1] == x[i])]) if i else 0

    answers = [spec.alphabet]
    for i in range(1, context):
        assert x[i] != x[i - 1]
        for _ in range(hops):
            i = find(i)
        answers.append(x[i] if i else spec.alphabet)
    return answers


def start_of(spec, inputs):
    """The difficulty of a sequence, by its start token."""
    assert spec.vocabulary_size - len(spec.parts) <= inputs[0] < spec.vocabulary_size
    return spec.parts[inputs[0] - spec.vocabulary_size + len(spec.parts)]


def connected(spec, context, inputs):
    """Connectivity: unions of sets of vertices."""
    diameter = start_of(spec, inputs)
    text = inputs[-2 * spec.vertices - spec.questions :]
    assert set(inputs[: -len(text)]) == {inputs[0]}
    text, questions = text[: -spec.questions], text[-spec.questions :]
    edges = list(zip(text[::2], text[1::2], strict=True))
    vertices = {v for edge in edges for v in edge}
    assert len({frozenset(edge) for edge in edges}) == len(edges) == len(vertices) == spec.vertices
    assert all(sum(v in edge for edge in edges) == 2 for v in vertices), "cycles"
    assert len(set(questions)) == spec.questions

    def reach(start, edges):
        reached, last = [{start}], None
        while reached[-1] != last:
            last = reached[-1]
            reached.append(last | {v for edge in edges if last & set(edge) for v in edge})
        return reached

    for v in vertices:
        *nearer, whole = reach(v, edges)
        assert len(nearer) == diameter + 1, "steps to the farthest vertex"
        assert len(whole) < spec.vertices, "more cycles than one"
    answers = [None] * context
    first = context - 2 * spec.vertices - spec.questions
    for place, edge in enumerate(edges):
        answers[first + 2 * place + 1] = min(reach(edge[0], edges[: place + 1])[-1])
    answers[-spec.questions :] = [min(reach(v, edges)[-1]) for v in questions]
    return answers


def evaluated(spec, context, inputs):
    """Expressions: by recursion."""
    text = iter([token for token in inputs if token != spec.vocabulary_size - 1])
    assert inputs[-1] == 14, "the target is that of the closing bracket"
    deepest = 0

    def value(token, level):
        nonlocal deepest
        if token < 10:
            return token
        deepest = max(deepest, level + 1)
        values = []
        while (following := next(text)) != 14:
            values.append(value(following, level + 1))
        assert 2 <= len(values) <= spec.arguments
        by = {10: min, 11: max, 12: statistics.median_low, 13: lambda v: sum(v) % 10}
        return by[token](values)

    found = value(next(text), 0)
    assert next(text, None) is None, "one expression"
    assert 1 <= deepest <= spec.levels
    return [*[None] * (context - 1), found]


def climbed(spec, context, inputs):
    """Stairs: whether the word so far, without its letters c, contains k letters a in a row."""
    height = start_of(spec, inputs)
    word = "".join("abc"[letter] for letter in inputs[1:])
    return [3 + ("a" * height in word[:i].replace("c", "")) for i in range(context)]


REFERENCES = {
    "repeats": next_of_block, "hops": hopped, "connectivity": connected, "expressions": evaluated, "stairs": climbed,
}  # fmt: skip


#: Where targets are scored.
PLACES = {
    "repeats": lambda _, context: list(range(context // 2, context)),
    "hops": lambda _, context: list(range(context // 2, context)),
    "connectivity": lambda spec, context: (
        list(range(context - 2 * spec.vertices - spec.questions + 1, context - spec.questions, 2))
        + list(range(context - spec.questions, context))
    ),
    "expressions": lambda _, context: [context - 1],
    "stairs": lambda _, context: list(range(context // 2, context)),
}


@pytest.mark.parametrize(("spec", "context"), TASKS, ids=IDS)
def test_targets_follow_from_the_inputs_by_the_definition(spec, context):
    for side, count in zip(sides(spec, context), (400, 60), strict=True):
        assert side.shape == (count, 2 * context)
        for row in side[:60].tolist():
            inputs, targets = row[:context], row[context:]
            answers = REFERENCES[spec.kind](spec, context, inputs)
            scored = [t for t in range(context) if targets[t] != spec.vocabulary_size]
            assert scored == PLACES[spec.kind](spec, context)
            assert [targets[t] for t in scored] == [answers[t] for t in scored]
            assert max(inputs) < spec.vocabulary_size
            assert max(targets[t] for t in scored) < spec.first_start, "a start token is no answer"
            assert len(scored) == spec.scored(context)


@pytest.mark.parametrize(("spec", "context"), EACH, ids=[spec.kind for spec, _ in EACH])
def test_no_sequence_is_in_both_splits_and_one_seed_means_one_task(spec, context):
    train, validation = sides(spec, context)
    assert not {tuple(row) for row in train.tolist()} & {tuple(row) for row in validation.tolist()}
    again = sides(spec, context)
    assert np.array_equal(train, again[0])
    assert np.array_equal(validation, again[1])
    other = sides(spec.model_copy(update={"draw_seed": 1}), context)
    assert not np.array_equal(train, other[0])
    # More sequences go on where fewer end, as far as the share held out stays.
    more = sides(spec.model_copy(update={"sequences": 4000, "validation_sequences": 600}), context)
    assert np.array_equal(more[0][:400], train)


def test_a_seed_means_the_same_sequences_for_ever():
    """Numbers written down once: a change of numpy or of this code must not change what was trained on."""
    found = []
    for spec, context in SMALLEST:
        inputs, targets = spec.draw(context, Draws("written down"), 1)
        packed = np.where(targets == UNSCORED, spec.vocabulary_size, targets)
        found.append([*inputs[0].tolist(), *packed[0].tolist()])
    assert found == FIRST_ROWS


SMALLEST = [
    (RepeatsData(alphabet=4), 8),
    (HopsData(hops=1), 8),
    (HopsData(hops=(1, 2)), 8),
    (ConnectivityData(diameter=1, vertices=6, names=6, questions=1), 15),
    (ExpressionsData(levels=2, arguments=3), 10),
    (StairsData(height=(1, 2)), 9),
]
FIRST_ROWS = [
    [4, 3, 0, 1, 0, 1, 0, 1, 5, 5, 5, 5, 1, 0, 1, 0],
    [5, 1, 0, 3, 2, 1, 0, 2, 6, 6, 6, 6, 4, 0, 3, 1],
    [6, 1, 0, 3, 2, 1, 0, 2, 7, 7, 7, 7, 4, 4, 4, 0],
    [6, 6, 0, 5, 4, 5, 0, 4, 2, 3, 1, 3, 1, 2, 0, 7, 7, 7, 0, 7, 0, 7, 0, 7, 2, 7, 1, 7, 1, 0],
    [15, 15, 13, 8, 12, 4, 7, 6, 14, 14, 16, 16, 16, 16, 16, 16, 16, 16, 16, 4],
    [5, 1, 2, 2, 1, 2, 1, 2, 1, 7, 7, 7, 7, 3, 3, 3, 3, 3],
]


def test_sequences_that_repeat_never_share_a_side():
    spec = HopsData(hops=1, alphabet=3, sequences=900, validation_sequences=100)
    train, validation = ({tuple(row) for row in side.tolist()} for side in sides(spec, 8))
    assert len(train) < 900, "the test wants repeated rows"
    assert not train & validation


def test_no_offset_tells_what_to_copy():
    """A model that copies from a fixed distance, whichever, is right on a small share of the targets."""
    spec = RepeatsData(alphabet=40, sequences=4000, validation_sequences=1)
    train, _ = sides(spec, 64)
    inputs, targets = train[:, :64], train[:, 64:]
    right = [np.mean([(targets[:, t] == inputs[:, t - back]) for t in range(32, 64)]) for back in range(32)]
    # Sixteen lengths of the block, 16 to 31, equally often; twice a length is in reach of a part of the half.
    assert max(right) < 0.11
    counts = np.bincount([lengths_of_block(row) for row in inputs.tolist()])
    assert (np.flatnonzero(counts) == np.arange(16, 32)).all()
    assert np.abs(counts[16:] - 250).max() < 5 * np.sqrt(250)


def lengths_of_block(inputs):
    """Thirty-one different tokens stand behind the start token; the next is the first of the block again."""
    assert len(set(inputs[1:32])) == 31
    return 32 - inputs.index(inputs[32])


def test_the_token_not_seen_for_longest_is_not_what_comes():
    """One layer can tell which that is, and did, where nothing stood before the block."""
    train, _ = sides(RepeatsData(alphabet=16, sequences=300), 32)
    right = []
    for row in train.tolist():
        for t in range(16, 32):
            seen = row[1 : t + 1]
            right.append(row[32 + t] == max(set(seen), key=seen[::-1].index))
    assert np.mean(right) < 0.2


def test_answers_are_balanced():
    answers = {}
    for spec, context in [
        (HopsData(hops=2, sequences=2000), 64),
        (ExpressionsData(sequences=8000), 64),
    ]:
        train, _ = sides(spec, context)
        scored = train[:, context:][train[:, context:] < spec.vocabulary_size]
        answers[spec.kind] = np.bincount(scored, minlength=spec.vocabulary_size) / scored.size
    tokens, nowhere = answers["hops"][:4], answers["hops"][4]
    assert tokens == pytest.approx(0.25, abs=0.01)
    assert nowhere < 0.01
    # MIN and MAX prefer the outer digits; no digit is right more than half as often again as by chance.
    assert answers["expressions"][:10].min() > 0.05
    assert answers["expressions"][:10].max() < 0.15


def test_the_parts_of_a_task_are_equally_frequent_in_both_splits():
    for spec, context in (
        (HopsData(hops=(1, 2, 4)), 64),
        (ConnectivityData(diameter=(1, 2, 3)), 57),
        (StairsData(height=(1, 2, 5)), 64),
    ):
        for side in sides(spec.model_copy(update={"sequences": 3000, "validation_sequences": 1500}), context):
            counts = np.bincount(side[:, 0] - spec.first_start, minlength=3)
            assert counts / len(side) == pytest.approx(1 / 3, abs=5 * np.sqrt(2 / 9 / len(side)))


def test_who_follows_edges_for_r_steps_knows_the_answer_of_2r_and_1_vertices_of_a_cycle():
    """What makes depth pay: the smallest name within r steps is that of the whole cycle of c so often, and no more."""
    spec = ConnectivityData(diameter=6, questions=24, sequences=400)
    train, _ = sides(spec, 73)
    right = np.zeros(7)
    for row in train.tolist():
        edges = [set(edge) for edge in zip(row[1:49:2], row[2:49:2], strict=True)]
        for asked, answer in zip(row[49:73], row[-24:], strict=True):
            reached = {asked}
            for steps in range(7):
                right[steps] += min(reached) == answer
                reached = reached.union(*(edge for edge in edges if edge & reached))
    shares = [min(1, (2 * steps + 1) / 12) for steps in range(7)]
    assert right / 9600 == pytest.approx(shares, abs=5 * np.sqrt(0.25 / 9600))


def test_expressions_fill_the_context_and_nest_to_their_levels():
    train, _ = sides(ExpressionsData(levels=3, arguments=4, sequences=2000), 40)
    length = (train[:, :40] != 15).sum(axis=1)
    assert length.min() == 4
    assert length.max() == 39
    depth = (np.cumsum((train[:, :40] >= 10) & (train[:, :40] < 14), axis=1)
             - np.cumsum(train[:, :40] == 14, axis=1)).max(axis=1)  # fmt: skip
    assert set(np.unique(depth)) == {1, 2, 3}


@pytest.mark.parametrize(("spec", "context"), EACH, ids=[spec.kind for spec, _ in EACH])
def test_sequences_are_drawn_thousands_at_a_time(monkeypatch, spec, context):
    """A loop over sequences would ask for numbers as often as there are sequences."""
    raw, asked = Draws.raw, []
    monkeypatch.setattr(Draws, "raw", lambda self, count: asked.append(count) or raw(self, count))
    found = spec.model_copy(update={"sequences": 20_000}).rows(context, validation=False)
    assert [len(piece) > 3000 for piece in found] == [True] * 3
    # Expressions ask the most: for each token of the context.
    assert len(asked) <= 3 * max(5, 5 * context)


@pytest.mark.parametrize(
    ("spec", "context", "words"),
    [
        (RepeatsData(), 7, ["8 tokens or more", "has 7"]),
        (RepeatsData(alphabet=30), 64, ["31 different tokens", "alphabet of 30", "`alphabet` of 31 or more"]),
        (HopsData(hops=16), 71, ["48 tokens on average", "context of 72 or more", "fewer hops"]),
        (HopsData(hops=0), 3, ["context of 4 or more"]),
        (HopsData(hops=(1, 16)), 71, ["48 tokens on average", "context of 72 or more"]),
        (ConnectivityData(), 56, ["24 `vertices` and 8 `questions` fills 57 tokens", "context of 57 or more"]),
        (ExpressionsData(arguments=5), 7, ["needs a context of 8 tokens"]),
        (StairsData(height=(1, 5)), 12, ["`height` 5", "context of 12", "context of 13 or more"]),
    ],
)  # fmt: skip
def test_a_context_that_does_not_fit_is_refused_with_the_way_out(spec, context, words):
    with pytest.raises(InputError) as error:
        data_key(spec, context)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "context"),
    [
        (RepeatsData(alphabet=3), 8),
        (RepeatsData(alphabet=31), 64),
        (HopsData(hops=16), 72),
        (HopsData(hops=0), 4),
        (HopsData(hops=(16, 8)), 72),
        (ConnectivityData(), 57),
        (ExpressionsData(arguments=5), 8),
        (StairsData(height=(1, 5)), 13),
    ],
)
def test_the_least_context_that_is_allowed_works(spec, context):
    small = spec.model_copy(update={"sequences": 5, "validation_sequences": 2})
    assert [len(side) for side in sides(small, context)] == [5, 2]


def test_too_few_different_sequences_end_with_an_error():
    with pytest.raises(InputError, match="too few different sequences"):
        # Twelve rows: none of them falls to validation.
        sides(HopsData(alphabet=3, sequences=20_000, validation_sequences=1), 4)


@pytest.mark.parametrize(
    ("kind", "keys", "words"),
    [
        (HopsData, {"hops": (1, 2, 1)}, ["`hops` is a number or a list of different numbers", "[1, 2, 1]"]),
        (HopsData, {"hops": ()}, ["different numbers", "[]"]),
        (ConnectivityData, {"vertices": 30}, ["24 `names`", "a name for each vertex"]),
        (ConnectivityData, {"questions": 25}, ["25 `questions` of 24 `vertices`"]),
        (ConnectivityData, {"diameter": (1, 5)}, ["of `diameter` 5 in 24", "of 11 or 10 vertices", "take 30 vertices"]),
        (ConnectivityData, {"diameter": 12}, ["of 25 or 24 vertices", "take 48 vertices"]),
        (ConnectivityData, {"vertices": 8, "diameter": 1}, ["or more of 3 vertices", "take 9 vertices or other"]),
        (ConnectivityData, {"diameter": (1, 2, 1000)}, ["or more of 2001 or 2000 vertices", "; take other diameters"]),
        (ConnectivityData, {"diameter": (7, 11, 13)}, ["must make up all of them; take 2002 vertices or"]),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_drawn_is_refused_with_the_way_out(kind, keys, words):
    with pytest.raises(ValidationError) as error:
        kind(**keys)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_the_accuracy_is_that_of_the_questions_and_of_each_part():
    spec = ConnectivityData(diameter=(1, 3), questions=2)
    inputs = np.zeros((3, 60), np.int64)
    inputs[:, 0] = [24, 25, 25]
    targets = np.full((3, 60), 7)
    first = torch.from_numpy(targets.copy())
    first[:, :58] = 8  # wrong, and not asked for
    first[0, 59] = 8
    score = spec.score(60)
    counted = score.count(inputs, targets, first)
    assert counted.tolist() == [1, 4, 2, 4]
    assert score.measures((counted + counted).tolist()) == {
        "accuracy": 5 / 6, "accuracy_diameter_1": 0.5, "accuracy_diameter_3": 1.0,
    }  # fmt: skip
    # A validation set without a part says nothing of it.
    assert set(score.measures([0, 4, 0, 4])) == {"accuracy", "accuracy_diameter_3"}
    assert set(HopsData().score(8).measures([1, 4])) == {"accuracy"}


def test_a_task_is_described_for_a_model_card():
    assert HopsData(hops=4).describe() == "hops (draw_seed 0, hops 4, alphabet 4)"
    assert "hops 1 and 4" in HopsData(hops=(1, 4)).describe()
    assert "5 for 1, 6 for 4" in HopsData(hops=(1, 4)).describe_ids()
    assert "the ids 0 to 5 (a sequence begins with the id 5)" in HopsData(hops=4).describe_ids()
