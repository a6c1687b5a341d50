"""The built-in model families: each module defines and registers the `ModelFamily` of its name."""
