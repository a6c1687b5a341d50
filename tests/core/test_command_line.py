"""What messages call an option: that of the command in a shell, an argument in Python."""

from pathlib import Path

import pytest

from core.command_line import call, in_shell, option, options, try_with


@pytest.mark.parametrize(
    ("name", "value", "python", "shell"),
    [
        ("level", None, "level=", "--level"),
        ("level", 0.9, "level=0.9", "--level 0.9"),
        ("flops", "1e20", "flops=1e20", "--flops 1e20"),
        ("depth", "L", "depth=L", "--depth L"),
        ("law", "liu2026", "law='liu2026'", "--law liu2026"),
        ("fit", Path("a/fit.json"), "fit='a/fit.json'", "--fit a/fit.json"),
        ("column", None, "columns=", "--column"),
        ("column", "loss=HEADING", "columns={'loss': 'HEADING'}", "--column loss=HEADING"),
        ("where", "a=b=c", "where={'a': 'b=c'}", "--where a=b=c"),
        ("assume", "noise=0.005", "assume={'noise': 0.005}", "--assume noise=0.005"),
        ("assume", "noise=x", "assume={'noise': 'x'}", "--assume noise=x"),
        ("json", None, "to_json()", "--json"),
        ("train-time", "2h", "train_time='2h'", "--train-time 2h"),
    ],
)
def test_an_option_is_an_argument_in_python(name, value, python, shell):
    assert option(name, value) == python
    with in_shell(["fit"]):
        assert option(name, value) == shell
    assert option(name, value) == python


def test_several_options_are_ready_to_paste():
    assert options(depth=32, width="D") == "depth=32, width=D"
    tried = [("column", "loss=my loss"), ("column", "depth=n"), ("where", "kind=a")]
    assert try_with(tried) == " Try: columns={'loss': 'my loss', 'depth': 'n'}, where={'kind': 'a'}"
    assert try_with(changes=["data.path=null"]) == " Try: 'data.path=null'"
    with in_shell(["fit", "my runs.csv"]):
        assert options(depth=32, width="D") == "--depth 32 --width D"
        assert try_with(tried[:1]) == " Try: interplay fit 'my runs.csv' --column 'loss=my loss'"
        assert try_with(changes=["data.path=null"]) == " Try: interplay fit 'my runs.csv' data.path=null"


@pytest.mark.parametrize(
    ("arguments", "given", "python", "shell"),
    [
        (
            ("fit", "my runs.csv"),
            {"out": "a.json"},
            "fit('my runs.csv', out='a.json')",
            "fit 'my runs.csv' --out a.json",
        ),
        (("fit", "RUNS"), {"uri": "URI"}, "fit(RUNS, uri=URI)", "fit RUNS --uri URI"),
        (("recommend", "7B"), {"law": None}, "recommend('7B')", "recommend 7B"),
        (("recommend",), {"flops": [1e20]}, "recommend(flops=1e+20)", "recommend --flops 1e+20"),
        (("audit",), {"depth": 12, "width": "D"}, "audit(depth=12, width=D)", "audit --depth 12 --width D"),
        (("try", "a", "data.path=x"), {}, "try_steps('a', 'data.path=x')", "try a data.path=x"),
        (("cost", "a"), {"again": True}, "cost('a', again=True)", "cost a --again"),
        (("recommend",), {"train_time": "2h"}, "recommend(train_time='2h')", "recommend --train-time 2h"),
        (("run", "a"), {"results": Path("/b")}, "run('a', results='/b')", "run a --results /b"),
    ],
)
def test_a_verb_is_a_call_in_python(arguments, given, python, shell):
    assert call(*arguments, **given) == f"interplay.{python}"
    with in_shell(["fit"]):
        assert call(*arguments, **given) == f"interplay {shell}"
