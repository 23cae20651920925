"""Who takes which part of a batch."""


def share(count: int, rank: int, world: int) -> range:
    """Which of a batch's `count` places are a rank's: neighbours, as equal in number as can be, in the order
    of the ranks. With more ranks than places the last ones have none."""
    size, longer = divmod(count, world)
    start = rank * size + min(rank, longer)
    return range(start, start + size + (rank < longer))
