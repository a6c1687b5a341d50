"""Send a study to a cluster as a Ray job, and follow its log."""
