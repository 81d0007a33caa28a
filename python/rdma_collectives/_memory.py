"""Objects without the buffer protocol, as the native module takes them."""

from __future__ import annotations

import sys

from ._errors import InvalidArgument


def exported(obj, name):
    """An object with the buffer protocol or DLPack that shares the memory of `obj`, and the type of
    its elements if that object does not tell it.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return of_tensor(torch, obj, name)
    return obj, None


def of_tensor(torch, tensor, name):
    """A tensor of PyTorch, as an array of NumPy: PyTorch then refuses to resize the memory, which
    it does not do for DLPack.
    """
    if tensor.device.type != "cpu":
        raise InvalidArgument(
            f"`{name}` is on the device {tensor.device}, and this build takes tensors of the host: give `{name}.cpu()`"
        )
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"`{name}` has the layout {tensor.layout}: make it dense first")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"`{name}` is not contiguous: give `{name}.contiguous()`")
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(f"`{name}` is a lazy view: give `{name}.resolve_conj().resolve_neg()`")
    tensor = tensor.detach()
    told = None
    if tensor.dtype is torch.bfloat16:
        tensor, told = tensor.view(torch.int16), "bf16"
    try:
        return tensor.numpy(), told
    except TypeError:
        # A type that NumPy does not have, such as one of 8 bits: it can only be moved.
        return tensor.view(torch.uint8).numpy(), "items"
    except RuntimeError as error:
        if "Numpy is not available" in str(error):
            raise InvalidArgument(f"`{name}`: tensors need NumPy, which this environment lacks") from error
        raise
