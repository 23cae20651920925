"""Lina's training (thesis, chapter 4): experts on several devices, and all-to-all before allreduce.

- `agreement`, `coordination`: the next collective, agreed on by all ranks during the run.
- `planning`: the order as a plan from measured times, for NCCL.
- `scheduler`: the thread that issues collectives in that order.
- `micro_ops`: the parts of collectives, and the records of them.
- `gradients`: the hook by which DistributedDataParallel averages gradients through the scheduler.
- `experts`: a layer's experts, with tokens sent to them and back, pipelined with the computation.
- `packing`, `exchange`, `offloading`: number of experts per device, and places of their parameters.
"""
