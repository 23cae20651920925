"""Lina's inference (thesis, section 4.5 and 4.6.2): a model whose experts are placed by the load of tokens.

- `slots`: a layer's experts on one rank, some of them on the device, and the routes of rows to them.
- `exchange`: the exchanges between ranks.
- `profiling`: forecasts for a layer before its gating network chooses.
- `phases`, `service`: the placement of each layer for each batch, and its way through the layer.
- `model`, `requests`, `statistics`: the served model, its requests, and measurements.
- `rank`: the life of a rank.
"""
