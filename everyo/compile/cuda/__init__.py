"""The CUDA back end: the same graphs, passes and groups as on the CPU, printed for numba-cuda.

`lower` and `printer` make kernel text of a group, `toolchain` machine code of text, `plan` and
`program` run a graph on a `runtime`: a GPU (`device`) or the PTX interpreter (`emulator`).
"""
