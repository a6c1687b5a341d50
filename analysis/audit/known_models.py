"""Well-known models by all published evidence. The shapes are in `analysis/audit/known_models.yaml`."""

from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from analysis.audit.evidence import published_evidence
from analysis.audit.model_config import model_config
from analysis.audit.verdict import Audit, audit
from analysis.law.near_optimal import Within


@dataclass(frozen=True)
class KnownModel:
    """A well-known model: its year, its published number of parameters and its audit."""

    year: int
    parameters: int
    audit: Audit

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types: the document of the audit, with name, year and parameters."""
        document = self.audit.to_json()
        return {"name": document.pop("model"), "year": self.year, "parameters": self.parameters, **document}


def known_models(within: Within = None) -> list[KnownModel]:
    """Compare the well-known models with every law, ordered by N.

    Raises:
        InputError: `within` is no positive number.
    """
    text = (resources.files("analysis") / "audit" / "known_models.yaml").read_text(encoding="utf-8")
    models = []
    for entry in yaml.safe_load(text):
        model = model_config(entry["config"], entry["name"])
        models.append(
            KnownModel(entry["year"], entry["parameters"], audit(model, published_evidence(), within))
        )
    return sorted(models, key=lambda item: item.audit.model.law_params)
