"""The compiled loops: Triton for CUDA, Numba for the CPU, PyTorch as the reference for both and the way without either.

    threads         one size rule, and the threads that the CPU's loops share
    cpu             when the CPU's loops serve, and the calls that reach them
    cuda_sums       bins of pairs and moments of a temperature, on CUDA
    cuda_losses     the cross-entropy pass of the losses, on CUDA

The loops themselves (``_loops``, ``_moment_loops``, ``_bin_loops``, ``_loop_math``) import Numba and are imported late.
"""
