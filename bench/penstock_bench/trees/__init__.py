"""How far the planner's trees are from the best ones: `python -m penstock_bench.trees`."""
