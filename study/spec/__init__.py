"""The YAML of a study: one module per section with its checks, and the code that reads it."""

from study.spec.study import StudySpec, load_spec

__all__ = ["StudySpec", "load_spec"]
