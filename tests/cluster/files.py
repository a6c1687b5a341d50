"""The shipped cluster file with the edits that its first lines ask for."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

EDITS = {
    "image": "ami-0123456789abcdef0",
    "bucket": "my-study-bucket",
    "security_group": "sg-0123456789abcdef0",
}


def edited(text, **values):
    """Set values of `metadata` and keep its anchors."""
    for key, value in values.items():
        pattern = rf"(?m)^(  {key}: (?:&\w+ )?)\S+"
        assert re.search(pattern, text), f"`metadata` has no {key}"
        text = re.sub(pattern, lambda found, value=value: found[1] + value, text)
    return text


def aws(folder, **values):
    """Write the edited file for AWS, and return its path."""
    path = folder / "aws.yaml"
    path.write_text(edited((ROOT / "cluster/aws.yaml").read_text(), **{**EDITS, **values}))
    return path
