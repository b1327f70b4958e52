"""The order in which gaccd reads sequences, from its definition in worker/data/order.c, and the sequences themselves."""
import numpy

MASK = (1 << 64) - 1


def _h(a):
    z = (a + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def epoch_order(seed, epoch, count):
    """The sequence at every position of the epoch: a list of `count`."""
    half = 4
    while half < 32 and count > 1 << 2 * half:
        half += 1
    mask = (1 << half) - 1
    key = _h(_h(seed) ^ epoch)
    round_keys = [_h(key ^ r) for r in range(8)]

    def permute(position):
        left, right = position >> half, position & mask
        for round_key in round_keys:
            left, right = right, left ^ (_h(round_key ^ right) & mask)
        return left << half | right

    order = []
    for position in range(count):
        position = permute(position)
        while position >= count:
            position = permute(position)
        order.append(position)
    return order


def global_batches(seed, count, size):
    """Lists of sequences, one a step, without end; the short batch at the end of an epoch is a step (tail: flush)."""
    epoch = 0
    while True:
        order = epoch_order(seed, epoch, count)
        for first in range(0, count, size):
            yield order[first:first + size]
        epoch += 1


def split(tokens, fraction):
    """(train, validation): the fraction is cut from the end."""
    cut = int(len(tokens) * (1 - fraction) + 1e-6)
    return tokens[:cut], tokens[cut:]


def sequences(tokens, context):
    """(inputs, targets), one row a sequence: sequence i starts at token i·context."""
    count = (len(tokens) - 1) // context
    inputs = tokens[:count * context].reshape(count, context)
    targets = tokens[1:count * context + 1].reshape(count, context)
    return numpy.ascontiguousarray(inputs), numpy.ascontiguousarray(targets)
