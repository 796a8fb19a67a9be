"""Passes: graph → graph, one per file, in the order of `ferrule.pipeline`."""
