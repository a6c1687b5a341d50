"""The MLflow model of a cell of symbols. MLflow copies this file into the model's folder and runs it there."""

from typing import Any

import mlflow
import torch
from transformers import AutoModelForCausalLM


class SymbolsModel(mlflow.pyfunc.PythonModel):
    """Gives the probabilities of the next symbol; `model` is HuggingFace's own."""

    model: Any

    def load_context(self, context: Any) -> None:
        """Load the HuggingFace folder that lies in the model's."""
        self.model = AutoModelForCausalLM.from_pretrained(context.artifacts["model"]).eval()

    def predict(self, context: Any, model_input: list[list[int]]) -> list[list[float]]:
        """Probabilities [B, V] of the symbol after each of B sequences of ids, of any lengths."""
        with torch.no_grad():
            return [self.model(torch.tensor([ids])).logits[0, -1].softmax(-1).tolist() for ids in model_input]


mlflow.models.set_model(SymbolsModel())
