"""Writes a tensor into another one by RDMA, and checks the elements: see lib.rs."""

import ctypes
import sys

import torch

python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def give_away(tensor):
    """The address of a tensor of DLPack, which no capsule frees any more."""
    capsule = torch.utils.dlpack.to_dlpack(tensor)
    address = python.PyCapsule_GetPointer(capsule, b"dltensor")
    python.PyCapsule_SetName(capsule, b"used_dltensor")
    return ctypes.c_void_p(address)


def main():
    library = ctypes.CDLL(sys.argv[1])
    source = torch.randn(1 << 20, device="cuda")
    target = torch.zeros_like(source)
    torch.cuda.synchronize()
    if library.write_tensor(give_away(source), give_away(target)) != 0:
        sys.exit(1)
    assert torch.equal(source, target)
    print(f"{source.numel()} elements are equal")


main()
