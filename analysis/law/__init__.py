"""Crossings, the threshold law through them, its alternatives and its projection."""
