"""The run table: read from files or MLflow, typed, and reduced to the rows that may be compared."""
