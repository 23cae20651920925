"""Split of tokens among the replicas of experts, so that the busiest device has as few tokens as possible.

A token may go to any device that has its expert. With at most T tokens per device, a split exists if and only
if no set of experts has more tokens than T times the devices that have one of them. The least T is found by
Newton's method on that ratio: a flow is computed for a lower bound on T. If it lacks capacity, its cut is a
set of experts that needs a larger T (Dinkelbach 1967, Megiddo 1974).
"""

import numpy as np

from solvers.compiled import Floats, Ints, kernel
from solvers.experts.placement import FREE, ExpertPlacement


def even_split(placement: ExpertPlacement, tokens: Ints) -> Ints:
    """Return the tokens that each slot gets, (devices, slots): the busiest device gets as few as this
    placement allows.

    Args:
        tokens: (experts,) counted tokens.

    Raises:
        ValueError: the number of experts differs from the placement's, or a count is negative.
    """
    counts = _checked(placement, tokens)
    return split_evenly(placement.experts, counts)


def split_by_shares(placement: ExpertPlacement, tokens: Ints) -> Ints:
    """Return the tokens that each slot gets by the planned shares, (devices, slots).

    Tokens of an expert add up to the counted ones: the tokens up to a device are the shares up to it,
    rounded.

    Args:
        tokens: (experts,) counted tokens.
    """
    counts = _checked(placement, tokens)
    return _by_shares(placement.experts, placement.shares, counts)


def device_loads(split: Ints) -> Ints:
    """Return the tokens of each device, (devices,), from a split (devices, slots)."""
    loads: Ints = split.sum(axis=1)
    return loads


def sends(placement: ExpertPlacement, split: Ints, tokens: Ints) -> Ints:
    """Return the tokens that each rank sends to each slot, (ranks, devices, slots): the sizes of an uneven
    all-to-all.

    Rank r is device r. It keeps as many tokens as its own slots get; the rest goes to the slots of an expert
    in the order of the devices, rank after rank. Every rank computes the same result from all counts.

    Args:
        split: (devices, slots) tokens that each slot gets.
        tokens: (ranks, experts) tokens of each rank for each expert; their sums are those of the split.

    Raises:
        ValueError: counts do not fit the placement, or differ from the split.
    """
    if tokens.shape != (placement.devices, placement.count):
        raise ValueError(
            f"counts of shape {tokens.shape}, expected one row for each of {placement.devices} devices and "
            f"one column for each of {placement.count} experts"
        )
    counts = np.ascontiguousarray(tokens, np.int64)
    assigned = np.bincount(
        placement.experts[placement.experts != FREE],
        split[placement.experts != FREE],
        minlength=placement.count,
    ).astype(np.int64)
    totals = counts.sum(axis=0)
    if not np.array_equal(assigned, totals):
        expert = int(np.argmax(assigned != totals))
        raise ValueError(
            f"{assigned[expert]} tokens of expert {expert} are split and {totals[expert]} counted: split "
            "the sum of the ranks' counts"
        )
    return _sends(placement.experts, split, counts)


def _checked(placement: ExpertPlacement, tokens: Ints) -> Ints:
    if tokens.shape != (placement.count,):
        raise ValueError(
            f"counts of shape {tokens.shape}, expected one for each of {placement.count} experts"
        )
    counts = np.ascontiguousarray(tokens, np.int64)
    if counts.min() < 0:
        expert = int(counts.argmin())
        raise ValueError(f"{counts[expert]} tokens of expert {expert}: counts are never negative")
    return counts


@kernel
def _by_shares(experts: Ints, shares: Floats, tokens: Ints) -> Ints:
    devices, slots = experts.shape
    given = np.zeros((devices, slots), np.int64)
    last = np.full(tokens.size, -1, np.int64)
    share_before = np.zeros(tokens.size)
    before = np.zeros(tokens.size, np.int64)
    for device in range(devices):
        for slot in range(slots):
            expert = experts[device, slot]
            if expert >= 0:
                share_before[expert] += shares[device, slot]
                until = min(np.int64(np.rint(tokens[expert] * share_before[expert])), tokens[expert])
                given[device, slot] = max(until - before[expert], 0)
                before[expert] += given[device, slot]
                if shares[device, slot] > 0 or last[expert] < 0:
                    last[expert] = device * slots + slot
    # Shares add up to 1 except for rounding, which must lose no token.
    for expert in range(tokens.size):
        device, slot = last[expert] // slots, last[expert] % slots
        given[device, slot] += tokens[expert] - before[expert]
    return given


@kernel
def split_evenly(experts: Ints, tokens: Ints) -> Ints:
    """See `even_split`."""
    devices, slots = experts.shape
    count = tokens.size
    starts, replicas = slots_of_experts(experts, count)
    split = np.zeros(devices * slots, np.int64)
    loads = np.zeros(devices, np.int64)
    left = tokens.copy()
    most = -(-tokens.sum() // devices)
    for expert in range(count):
        having = starts[expert + 1] - starts[expert]
        most = max(most, -(-tokens[expert] // having))
    # Ranks have about equally many tokens of an expert, which need not travel if their device has it.
    for place in range(starts[count]):
        expert = experts[replicas[place] // slots, replicas[place] % slots]
        own = tokens[expert] // devices
        split[replicas[place]] = own
        loads[replicas[place] // slots] += own
        left[expert] -= own
    # The rest is split evenly where there is room, for the experts with the fewest devices first.
    for having in range(1, devices + 1):
        for expert in range(count):
            if starts[expert + 1] - starts[expert] == having:
                for place in range(starts[expert], starts[expert + 1]):
                    slot = replicas[place]
                    room = most - loads[slot // slots]
                    added = min(room, -(-left[expert] // (starts[expert + 1] - place)))
                    split[slot] += added
                    loads[slot // slots] += added
                    left[expert] -= added
    parent_slot = np.empty(devices, np.int64)
    from_slot = np.empty(count, np.int64)
    queue = np.empty(count, np.int64)
    while True:
        device = _reach(experts, starts, replicas, split, loads, left, most, parent_slot, from_slot, queue)
        if device >= 0:
            _augment(experts, split, loads, left, most, parent_slot, from_slot, device)
            continue
        # Experts in the queue have no room left on any device that has one of them.
        lacking, reached = np.int64(0), np.int64(0)
        for expert in range(count):
            if from_slot[expert] != -2:
                lacking += left[expert]
        if lacking == 0:
            return split.reshape(devices, slots)
        for other in range(devices):
            if parent_slot[other] >= 0:
                reached += 1
        most += -(-lacking // reached)


@kernel
def slots_of_experts(experts: Ints, count: int) -> tuple[Ints, Ints]:
    """Return where the slots of each expert start, (experts + 1,), and the slots by expert, then device."""
    devices, slots = experts.shape
    starts = np.zeros(count + 1, np.int64)
    for device in range(devices):
        for slot in range(slots):
            if experts[device, slot] >= 0:
                starts[experts[device, slot] + 1] += 1
    for expert in range(count):
        starts[expert + 1] += starts[expert]
    filled = starts.copy()
    replicas = np.empty(starts[count], np.int64)
    for device in range(devices):
        for slot in range(slots):
            expert = experts[device, slot]
            if expert >= 0:
                replicas[filled[expert]] = device * slots + slot
                filled[expert] += 1
    return starts, replicas


@kernel
def _reach(
    experts: Ints,
    starts: Ints,
    replicas: Ints,
    split: Ints,
    loads: Ints,
    left: Ints,
    most: int,
    parent_slot: Ints,
    from_slot: Ints,
    queue: Ints,
) -> int:
    """Return a device with room that a path of moves of tokens reaches; -1 if no path exists.

    Args:
        parent_slot: (devices,) is set to the slot by which a device is reached, -1 where it is not.
        from_slot: (experts,) is set to the slot whose tokens would be moved, -1 for the experts that have
            tokens left, -2 where an expert is not reached.
    """
    slots = experts.shape[1]
    parent_slot[:] = -1
    from_slot[:] = -2
    first, end = 0, 0
    for expert in range(left.size):
        if left[expert] > 0:
            from_slot[expert] = -1
            queue[end] = expert
            end += 1
    while first < end:
        expert = queue[first]
        first += 1
        for place in range(starts[expert], starts[expert + 1]):
            slot = replicas[place]
            device: int = slot // slots
            if parent_slot[device] >= 0:
                continue
            parent_slot[device] = slot
            if loads[device] < most:
                return device
            for other_slot in range(device * slots, (device + 1) * slots):
                if split[other_slot] > 0 and from_slot[experts[device, other_slot % slots]] == -2:
                    from_slot[experts[device, other_slot % slots]] = other_slot
                    queue[end] = experts[device, other_slot % slots]
                    end += 1
    return -1


@kernel
def _augment(
    experts: Ints,
    split: Ints,
    loads: Ints,
    left: Ints,
    most: int,
    parent_slot: Ints,
    from_slot: Ints,
    device: int,
) -> None:
    """Move as many tokens along the path that ends at a device as the device has room for."""
    slots = experts.shape[1]
    slot = parent_slot[device]
    source = from_slot[experts[device, slot % slots]]
    amount = most - loads[device]
    while source >= 0:
        amount = min(amount, split[source])
        slot = parent_slot[source // slots]
        source = from_slot[experts[source // slots, slot % slots]]
    amount = min(amount, left[experts[slot // slots, slot % slots]])
    loads[device] += amount
    slot = parent_slot[device]
    source = from_slot[experts[device, slot % slots]]
    while source >= 0:
        split[slot] += amount
        split[source] -= amount
        slot = parent_slot[source // slots]
        source = from_slot[experts[source // slots, slot % slots]]
    split[slot] += amount
    left[experts[slot // slots, slot % slots]] -= amount


@kernel
def _sends(experts: Ints, split: Ints, tokens: Ints) -> Ints:
    devices, slots = experts.shape
    room = split.copy()
    left = tokens.copy()
    sent = np.zeros((devices, devices, slots), np.int64)
    for device in range(devices):
        for slot in range(slots):
            expert = experts[device, slot]
            if expert >= 0:
                kept = min(room[device, slot], left[device, expert])
                sent[device, device, slot] = kept
                room[device, slot] -= kept
                left[device, expert] -= kept
    starts, replicas = slots_of_experts(experts, tokens.shape[1])
    for expert in range(tokens.shape[1]):
        place = starts[expert]
        for rank in range(devices):
            while left[rank, expert] > 0:
                device, slot = replicas[place] // slots, replicas[place] % slots
                given = min(room[device, slot], left[rank, expert])
                sent[rank, device, slot] += given
                room[device, slot] -= given
                left[rank, expert] -= given
                if room[device, slot] == 0:
                    place += 1
    return sent
