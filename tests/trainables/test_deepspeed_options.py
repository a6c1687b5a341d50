"""DeepSpeed's own options: what is refused, by us or by DeepSpeed, and that the rest gets through."""

from typing import Any

import pytest
import torch

from core.errors import InputError
from trainables.cell import Recipe, Shape
from trainables.deepspeed_options import ZERO_REFUSED, check_names, check_options
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.ranks.process_group import join
from trainables.train.engine import build_engine, close_engine, deepspeed_config


@pytest.fixture
def _process() -> None:
    join()


def recipe(**zero_optimization: Any) -> Recipe:
    return Recipe(steps=3, batch=2, context=8, deepspeed={"zero_optimization": zero_optimization})


def engine_of(recipe: Recipe, zero: int = 1) -> Any:
    shape = Shape(depth=1, width=8, heads=2)
    model = build_model(shape, recipe, 5, seed=0)
    return build_engine(model, shape, recipe, 1e-2, Layout.model_validate({"zero": zero}))


def losses(recipe: Recipe) -> list[float]:
    engine = engine_of(recipe)
    found = []
    for step in range(recipe.steps):
        x = torch.arange(16).view(2, 8).add(step).remainder(5)
        loss = engine(input_ids=x, labels=x).loss
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    close_engine(engine)
    return found


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(({"zero_optimization": {key: True}}, f"`zero_optimization.{key}`") for key in sorted(ZERO_REFUSED)),
        ({"zero_optimization": True}, "`zero_optimization`"),
        ({"zero_optimisation": {}}, "`zero_optimization`"),
        ({"overlap_comm": True}, "`zero_optimization`"),
        ({"gradient_clipping": 2}, "`training.grad_clip`"),
        ({"zero_optimization": {"reduce_bucket_size": float("nan")}}, "JSON"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "`device: cpu`"),
    ],
    ids=str,
)
def test_what_is_refused_is_named_with_the_fix(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        check_names(options)
    assert named in str(caught.value)


def test_the_refused_keys_are_those_of_deepspeed() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    assert set(DeepSpeedZeroConfig.model_fields) >= ZERO_REFUSED


@pytest.mark.parametrize(
    ("options", "zero", "named"),
    [
        ({"overlap_com": True}, 1, "overlap_com"),
        ({"offload_param": {"devic": "cpu"}}, 3, "devic"),
        ({"reduce_bucket_size": -1}, 1, "reduce_bucket_size"),
        ({"overlap_comm": "perhaps"}, 1, "overlap_comm"),
        ({"mics_shard_size": 2}, 3, "MiCS"),
    ],
)
def test_deepspeed_itself_checks_what_is_inside(options: dict[str, Any], zero: int, named: str) -> None:
    with pytest.raises(InputError) as caught:
        check_options({"zero_optimization": options}, zero)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.usefixtures("_process")
def test_an_engine_is_not_built_with_a_wrong_option() -> None:
    with pytest.raises(InputError, match="overlap_com"):
        engine_of(recipe(overlap_com=True))


def test_options_are_in_the_configuration_beside_what_interplay_sets() -> None:
    made = deepspeed_config(recipe(overlap_comm=True, reduce_bucket_size=9), Layout(zero=2))
    plain = deepspeed_config(recipe(), Layout(zero=2))
    changed = {**plain["zero_optimization"], "overlap_comm": True, "reduce_bucket_size": 9}
    assert made == {**plain, "zero_optimization": changed}
    assert "overlap_comm" not in plain["zero_optimization"]


@pytest.mark.usefixtures("_process")
@pytest.mark.parametrize(
    "options",
    [
        {"overlap_comm": True, "reduce_bucket_size": 1000, "contiguous_gradients": False},
        {"offload_optimizer": {"device": "cpu"}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_train_one_rank_to_the_same_loss(options: dict[str, Any]) -> None:
    assert losses(recipe(**options)) == pytest.approx(losses(recipe()), rel=1e-6)


@pytest.mark.usefixtures("_process")
def test_library_defect_deepspeed_ignores_an_unknown_top_level_key() -> None:
    """When this fails, DeepSpeed refuses them itself, and `check_names` need not."""
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 3}, "overlap_comm": True}
    assert deepspeed.DeepSpeedConfig(config).zero_optimization_stage == 0
