"""What of DeepSpeed's universal checkpoint is worked round; each test fails when the library mends it."""

import contextlib
import importlib
import io
from argparse import Namespace

import pytest
import torch

from trainables.cell import Recipe, Shape
from trainables.checkpoint import checkpoint, universal
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.ranks.process_group import join
from trainables.train.engine import build_engine, close_engine

RECIPE = Recipe(steps=4, batch=2, context=8, weight_decay=0.3)


@pytest.fixture(autouse=True)
def _process():
    join()


@contextlib.contextmanager
def engine_of(zero, steps=0, is_universal=False):
    shape = Shape(depth=1, width=8, heads=2)
    model = build_model(shape, RECIPE, 5, 0)
    engine = build_engine(model, shape, RECIPE, 1e-3, Layout(zero=zero), universal=is_universal)
    tokens = torch.arange(16).remainder(5).view(2, 8)
    try:
        for _ in range(steps):
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
        yield engine
    finally:
        close_engine(engine)


def saved(folder, zero):
    with engine_of(zero, steps=3) as engine:
        client = {} if zero else {"parameter_names": checkpoint.names(engine)}
        engine.save_checkpoint(str(folder), tag="t", client_state=client, save_latest=False)
    return folder / "t"


def deepspeeds(source, target, inject=True):
    converter = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        converter.main(
            Namespace(
                input_folder=str(source),
                output_folder=str(target),
                num_extract_workers=1,
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=inject,
            )
        )
    return target


def whole_state(engine, zero):
    """The whole weight and moments of each parameter of one rank, from where each stage keeps them."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    for parameter, name in engine.param_names.items():
        if zero == 0:
            state = engine.optimizer.state[parameter]
            yield name, (parameter, state["exp_avg"], state["exp_avg_sq"])
        elif zero == 3:
            moments = (safe_get_full_optimizer_state(parameter, key) for key in universal.STATES[1:])
            yield name, (safe_get_full_fp32_param(parameter), *moments)
        else:
            place = parameter._hp_mapping
            flat = engine.optimizer.single_partition_of_fp32_groups[place.param_group_index]
            state = engine.optimizer.optimizer.state[flat]
            begin, count = place.hp_fragment_address.start, place.hp_fragment_address.numel
            parts = (whole[begin : begin + count] for whole in (flat, state["exp_avg"], state["exp_avg_sq"]))
            yield name, tuple(part.view_as(parameter) for part in parts)


@pytest.mark.parametrize("zero", [0, 1, 2, pytest.param(3, marks=pytest.mark.extended)])
def test_the_universal_form_holds_the_whole_state_of_each_parameter(tmp_path, zero):
    universal.convert(saved(tmp_path / "c", zero), tmp_path / "u", Layout(zero=zero))
    with engine_of(zero, steps=3) as engine:
        for name, values in whole_state(engine, zero):
            folder = tmp_path / "u" / "zero" / name
            for key, value in zip(universal.STATES, values, strict=True):
                assert torch.equal(
                    torch.load(folder / f"{key}.pt", weights_only=False)["param"], value.detach()
                )
            assert float(torch.load(folder / "step.pt", weights_only=False)) == 3


@pytest.mark.extended
def test_library_defect_stage_3_gives_all_groups_the_options_of_the_first_and_one_step(tmp_path):
    """When this fails, `universal.mended` can go."""
    source = saved(tmp_path / "c", 3)
    universal.convert(source, tmp_path / "u" / "t", Layout(zero=3))
    with engine_of(3, is_universal=True) as engine:
        engine.load_checkpoint(str(tmp_path / "u"), tag="t")
        optimizer = engine.optimizer.optimizer
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.3]
        steps = [state["step"] for state in optimizer.state.values()]
        assert steps[0] is steps[1]


@pytest.mark.extended
def test_library_defect_what_the_converter_writes_of_stage_3_is_flat_and_bare(tmp_path):
    """When this fails, the form need not be completed in `universal.convert`."""
    target = deepspeeds(saved(tmp_path / "c", 3), tmp_path / "u" / "t")
    folder = target / "zero" / "transformer.wte.weight"
    assert torch.load(folder / "fp32.pt", weights_only=False).shape == (5 * 8,)
    assert not (folder / "step.pt").exists()


def test_library_defect_the_converter_knows_no_stage_0(tmp_path):
    """When this fails, `universal._merge_plain` can go."""
    with pytest.raises(FileNotFoundError, match="optim_states"):
        deepspeeds(saved(tmp_path / "c", 0), tmp_path / "u" / "t")


def test_library_defect_the_converter_misses_what_there_is_none_of_at_degree_1(tmp_path):
    """When this fails, `inject_missing_state` need not be asked for."""
    with pytest.raises(AssertionError, match="universal_checkpoint_info"):
        deepspeeds(saved(tmp_path / "c", 1), tmp_path / "u" / "t", inject=False)


def test_library_defect_only_zero_optimizers_load_the_universal_form(tmp_path):
    """When this fails, `universal.load_plain` can go."""
    source = saved(tmp_path / "c", 1)
    universal.convert(source, tmp_path / "u" / "t", Layout(zero=1))
    with engine_of(0, is_universal=True) as engine, pytest.raises((KeyError, AttributeError)):
        engine.load_checkpoint(str(tmp_path / "u"), tag="t")
