"""Check a Ray cluster file, price a study on it and make its token. Starts no machine."""
