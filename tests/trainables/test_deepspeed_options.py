"""DeepSpeed's own options: the tables against what DeepSpeed reads, what is refused, and that the rest gets through."""

from typing import Any, ClassVar

import pytest
import torch

from trainables.cell import Recipe, Shape
from trainables.deepspeed_options import ZERO_REFUSED, Options, check_names, check_options
from trainables.errors import InputError
from trainables.layout import Layout
from trainables.model.family import build_model
from trainables.ranks.process_group import join
from trainables.train.engine import build_engine, deepspeed_config

#: One use of every option that is passed on, at a ZeRO stage where DeepSpeed looks at it.
USES: list[dict[str, Any]] = [
    {"zero_optimization": {"overlap_comm": True, "reduce_bucket_size": 1000, "contiguous_gradients": False}},
    {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}, "zero_force_ds_cpu_optimizer": False},
    {"communication_data_type": "fp32"},
    {"prescale_gradients": True, "gradient_predivide_factor": 1.0},
    {"disable_python_gc": True},
]


@pytest.fixture
def _process() -> None:
    join()


def refusal(options: dict[Any, Any]) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        check_names(options)
    return str(caught.value)


def recipe(**options: Any) -> Recipe:
    return Recipe(steps=3, batch=2, context=8, deepspeed=options)


def losses(recipe: Recipe, zero: int = 1) -> list[float]:
    layout = Layout.model_validate({"zero": zero})
    model = build_model(Shape(depth=1, width=8, heads=2), recipe, 5, seed=0)
    engine = build_engine(model, recipe, 1e-2, layout)
    found = []
    for step in range(recipe.steps):
        x = torch.arange(16).view(2, 8).add(step).remainder(5)
        loss = engine(input_ids=x, labels=x).loss
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    engine.destroy()
    return found


class Recording(dict[str, Any]):
    """A configuration that remembers which keys it was asked for."""

    asked: ClassVar[set[str]] = set()

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:  # DeepSpeed asks `key in config.keys()` as well
        return self


# What is refused


@pytest.mark.usefixtures("_process")
def test_the_lists_name_keys_that_deepspeed_reads() -> None:
    """A key that DeepSpeed no longer reads would be allowed and do nothing."""
    import deepspeed
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    Recording.asked = set()
    model = build_model(Shape(depth=1, width=8, heads=2), recipe(), 5, seed=0)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config=Recording(train_micro_batch_size_per_gpu=1, steps_per_print=10**9),
        dist_init_required=False,
    )
    engine.destroy()
    assert set(Options.model_fields) <= Recording.asked
    assert set(DeepSpeedZeroConfig.model_fields) >= ZERO_REFUSED


@pytest.mark.parametrize("key", sorted(ZERO_REFUSED))
def test_what_breaks_a_cell_is_refused_in_zero_optimization(key: str) -> None:
    assert f"`zero_optimization.{key}` is not allowed" in refusal({"zero_optimization": {key: True}})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("zero_optimisation", "zero_optimization"),
        ("comunication_data_type", "communication_data_type"),
        ("train_batch_size", "set `training.batch` instead"),
        ("Prescale_Gradients", "prescale_gradients"),
        ("xyzzy", "zero_optimization"),
        ("overlap_comm", "zero_optimization"),
    ],
)
def test_an_unknown_key_is_refused_with_known_names(key: str, meant: str) -> None:
    message = refusal({key: True})
    assert f"`{key}` is not an allowed option of DeepSpeed" in message
    assert meant in message


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"zero_optimization": True}, "`zero_optimization`: Input should be a valid dictionary"),
        ({"prescale_gradients": "yes"}, "`prescale_gradients`: Input should be a valid boolean"),
        ({"prescale_gradients": 1}, "`prescale_gradients`: Input should be a valid boolean"),
        ({"gradient_predivide_factor": 0}, "`gradient_predivide_factor`: Input should be greater than 0"),
        ({"gradient_predivide_factor": True}, "`gradient_predivide_factor`: Input should be a valid number"),
        (
            {"communication_data_type": "fp8"},
            "`communication_data_type`: Input should be 'fp32', 'bf16' or 'fp16'",
        ),
        ({"gradient_predivide_factor": float("nan")}, "must be plain JSON"),
        ({"disable_python_gc": {1, 2}}, "must be plain JSON"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "cannot offload to nvme"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            "zero_force_ds_cpu_optimizer: false",
        ),
    ],
)
def test_values_deepspeed_would_not_check_are_checked(options: dict[str, Any], text: str) -> None:
    assert text in refusal(options)


@pytest.mark.parametrize(
    ("options", "zero", "text"),
    [
        (
            {"zero_optimization": {"overlap_com": True}},
            1,
            "overlap_com",
        ),
        (
            {"zero_optimization": {"offload_param": {"devic": "cpu"}}},
            3,
            "devic",
        ),
        (
            {"zero_optimization": {"reduce_bucket_size": -1}},
            1,
            "reduce_bucket_size",
        ),
        (
            {"zero_optimization": {"overlap_comm": "perhaps"}},
            1,
            "Input should be a valid boolean",
        ),
        ({"zero_optimization": {"mics_shard_size": 2}}, 3, "MiCS ZeRO-3 sharding has been removed"),
        (
            {
                "zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}},
                "zero_force_ds_cpu_optimizer": False,
            },
            2,
            "Assertion failed, Partial offloading only supported for ZeRO",
        ),
    ],
)
def test_deepspeed_itself_checks_what_is_inside_its_sections(
    options: dict[str, Any], zero: int, text: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_options(options, zero)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.usefixtures("_process")
def test_an_engine_is_not_built_with_a_wrong_option() -> None:
    model = build_model(Shape(depth=1, width=8, heads=2), recipe(), 5, seed=0)
    with pytest.raises(InputError, match="overlap_com"):
        build_engine(model, recipe(zero_optimization={"overlap_com": True}), 1e-2, Layout(zero=1))


# What gets through


def test_options_are_in_the_configuration_beside_what_interplay_sets() -> None:
    options = {
        "communication_data_type": "fp32",
        "zero_optimization": {"overlap_comm": True, "reduce_bucket_size": 9},
    }
    made = deepspeed_config(recipe(**options), Layout(zero=2))
    plain = deepspeed_config(recipe(), Layout(zero=2))
    assert made["communication_data_type"] == "fp32"
    assert made["zero_optimization"] == {
        **plain["zero_optimization"],
        "overlap_comm": True,
        "reduce_bucket_size": 9,
    }
    assert {key: made[key] for key in plain if key != "zero_optimization"} == {
        key: value for key, value in plain.items() if key != "zero_optimization"
    }
    assert "overlap_comm" not in plain["zero_optimization"]


@pytest.mark.usefixtures("_process")
def test_an_engine_works_with_the_options_it_was_given() -> None:
    options = {"communication_data_type": "bf16", "zero_optimization": {"reduce_bucket_size": 1000}}
    one = recipe(**options)
    engine = build_engine(
        build_model(Shape(depth=1, width=8, heads=2), one, 5, seed=0), one, 1e-2, Layout(zero=1)
    )
    assert engine.communication_data_type == torch.bfloat16
    assert engine.zero_reduce_bucket_size() == 1000
    engine.destroy()


@pytest.mark.usefixtures("_process")
@pytest.mark.parametrize("options", USES, ids=lambda options: next(iter(options)))
def test_every_option_that_is_passed_on_trains_one_rank_to_the_same_loss(options: dict[str, Any]) -> None:
    assert losses(recipe(**options)) == pytest.approx(losses(recipe()), rel=1e-6)


def test_every_option_that_is_passed_on_is_among_the_uses_above() -> None:
    assert {key for options in USES for key in options} == set(Options.model_fields)


# Why


@pytest.mark.usefixtures("_process")
def test_library_defect_deepspeed_ignores_an_unknown_top_level_key() -> None:
    """When this fails, DeepSpeed refuses them itself, and `check_names` need not."""
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 3}, "overlap_comm": True}
    assert deepspeed.DeepSpeedConfig(config).zero_optimization_stage == 0


@pytest.mark.usefixtures("_process")
def test_library_defect_deepspeed_takes_any_value_of_a_plain_key() -> None:
    """When this fails, the types in `Options` can go."""
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": 1, "prescale_gradients": "no"}
    assert deepspeed.DeepSpeedConfig(config).prescale_gradients == "no"
