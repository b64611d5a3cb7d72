"""
Broadcasts through trees, timed: `penstock bench tree`.

A server broadcasts a value to workers, all on test hosts of their own, by each shape of tree in turn. What
that takes stands beside one link's transfer of the same bytes, the planner's prediction and Gloo.
(`penstock_bench.trees` is something else: it compares the *planner's* trees with the best ones, and sends
nothing.)

| file | what |
|---|---|
| `rank` | what one worker does: contributes, waits for the version, checks every bit |
| `link`, `gloo` | the same bytes by a plain TCP stream over one link; by Gloo's broadcast |
| `systems` | how each of them is started, and told what to do |
| `measure` | rounds in which all take turns; who sent how much |
| `faults` | an inner node is killed, stopped, cut off or made slow in the middle of a broadcast |
| `theory` | what the planner predicts |
| `report` | tables and JSON; `plot` the picture |
"""
