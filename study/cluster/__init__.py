"""The laptop's side of a cluster: its file is checked, its token made, a study sent to it. Starts no machine."""
