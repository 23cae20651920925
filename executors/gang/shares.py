"""Division of a batch among ranks."""


def share(count: int, rank: int, world: int) -> range:
    """Return the places of a rank in a batch of `count`: neighbours, in nearly equal numbers, in the order of
    the ranks. With more ranks than places, the last ranks have none."""
    size, longer = divmod(count, world)
    start = rank * size + min(rank, longer)
    return range(start, start + size + (rank < longer))
