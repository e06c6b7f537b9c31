"""A reproducer: what one sends to the author of a kernel, made of a finding.

`writing.write_reproducer` writes two files into a folder:

- `tensors.safetensors`: what the operator or the module's code is given and its parameters, as the candidate
  had them, what the candidate made of them, and what the oracle makes of them in float64 with the error that
  rounding explains;
- `reproduce.py`: a script of about a page, which needs torch alone. It runs the code on a device, and prints
  how far the stored output and what this device computes now are from the oracle.
"""
