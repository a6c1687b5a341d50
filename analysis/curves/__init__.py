"""Loss against ln N for each depth: seed noise, smooth curves, and the best shape of each budget."""
