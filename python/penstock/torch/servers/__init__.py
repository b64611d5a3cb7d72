"""
`where="servers"`: the servers take the optimizer's steps, and its state exists once in the job.

| file | holds |
|---|---|
| rules.py | which rule of the servers a torch optimizer is |
| delivery.py | when a gradient leaves |
| transfer.py, cuda.py | how bytes move between a parameter and the servers |
| optimizer.py | torch's interface over all that |
"""
