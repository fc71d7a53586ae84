"""Mutations of bytes and of arguments, drawn from a seeded generator."""

NUMBERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 65, 255, 256, 1000, 2**15, 2**16)
NUMBERS += (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def number(chance):
    """Return an integer that a reader may mishandle."""
    value = chance.choice(NUMBERS)
    if chance.random() < 0.3:
        value += chance.randrange(-9, 10)
    return -value if chance.random() < 0.2 else value


def _some_place(chance, data):
    # The data that determines how to read the rest is at the beginning.
    most = len(data) if chance.random() < 0.5 else min(len(data), 128)
    return chance.randrange(most + 1)


def _number(chance, data, _others):
    size = chance.choice((1, 2, 4, 8))
    place = _some_place(chance, data)
    if chance.random() < 0.5:
        place -= place % 4
    value = chance.choice((number(chance), len(data), len(data) - place - size))
    if place + size <= len(data) and chance.random() < 0.4:
        value = int.from_bytes(data[place : place + size], "little") + chance.randrange(-8, 9)
    data[place : place + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")


def _byte(chance, data, _others):
    if data:
        place = _some_place(chance, data) % len(data)
        flipped = data[place] ^ (1 << chance.randrange(8))
        data[place] = flipped if chance.random() < 0.7 else chance.randrange(256)


def _remove(chance, data, _others):
    place = _some_place(chance, data)
    del data[place : chance.choice((place + chance.randrange(1, 20), len(data)))]


def _insert(chance, data, others):
    """Insert bytes, or overwrite some, with parts of this file or another one, or with noise."""
    place, other = _some_place(chance, data), chance.choice((data, *others))
    start = chance.randrange(len(other) + 1)
    part = other[start : start + chance.randrange(1, 60)]
    end = place + chance.choice((0, 0, chance.randrange(40)))
    data[place:end] = part if chance.random() < 0.6 else chance.randbytes(chance.randrange(1, 20))


# Mutations of single numbers are the most frequent: they do not move the rest of a file.
OPERATIONS = (*[_number] * 5, *[_byte] * 3, *[_remove] * 2, *[_insert] * 3)


def mutated(chance, files):
    """Return one of these files with a few changes."""
    data = bytearray(chance.choice(files))
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        chance.choice(OPERATIONS)(chance, data, files)
    return bytes(data)
