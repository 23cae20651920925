"""Lina's inference (thesis, section 4.5 and 4.6.2): a model whose experts are placed where the tokens go.

- `slots`: a layer's experts on one rank: all in the host's memory, some on the device.
- `routes`, `exchange`: which rows go where, and what ranks tell each other.
- `foresight`, `profiling`: what is known of a layer before its gating network chooses.
- `phases`, `service`: the placement of each layer for each batch, and its way through the layer.
- `model`, `requests`, `statistics`: what is served, to whom, and how it went.
- `serving`: the life of a rank.
"""
