"""`interplay presets`: cost and recorded results."""

import datetime
import json

from study.spec.yaml_file import preset_names


def test_presets_are_listed_with_cost_and_result(command):
    records = json.loads(command("presets", "--json")[1])
    assert sorted(record["name"] for record in records) == preset_names()
    status, out, err = command("presets")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80, "no line is broken"
    assert len(out.splitlines()) == 2 * len(records) + 2 * len({record["group"] for record in records}) + 1
    for record in records:
        assert record["cells"] > 0
        assert record["name"] in out
        assert record["description"]
        if result := record["result"]:
            assert datetime.date.fromisoformat(result["date"])
            assert result["text"].split()[0] in out
    assert {record["name"] for record in records if record["hours"] < 1} <= {
        record["name"] for record in records if record["result"]
    }, "every preset for a laptop has a recorded result"
