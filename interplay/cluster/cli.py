"""`interplay cluster`: check a cluster file and make its token, before `ray up`."""

import json
from typing import Annotated

import typer
from rich.console import Console

from study.usage import Verbs

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check the file of a cluster, and make its token. Also price a study on it. Starts no machine.",
)

FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="a Ray cluster file, such as cluster/aws.yaml")
]


@app.command("check")
def check_verb(
    file: FileArgument,
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[SPEC]", help="also check that this study fits, and estimate its price"),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="override keys of SPEC: training.seeds=5", show_default=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON document on stdout and nothing else")
    ] = False,
) -> None:
    """Find mistakes in a cluster file, and price a study. Uses no network."""
    from interplay.cluster.check import check, check_view

    checked = check(file, spec, changes or ())
    if as_json:
        print(json.dumps(checked.to_json(), indent=2, allow_nan=False))
    else:
        Console(highlight=False).print(check_view(checked), soft_wrap=True)
    if checked.file.errors:
        raise typer.Exit(2)


@app.command("token")
def token_verb(file: FileArgument) -> None:
    """Make the token of a cluster, readable by you alone. An existing one is kept."""
    from interplay.cluster.cluster_file import make_token, read

    path, outcome = make_token(read(file))
    verb = "Made" if outcome == "made" else "Kept"
    print(f"{verb} the token {path}. `ray up {file}` copies it to the machines.")
    if outcome == "corrected":
        print("Other users could read it until now. If one of them may have, delete it and make a new one.")
