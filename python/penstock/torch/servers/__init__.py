"""
`where="servers"`: the servers take the optimizer's steps, and its state exists once in the job.

| file | holds |
|---|---|
| rules.py | which rule of the servers a torch optimizer is |
| delivery.py | when a gradient leaves |
| transfer.py, cuda.py | how bytes move between a parameter and the servers; whether they changed since |
| bits.py | tensors compared bit for bit |
| attendance.py | who takes part in a step |
| clipping.py | steps by an average that is clipped by its norm |
| state.py | what stands for the optimizer's state |
| optimizer.py | torch's interface over all that |
"""
