"""The blocks of labels that a monitor has seen, and the prior probability that a change began with each."""

from dataclasses import replace

from calibrant.operate.watched import Block

__all__ = ["appended", "in_order"]

_AT_ONCE = 0.9  # prior probability that the change, if any, was there from the first row
_TYPICAL = 5000.0  # rows before the change, if it came later
_OPEN = 100  # rows up to which a block takes further batches
_MOST = 200  # blocks; beyond, neighbours are joined


def appended(blocks: tuple[Block, ...], new: Block) -> tuple[Block, ...]:
    """Return ``blocks`` with ``new`` in the last one, if that has room, else after it with its prior probability.

    Args:
        blocks: In order of time.
        new: Of the newest labels.
    """
    if blocks and blocks[-1].rows + new.rows <= _OPEN:
        return (*blocks[:-1], blocks[-1] + new)
    return _joined((*blocks, _weighted(blocks, new)))


def in_order(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks of several monitors with the prior probabilities of one that has seen them in this order.

    Those they come with add up to more than 1.
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
    """Return at most ``_MOST`` blocks: of the older half, neighbours become one, which may no longer change in between."""
    while len(blocks) > _MOST:
        half = len(blocks) // 4
        pairs = [blocks[2 * at] + blocks[2 * at + 1] for at in range(half)]
        blocks = (*pairs, *blocks[2 * half :])
    return blocks
