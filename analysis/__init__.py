"""Analyse a table of runs: crossings, threshold law, figures and report.

It imports neither torch nor Ray nor the other packages of this project.
"""
