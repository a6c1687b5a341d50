"""What all tasks have in common, and each of them against a slow reference that reads the inputs alone."""

import statistics
import time

import numpy as np
import pytest

from trainables.data.tasks.rows import check_task, draw, rows
from trainables.data.tasks.spec import ConnectivityData, ExpressionsData, HopsData, RepeatsData
from trainables.errors import InputError

SIZES = {"sequences": 400, "validation_sequences": 60}
#: Each task with contexts: the least it takes, an odd one, and one with room to spare.
TASKS = [
    *((RepeatsData(alphabet=17, **SIZES), context) for context in (8, 21, 34)),
    *((HopsData(hops=hops, **SIZES), context) for hops, context in ((0, 6), (1, 9), (2, 24), (5, 40), (16, 100))),
    (HopsData(hops=3, alphabet=3, **SIZES), 16),
    (HopsData(hops=2, alphabet=9, **SIZES), 50),
    (ConnectivityData(diameter=1, names=6, questions=1, **SIZES), 15),
    (ConnectivityData(diameter=2, questions=3, **SIZES), 30),
    (ConnectivityData(diameter=7, names=40, questions=20, **SIZES), 101),
    *((ExpressionsData(levels=n, arguments=m, **SIZES), t) for n, m, t in ((1, 2, 12), (3, 4, 40), (6, 5, 64))),
]  # fmt: skip
IDS = [f"{spec.kind}-{context}" for spec, context in TASKS]
#: Each kind once, small.
EACH = [TASKS[1], TASKS[5], TASKS[11], TASKS[14]]


def sides(spec, context):
    return [np.concatenate(list(side)) for side in rows(spec, context)]


def next_of_block(spec, context, inputs):
    """Repeats: what followed the last occurrence of the present token; None where it was not seen before."""
    assert inputs[0] == spec.ids - 1
    answers = []
    for i, token in enumerate(inputs):
        before = [j for j in range(1, i) if inputs[j] == token]
        answers.append(inputs[before[-1] + 1] if before else None)
    return answers


def hopped(spec, context, inputs):
    """Hops: the definition of the paper, word for word, positions counted from 1 and 0 being nowhere."""
    assert inputs[0] == spec.ids - 1
    x = inputs  # x[1] is the first token: the start token stands at 0

    def find(i):
        return max([0, *(j for j in range(2, i + 1) if x[j - 1] == x[i])]) if i else 0

    answers = [spec.alphabet]
    for i in range(1, context):
        assert x[i] != x[i - 1]
        for _ in range(spec.hops):
            i = find(i)
        answers.append(x[i] if i else spec.alphabet)
    return answers


def connected(spec, context, inputs):
    """Connectivity: unions of sets of vertices."""
    text = [token for token in inputs if token != spec.ids - 1]
    assert inputs == [spec.ids - 1] * (context - len(text)) + text
    source, text, questions = text[0], text[1 : -spec.questions], text[-spec.questions :]
    edges = list(zip(text[::2], text[1::2], strict=True))
    vertices = {v for edge in edges for v in edge}
    assert len({frozenset(edge) for edge in edges}) == len(edges) == len(vertices) == 4 * spec.diameter + 2
    assert all(sum(v in edge for edge in edges) == 2 for v in vertices), "cycles"

    def reach(start):
        reached, last = {start}, set()
        while reached != last:
            last = set(reached)
            reached |= {v for edge in edges if reached & set(edge) for v in edge}
        return reached

    assert all(len(reach(v)) == 2 * spec.diameter + 1 for v in vertices), "two of them"
    assert source not in questions
    return [None] * (context - len(questions)) + [spec.names + (v in reach(source)) for v in questions]


def evaluated(spec, context, inputs):
    """Expressions: by recursion."""
    text = iter([token for token in inputs if token != spec.ids - 1])
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


REFERENCES = {
    "repeats": next_of_block, "hops": hopped, "connectivity": connected, "expressions": evaluated,
}  # fmt: skip


#: Where targets are scored.
PLACES = {
    "repeats": lambda _, context: list(range(context // 2, context)),
    "hops": lambda _, context: list(range(context // 2, context)),
    "connectivity": lambda spec, context: list(range(context - spec.questions, context)),
    "expressions": lambda _, context: [context - 1],
}


@pytest.mark.parametrize(("spec", "context"), TASKS, ids=IDS)
def test_targets_follow_from_the_inputs_by_the_definition(spec, context):
    for side, count in zip(sides(spec, context), (400, 60), strict=True):
        assert side.shape == (count, 2 * context)
        for row in side[:60].tolist():
            inputs, targets = row[:context], row[context:]
            answers = REFERENCES[spec.kind](spec, context, inputs)
            scored = [t for t in range(context) if targets[t] != spec.ids]
            assert scored == PLACES[spec.kind](spec, context)
            assert [targets[t] for t in scored] == [answers[t] for t in scored]
            assert max(inputs) < spec.ids
            assert max(targets[t] for t in scored) < spec.ids - 1, "the start token is no answer"


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
    found = [draw(spec, context, "written down", 1)[0].tolist() for spec, context in SMALLEST]
    assert found == FIRST_ROWS


SMALLEST = [
    (RepeatsData(alphabet=4), 8),
    (HopsData(hops=1), 8),
    (ConnectivityData(diameter=1, names=6, questions=1), 16),
    (ExpressionsData(levels=2, arguments=3), 10),
]
FIRST_ROWS = [
    [4, 3, 0, 1, 0, 1, 0, 1, 5, 5, 5, 5, 1, 0, 1, 0],
    [5, 1, 0, 3, 2, 1, 0, 2, 6, 6, 6, 6, 4, 0, 3, 1],
    [8, 8, 0, *(0, 5, 4, 5, 0, 4, 2, 3, 1, 3, 1, 2), 4, *15 * (9,), 7],
    [15, 15, 13, 8, 12, 4, 7, 6, 14, 14, 16, 16, 16, 16, 16, 16, 16, 16, 16, 4],
]


def test_sequences_that_repeat_never_share_a_side():
    spec = HopsData(hops=1, alphabet=3, sequences=900, validation_sequences=100)
    train, validation = ({tuple(row) for row in side.tolist()} for side in sides(spec, 8))
    assert len(train) < 900, "the test wants repeated rows"
    assert not train & validation


def test_no_offset_tells_what_to_copy():
    """A net that copies from a fixed distance, whichever, is right on a small share of the targets."""
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
        (ConnectivityData(sequences=2000), 32),
        (HopsData(hops=2, sequences=2000), 64),
        (ExpressionsData(sequences=8000), 64),
    ]:
        train, _ = sides(spec, context)
        scored = train[:, context:][train[:, context:] < spec.ids]
        answers[spec.kind] = np.bincount(scored, minlength=spec.ids) / scored.size
    no_and_yes = answers["connectivity"][20:22]
    assert no_and_yes == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / 16_000))
    tokens, nowhere = answers["hops"][:4], answers["hops"][4]
    assert tokens == pytest.approx(0.25, abs=0.01)
    assert nowhere < 0.01
    # MIN and MAX prefer the outer digits; no digit is right more than half as often again as by chance.
    assert answers["expressions"][:10].min() > 0.05
    assert answers["expressions"][:10].max() < 0.15


def test_all_distances_up_to_the_diameter_are_asked_for_equally_often():
    spec = ConnectivityData(diameter=3, sequences=1500)
    train, _ = sides(spec, 40)
    counts = np.zeros(5)
    for row in train[:, :40].tolist():
        source, text, questions = row[3], row[4:32], row[32:]
        edges = [set(edge) for edge in zip(text[::2], text[1::2], strict=True)]
        for asked in questions:
            reached, distance = {source}, 0
            while asked not in reached and distance < 4:
                reached = reached.union(*(edge for edge in edges if edge & reached))
                distance += 1
            counts[distance] += 1
    # Farther than 3 is in the other cycle.
    assert counts / counts.sum() == pytest.approx(
        [0, 1 / 6, 1 / 6, 1 / 6, 1 / 2], abs=5 * np.sqrt(0.25 / 12_000)
    )


def test_expressions_fill_the_context_and_nest_to_their_levels():
    train, _ = sides(ExpressionsData(levels=3, arguments=4, sequences=2000), 40)
    length = (train[:, :40] != 15).sum(axis=1)
    assert length.min() == 4
    assert length.max() == 39
    depth = (np.cumsum((train[:, :40] >= 10) & (train[:, :40] < 14), axis=1)
             - np.cumsum(train[:, :40] == 14, axis=1)).max(axis=1)  # fmt: skip
    assert set(np.unique(depth)) == {1, 2, 3}


def test_generation_is_fast_enough_for_a_study():
    for spec, context in EACH:
        start = time.perf_counter()
        assert len(sides(spec.model_copy(update={"sequences": 20_000}), context)[0]) == 20_000
        # Ten times what it takes.
        assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("spec", "context", "words"),
    [
        (RepeatsData(), 7, ["8 tokens or more", "has 7"]),
        (RepeatsData(alphabet=30), 64, ["31 different tokens", "alphabet of 30", "`alphabet` of 31 or more"]),
        (HopsData(hops=16), 71, ["48 tokens on average", "context of 72 or more", "fewer hops"]),
        (HopsData(hops=0), 3, ["context of 4 or more"]),
        (ConnectivityData(diameter=5), 90, ["two cycles of 11 vertices", "its 20 `names`", "22 names or more"]),
        (ConnectivityData(diameter=4), 45, ["fills 46 tokens", "context of 46 or more"]),
        (ExpressionsData(arguments=5), 7, ["needs a context of 8 tokens"]),
    ],
)  # fmt: skip
def test_a_context_that_does_not_fit_is_refused_with_the_way_out(spec, context, words):
    with pytest.raises(InputError) as error:
        check_task(spec, context)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "context"),
    [
        (RepeatsData(alphabet=3), 8),
        (RepeatsData(alphabet=31), 64),
        (HopsData(hops=16), 72),
        (HopsData(hops=0), 4),
        (ConnectivityData(diameter=4, names=18), 46),
        (ExpressionsData(arguments=5), 8),
    ],
)
def test_the_least_context_that_is_allowed_works(spec, context):
    small = spec.model_copy(update={"sequences": 5, "validation_sequences": 2})
    assert [len(side) for side in sides(small, context)] == [5, 2]


def test_too_few_different_sequences_end_with_an_error():
    with pytest.raises(InputError, match="`hops` has too few different sequences"):
        # Twelve rows: none of them falls to validation.
        sides(HopsData(alphabet=3, sequences=20_000, validation_sequences=1), 4)
