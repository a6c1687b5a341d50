"""The structure of the code: which package, folder and module may import which, and how light some imports are."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("analysis", "core", "interplay", "study", "trainables")
MOST_MODULES = 16

#: What a package may never import, at the top of a module or inside a function.
FORBIDDEN = {
    "analysis": {
        "interplay",
        "study",
        "trainables",
        "tests",
        "torch",
        "ray",
        "optuna",
        "deepspeed",
        "transformers",
        "datasets",
    },
    "trainables": {"interplay", "study", "analysis", "tests", "ray", "mlflow", "optuna"},
    "study": {"interplay", "tests"},
    "interplay": {"tests"},
    "core": {"analysis", "interplay", "study", "trainables", "tests"},
}

#: The floors of each folder, from the top. A module imports only from its own room and from rooms on lower floors.
FLOORS = {
    "study": [
        {"run"},
        {"tracking"},
        {"search", "workers"},
        {"plan", "usage"},
        {"spec"},
        {"errors", "proxy", "revision"},
    ],
    "interplay": [
        {"__main__"},
        {"cli"},
        {"cluster"},
        {"verbs"},
        {"study_fit"},
        {"answer"},
        {"recommended"},
        {"fit_files", "planned_runs", "timed_frontier"},
        {"study_file"},
        {"terminal"},
        {"result"},
    ],
    "analysis": [
        {"report"},
        {"design", "audit", "theory"},
        {"fit"},
        {"law"},
        {"curves"},
        {"runs"},
        {"intervals", "tables", "threads", "units"},
    ],
    "analysis/report": [
        {"study_page", "comparison_page"},
        {"words"},
        {"html", "tables"},
        {"figures"},
    ],
    "trainables": [
        {"__main__"},
        {"train"},
        {"export", "checkpoint", "diagnostics"},
        {"record", "model"},
        {"layout"},
        {"cell"},
        {"data", "deepspeed_options"},
        {"storage", "ranks"},
        {"progress", "errors"},
    ],
    "trainables/data": [
        {"store"},
        {"packing"},
        {"kinds"},
        {"task"},
        {"kind"},
        {"sources", "score"},
    ],
}


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name; a package is its `__init__`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


MODULES = modules()


def imported(path: Path) -> Iterator[str]:
    """What a module imports anywhere: at its top, inside functions and for types only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


IMPORTS = {name: sorted({item for item in imported(path) if item != name}) for name, path in MODULES.items()}


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_only_what_its_place_allows(package: str) -> None:
    inside = [name for name in MODULES if name.split(".")[0] == package]
    assert inside
    wrong = {
        name: bad
        for name in inside
        if (bad := {item.split(".")[0] for item in IMPORTS[name]} & FORBIDDEN[package])
    }
    assert not wrong


def room_of(folder: str, name: str) -> str | None:
    """The first part of a module's name below a folder, `spec` of `study.spec.study` below `study`."""
    prefix = folder.replace("/", ".") + "."
    return name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else None


@pytest.mark.parametrize("folder", sorted(FLOORS))
def test_imports_go_down_the_floors(folder: str) -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS[folder]) for room in rooms}
    found = {room for name in MODULES if (room := room_of(folder, name))}
    assert found == set(floor), "a room without a floor, or a floor without a room"
    upward = [
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in others
        if (mine := room_of(folder, name))
        and (its := room_of(folder, other))
        and mine != its
        and floor[mine] >= floor[its]
    ]
    assert not upward


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Lazy and type-only imports count: each hides a circle from Python and none from a reader."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " > ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in IMPORTS[name]:
                if other in MODULES:
                    visit(other, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_no_folder_is_crowded() -> None:
    sizes: dict[str, int] = {}
    for path in MODULES.values():
        if path.name != "__init__.py":
            folder = str(path.parent.relative_to(ROOT))
            sizes[folder] = sizes.get(folder, 0) + 1
    crowded = {folder: size for folder, size in sizes.items() if size > MOST_MODULES}
    assert not crowded


#: In the order in which one process imports them: what each must not have loaded, alone or after those before it.
LIGHT = {
    "interplay": {"torch", "ray", "mlflow", "optuna", "pandas", "deepspeed", "pydantic"},
    "trainables.cell": {"torch", "numpy", "transformers", "datasets"},
    "trainables.data": {"torch", "numpy", "transformers", "datasets"},
    "study.spec": {"torch", "ray", "mlflow", "optuna", "pandas", "deepspeed", "datasets"},
    "study.plan": {"torch", "ray", "mlflow", "optuna", "pandas", "deepspeed"},
    "interplay.cli": {"torch", "ray", "mlflow", "optuna", "pandas", "deepspeed"},
    "analysis.law.prediction": {"torch", "ray", "mlflow"},
    "analysis.fit.document": {"torch", "ray", "mlflow"},
    # The processes of its trials load these.
    "study.run.runner": {"torch", "deepspeed", "transformers"},
}


def test_light_modules_stay_light() -> None:
    """A plan or a fit takes about a second, so nothing heavy is imported before it is needed."""
    program = f"""
import importlib, sys
for module, heavy in {LIGHT!r}.items():
    importlib.import_module(module)
    for name in sorted(heavy & set(sys.modules)):
        print(module, "loads", name)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines() == []


#: Names that do not say what they stand for.
VAGUE = {"found", "one", "own", "known", "there", "here"}


def test_names_say_what_they_stand_for() -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{node.lineno} {name}"
        for path in (*MODULES.values(), *(ROOT / "benchmarks").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := _bound(node)) in VAGUE
    ]
    assert vague == []


def _bound(node: ast.AST) -> str | None:
    """The name that a node binds: of a variable, an attribute, a parameter, a function, a class or a pattern."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case (
            ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.MatchAs(name=name)
        ):
            return name
    return None


#: Libraries of which more than the documented interface is used.
PINNED = ("deepspeed", "ray", "transformers")


def test_libraries_that_are_touched_inside_are_pinned_to_the_release_that_the_tests_guard() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    held = set((ROOT / "constraints.txt").read_text().splitlines())
    for name in PINNED:
        found = [re.sub(r"\[.*\]", "", text) for text in wanted if re.match(rf"{name}\b", text)]
        assert found
        assert set(found) <= held, name


def test_five_modules_at_most_import_deepspeed_or_touch_its_inside() -> None:
    touched = re.compile(
        r"import_module\(\"deepspeed|import deepspeed\b|from deepspeed\b|import_deepspeed\(\)|engine\._"
    )
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "trainables").rglob("*.py")
        if touched.search(path.read_text())
    }
    assert found == {
        "trainables/checkpoint/checkpoint.py",
        "trainables/checkpoint/universal.py",
        "trainables/deepspeed_options.py",
        "trainables/ranks/process_group.py",
        "trainables/train/engine.py",
    }
