"""Write rayjob.json.gz from a clone of KubeRay: `python tests/cluster/crds/derive.py CLONE TAG`."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

PATH = "ray-operator/config/crd/bases/ray.io_rayjobs.yaml"


def bare(schema: Any) -> Any:
    """A schema without its prose, which is most of it, and without rules that only an API server can apply.

    Under `properties` the keys are names of fields, one of which may be `description`.
    """
    if isinstance(schema, list):
        return [bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: bare(field) for name, field in value.items()}
        elif key not in ("description", "x-kubernetes-validations", "default"):
            kept[key] = bare(value)
    return kept


def main(clone: str, tag: str) -> None:
    """Read the definition at a tag, which needs no work tree, and write it beside this file."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", clone, *arguments], check=True, capture_output=True, text=True
        ).stdout

    definition = yaml.safe_load(git("show", f"{tag}:{PATH}"))
    (version,) = (one for one in definition["spec"]["versions"] if one["name"] == "v1")
    document = {
        "tag": tag,
        "commit": git("rev-parse", f"{tag}^{{commit}}").strip(),
        "path": PATH,
        "schema": bare(version["schema"]["openAPIV3Schema"]),
    }
    content = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    # Without a time, so that the same tag gives the same bytes.
    (Path(__file__).parent / "rayjob.json.gz").write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
