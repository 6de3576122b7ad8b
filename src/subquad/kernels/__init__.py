"""Kernels in C++ for where a profile shows that torch's leave time on the table; torch's own run wherever these cannot.

A kernel is compiled for the machine's processor at its first call, which takes a second, and kept in the user's cache
folder. It needs Linux and g++ of GCC 9 or newer. `SUBQUAD_KERNELS=off` leaves all to torch.
"""
