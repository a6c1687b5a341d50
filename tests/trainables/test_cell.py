import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from trainables.cell import Base, Cell, Recipe, Shape
from trainables.data.kind import digest
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData


def cell(**changes):
    values = {
        "shape": Shape(depth=2, width=16, heads=2),
        "recipe": Recipe(steps=60, batch=8, context=32),
        "data": HierarchyData(),
        "data_key": "abc",
        "lr": 0.02,
        "seed": 0,
    }
    return Cell(**{**values, **changes})


CHANGES = [
    {"shape": Shape(depth=3, width=16, heads=2)},
    {"shape": Shape(depth=2, width=18, heads=2)},
    {"shape": Shape(depth=2, width=16, heads=4)},
    {"data_key": "abd"},
    {"lr": 0.021},
    {"seed": 1},
    *(
        {"recipe": Recipe(**{**Recipe(steps=60, batch=8, context=32).model_dump(), **change})}
        for change in (
            {"steps": 61}, {"batch": 9}, {"context": 33}, {"beta1": 0.8}, {"beta2": 0.99}, {"epsilon": 1e-7},
            {"weight_decay": 0.0}, {"warmup": 0.2}, {"min_lr_ratio": 0.1}, {"grad_clip": 0.0}, {"precision": "bf16"},
            {"init": "gpt2"}, {"dropout": 0.1}, {"deepspeed": {"zero_optimization": {"overlap_comm": True}}},
            {"optimizer": "muon"}, {"residual": "admin"}, {"network": "analysed"},
            {"embeddings": "untied"}, {"rope_theta": 100.0},
            {"schedule": "wsd", "warmup": None, "warmup_steps": 5, "decay": 0.3},
            {"parametrisation": "completep"}, {"parametrisation": "mup", "base": Base(width=32)},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_whatever_can_change_the_loss_changes_the_key(change):
    assert cell(**change).key != cell().key


def test_every_field_of_a_recipe_is_among_the_changes_above():
    tried = {name for change in CHANGES if (r := change.get("recipe")) for name in r.model_fields_set
             if getattr(r, name) != getattr(Recipe(steps=60, batch=8, context=32), name)}  # fmt: skip
    assert tried == set(Recipe.model_fields)


def test_keys_are_those_that_results_were_kept_under_before():
    # Had a new field of the recipe got into the key, every study would be trained again.
    assert cell().key == "a72e54d25ff0b458"
    assert cell(recipe=Recipe(steps=60, batch=8, context=32, dropout=0.1)).key == "540e56ac920e01b5"
    assert cell(recipe=Recipe(steps=60, batch=8, context=32, precision="bf16")).key == "0e72b9e33ffba607"
    assert cell(recipe=Recipe(steps=60, batch=8, context=32, deepspeed={})).key == cell().key


def test_a_schedule_has_one_key_however_its_defaults_are_written():
    sizes = {"steps": 60, "batch": 8, "context": 32}
    assert Recipe(**sizes, schedule="cosine", warmup=0.1) == Recipe(**sizes)
    wsd = Recipe(**sizes, schedule="wsd", warmup_steps=5)
    assert wsd == Recipe(**sizes, schedule="wsd", warmup_steps=5, decay=0.2)
    assert wsd.model_dump().keys() - Recipe(**sizes).model_dump().keys() == {
        "schedule",
        "warmup_steps",
        "decay",
    }
    assert "warmup" not in wsd.model_dump()
    keys = {
        cell(recipe=wsd.model_copy(update=change)).key for change in ({}, {"warmup_steps": 6}, {"decay": 0.3})
    }
    assert len(keys) == 3
    assert Cell.model_validate_json(cell(recipe=wsd).model_dump_json()).key == cell(recipe=wsd).key


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"schedule": "wsd"}, "`schedule: wsd` needs `warmup_steps`"),
        ({"schedule": "wsd", "warmup_steps": 5, "warmup": 0.1}, "`warmup` is not for `schedule: wsd`"),
        ({"warmup_steps": 5}, "`warmup_steps` is not for `schedule: cosine`"),
        ({"decay": 0.2}, "`decay` is not for `schedule: cosine`"),
    ],
)
def test_keys_of_the_other_schedule_are_refused(given, named):
    with pytest.raises(ValidationError, match=named):
        Recipe(steps=60, batch=8, context=32, **given)


def test_a_cell_whose_warmup_runs_into_its_decay_is_refused():
    def recipe(warmup_steps):
        return Recipe(steps=60, batch=8, context=32, schedule="wsd", warmup_steps=warmup_steps)

    assert cell(recipe=recipe(48)).recipe.decay_start == 48
    with pytest.raises(ValidationError, match="write `warmup_steps: 48` or less"):
        cell(recipe=recipe(49))


def test_a_trunk_is_shared_by_cells_that_differ_in_steps_and_decay_alone():
    def wsd(data_key="abc", **recipe):
        values = {"steps": 60, "batch": 8, "context": 32, "schedule": "wsd", "warmup_steps": 5, **recipe}
        return cell(recipe=Recipe(**values), data_key=data_key).trunk

    assert cell().trunk is None
    assert wsd() == wsd(steps=120) == wsd(decay=0.5) != wsd(batch=4)
    others = [
        {"warmup_steps": 6},
        {"precision": "bf16"},
        {"dropout": 0.1},
        {"data_key": "abd"},
        {"min_lr_ratio": 0.1},
    ]
    assert len({wsd(), *(wsd(**change) for change in others)}) == 1 + len(others)
    assert wsd() != cell(recipe=Recipe(steps=60, batch=8, context=32, schedule="wsd", warmup_steps=5)).key


def test_options_of_deepspeed_survive_json_and_unknown_ones_are_refused():
    options = {"zero_optimization": {"overlap_comm": True}}
    one = cell(recipe=Recipe(steps=60, batch=8, context=32, deepspeed=options))
    assert Cell.model_validate_json(one.model_dump_json()) == one
    assert Cell.model_validate_json(one.model_dump_json()).key == one.key
    with pytest.raises(ValidationError, match="`overlap_com` is not an allowed option"):
        Recipe(steps=60, batch=8, context=32, deepspeed={"overlap_com": True})


def test_the_base_shape_is_part_of_a_cell_where_a_parametrisation_starts_from_it():
    sp, mup = (
        [Recipe(steps=60, batch=8, context=32, parametrisation=name, base=Base(width=w)) for w in (32, 64)]
        for name in ("sp", "mup")
    )
    assert sp[0] == sp[1]
    assert cell(recipe=sp[0]).key == cell().key
    assert len({cell(recipe=recipe).key for recipe in (*sp, *mup)}) == 3
    one = cell(recipe=mup[0])
    assert Cell.model_validate_json(one.model_dump_json()) == one
    with pytest.raises(ValidationError, match="dpeth"):
        Recipe(steps=60, batch=8, context=32, base={"dpeth": 3})


def test_where_the_data_lies_is_not_part_of_the_key():
    assert cell(data=FilesData(path="elsewhere.txt")).key == cell().key


def test_the_key_is_the_same_in_every_process_and_after_json():
    one = cell()
    program = (
        f"from trainables.cell import Cell; print(Cell.model_validate_json({one.model_dump_json()!r}).key)"
    )
    for seed in ("0", "1"):
        command, environment = [sys.executable, "-c", program], {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == one.key
    assert len(one.key) == 16


def test_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [1, 2]}) == digest(json.loads('{"b": [1, 2], "a": 1}'))
    assert digest({"a": 1}) != digest({"a": 2})


def test_a_shape_counts_the_papers_parameters_and_refuses_odd_heads():
    assert Shape(depth=96, width=12288, heads=96).budget_params == 12 * 96 * 12288**2
    assert Shape(depth=3, width=40, heads=4, d_ff=0).budget_params == 4 * 3 * 40**2
    assert Shape(depth=3, width=40, heads=4, d_ff=1).budget_params == 12 * 3 * 40**2
    with pytest.raises(ValidationError, match="width 15 is not divisible by 2 heads"):
        Shape(depth=1, width=15, heads=2)


@pytest.mark.parametrize(
    ("given", "implied"),
    [({"kv_heads": 4}, {}), ({"head_dim": 12}, {}), ({"kv_heads": 2, "head_dim": 12}, {"kv_heads": 2})],
)
def test_values_of_a_shape_that_follow_from_the_others_do_not_change_the_key(given, implied):
    plain = {"depth": 2, "width": 48, "heads": 4}
    assert Shape(**plain, **given) == Shape(**plain, **implied)
    assert Shape(**plain, **given).model_dump() == {**plain, **implied}


@pytest.mark.parametrize("option", [{"kv_heads": 2}, {"head_dim": 16}, {"d_ff": 100}])
def test_each_option_of_a_shape_changes_the_key(option):
    plain = {"depth": 2, "width": 48, "heads": 4}
    assert cell(shape=Shape(**plain, **option)).key != cell(shape=Shape(**plain)).key


def test_heads_of_their_own_width_leave_that_of_the_model_free_and_key_value_heads_divide_the_heads():
    shape = Shape(depth=1, width=50, heads=4, head_dim=16, kv_heads=2)
    assert (shape.head_width, shape.key_value_heads, shape.budget_params) == (16, 2, 30_000)
    with pytest.raises(ValidationError, match="4 heads cannot share 3 key-value heads"):
        Shape(depth=1, width=48, heads=4, kv_heads=3)


def test_a_cell_cannot_be_changed_and_takes_no_unknown_keys():
    with pytest.raises(ValidationError):
        cell().seed = 3
    with pytest.raises(ValidationError, match="stps"):
        Recipe(steps=1, batch=1, context=2, stps=3)
