"""What mechanisms compute, as functions of tensors; those for a GPU end in `_on_gpu`."""
