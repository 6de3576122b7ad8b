"""CPU kernels in C++ for operations that profiles show to be slow in torch. Elsewhere torch's operators run.

A kernel is compiled for the machine's processor at its first call, which takes a second, and stored in the user's cache
folder. This needs Linux and g++ of GCC 9 or newer. `SUBQUAD_KERNELS=off` disables all kernels.
"""
