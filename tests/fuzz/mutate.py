"""Mutations of bytes and of arguments, drawn from a seeded generator."""

import struct

NUMBERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 65, 255, 256, 1000, 2**15, 2**16)
NUMBERS += (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
CODES = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


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


def _set_number(chance, data, _others):
    size = chance.choice((1, 2, 4, 8))
    place = _some_place(chance, data)
    if chance.random() < 0.5:
        place -= place % 4
    value = chance.choice((number(chance), len(data), len(data) - place - size))
    data[place : place + size] = struct.pack(CODES[size], value % 2 ** (8 * size))


def _add_to_number(chance, data, _others):
    size = chance.choice((1, 2, 4, 8))
    place = _some_place(chance, data)
    if place + size <= len(data):
        (value,) = struct.unpack_from(CODES[size], data, place)
        value += chance.choice((-8, -4, -2, -1, 1, 2, 4, 8))
        struct.pack_into(CODES[size], data, place, value % 2 ** (8 * size))


def _set_byte(chance, data, _others):
    if data:
        place = _some_place(chance, data) % len(data)
        flipped = data[place] ^ (1 << chance.randrange(8))
        data[place] = flipped if chance.random() < 0.7 else chance.randrange(256)


def _cut(chance, data, _others):
    del data[_some_place(chance, data) :]


def _remove(chance, data, _others):
    place = _some_place(chance, data)
    del data[place : place + chance.randrange(1, 20)]


def _insert(chance, data, _others):
    place = _some_place(chance, data)
    repeated = data[place : place + chance.randrange(1, 40)] * chance.randrange(1, 4)
    is_repeated = chance.random() < 0.5
    data[place:place] = repeated if is_repeated else chance.randbytes(chance.randrange(1, 20))


def _splice(chance, data, others):
    other = chance.choice(others)
    start = chance.randrange(len(other) + 1)
    place = _some_place(chance, data)
    data[place : place + chance.randrange(40)] = other[start : start + chance.randrange(60)]


# Mutations of single numbers are the most frequent: they do not move the rest of a file.
OPERATIONS = (
    *(_set_number, _set_number, _set_number, _add_to_number, _add_to_number),
    *(_set_byte, _set_byte, _set_byte, _cut, _remove, _insert, _insert, _splice),
)


def mutated(chance, files):
    """Return one of these files with a few changes."""
    data = bytearray(chance.choice(files))
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        chance.choice(OPERATIONS)(chance, data, files)
    return bytes(data)
