"""Lina's training (thesis, chapter 4): experts on several devices, and all-to-all before allreduce.

- `agreement`, `coordination`: which collective comes next, agreed on by all ranks while they run.
- `planning`: the same as a plan made from measured times, for NCCL.
- `scheduler`: the thread that issues collectives in that order; `trace` records them.
- `gradients`: the hook by which DistributedDataParallel averages gradients through the scheduler.
- `experts`: a layer's experts, with tokens sent to them and back, pipelined with the computation.
- `packing`, `exchange`, `offloading`: how many experts a device hosts, and where their parameters are.
"""
