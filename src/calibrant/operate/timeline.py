"""The blocks of labels of a monitor, and the prior probability that a change began with each."""

from dataclasses import replace

from calibrant.operate.watched import Block

__all__ = ["appended", "in_order"]

_AT_ONCE = 0.9  # prior probability that a change, if any, precedes the first row
_TYPICAL = 5000.0  # prior median of the number of rows before a later change
_OPEN = 100  # batches are added to a block while it then has at most this many rows
_MOST = 200  # largest number of blocks; beyond, neighbours are merged


def appended(blocks: tuple[Block, ...], new: Block) -> tuple[Block, ...]:
    """Return ``blocks`` with ``new`` added to the last one if that is small, else appended with its prior probability.

    Args:
        blocks: In order of time.
        new: The block of the newest labels.
    """
    if blocks and blocks[-1].rows + new.rows <= _OPEN:
        return (*blocks[:-1], blocks[-1] + new)
    return _joined((*blocks, _weighted(blocks, new)))


def in_order(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks of several monitors with the prior probabilities of a single monitor that got them in this order.

    The prior probabilities of several monitors would sum to more than 1.
    """
    found: tuple[Block, ...] = ()
    for block in blocks:
        found = (*found, _weighted(found, block))
    return _joined(found)


def _weighted(blocks: tuple[Block, ...], new: Block) -> Block:
    """Return ``new`` with the prior probability that a change began with it, after ``blocks``."""
    if not blocks:
        return replace(new, weight=_AT_ONCE)
    rows = sum(block.rows for block in blocks)
    spent = sum(block.weight for block in blocks)
    later = _TYPICAL / (_TYPICAL + rows), _TYPICAL / (_TYPICAL + rows + max(new.rows, _OPEN))
    return replace(new, weight=(1 - spent) * (1 - later[1] / later[0]))


def _joined(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return at most ``_MOST`` blocks: in the older half neighbours are merged, so that no change can begin between them."""
    while len(blocks) > _MOST:
        half = len(blocks) // 4
        pairs = [blocks[2 * at] + blocks[2 * at + 1] for at in range(half)]
        blocks = (*pairs, *blocks[2 * half :])
    return blocks
