"""Crossings, the threshold law through them, its rivals and its projection."""
