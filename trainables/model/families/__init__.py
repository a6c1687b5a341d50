"""The model families: each module defines one `ModelFamily` under its own name, and is found by being here."""
