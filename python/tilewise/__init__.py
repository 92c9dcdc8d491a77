"""Tilewise: exact attention, forward and backward, tile by tile. Imports no framework.

`_lib` is the C ABI of include/tilewise/tilewise.h by ctypes, which everything else here stands on.
"""
__version__ = "0.1.0"
