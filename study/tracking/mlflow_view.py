"""The saved view of an experiment: the charts with which MLflow's page opens, in MLflow's own format.

MLflow keeps a saved view as a tag of the experiment: a JSON object with its name and, as text, the state of the page. A
link with its key opens it. The format is that of MLflow 3.17, which documents none;
`tests/study/tracking/test_mlflow_view.py` compares it with the installed page.
"""

import json
from typing import Any

#: The key of the view, its tag, and the name that MLflow shows.
KEY = "interplay"
TAG = f"mlflow.sharedViewState.{KEY}"
NAME = "Loss against depth and size"
#: The query of a page for training, which is not that for applications of language models, and of one with charts.
WORKFLOW = "workflowType=machine_learning"
CHARTS = f"{WORKFLOW}&compareRunsMode=CHART"
#: The section of the view, and those to which MLflow adds a chart for each other metric, closed.
SECTION, OTHERS = "Loss", ("Model metrics", "System metrics")
#: Columns of the table of runs beside the charts.
COLUMNS = (*(f"params.`{name}`" for name in ("depth", "width", "params", "seed")), "metrics.`loss`")


def page(experiment_id: str) -> str:
    """Return the fragment of an experiment's page that opens with the view."""
    return f"#/experiments/{experiment_id}/runs?{CHARTS}&viewStateShareKey={KEY}"


def charts() -> list[dict[str, Any]]:
    """Return the charts of the view: loss against depth, the curves of the loss, and loss against parameters."""
    loss = {"key": "loss", "type": "METRIC"}
    # MLflow draws at most `runsCountToCompare` runs, and makes the titles itself.
    depth, params = (
        {
            "type": "SCATTER",
            "xaxis": {"key": name, "type": "PARAM"},
            "yaxis": loss,
            "runsCountToCompare": 1000,
        }
        for name in ("depth", "params")
    )
    curves = {
        "type": "LINE",
        "metricKey": "loss",
        "xAxisKey": "step",
        "useGlobalXaxisKey": False,
        # Without these MLflow smooths the curves, whose ends are then not the losses of the other charts.
        "lineSmoothness": 0,
        "useGlobalLineSmoothing": False,
    }
    return [
        {
            "uuid": f"{KEY}-{number}",
            "metricSectionId": SECTION,
            "isGenerated": False,
            "deleted": False,
            **chart,
        }
        for number, chart in enumerate((depth, curves, params), 1)
    ]


def saved_view(created: int) -> str:
    """Return the value of the tag; `created` is the time in ms that MLflow shows beside the view's name."""
    sections = [
        {"uuid": name, "name": name, "display": name == SECTION, "isReordered": name == SECTION, "columns": 2}
        for name in (SECTION, *OTHERS)
    ]
    state = {
        # Without the runs of studies, which have no loss.
        "searchFilter": "tags.`interplay.kind` = 'trial'",
        "orderByKey": "metrics.`loss`",
        "orderByAsc": True,
        # By default MLflow draws ten runs.
        "runsHiddenMode": "SHOW_ALL",
        "runListHidden": True,
        "selectedColumns": list(COLUMNS),
        "compareRunCharts": charts(),
        "compareRunSections": sections,
        # Else MLflow sorts the sections by name.
        "isAccordionReordered": True,
    }
    return json.dumps({"name": NAME, "createdAt": created, "state": json.dumps(state)})
