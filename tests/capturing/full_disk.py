"""Run as a program: capture to PATH until no file may grow beyond LIMIT_BYTES, then print the error.

python full_disk.py PATH LIMIT_BYTES
"""

import resource
import signal
import sys

import torch
from torch import nn

from validator.capturing.session import capture
from validator.errors import CaptureError


def main(path, limit_bytes):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit_bytes), int(limit_bytes)))
    model = nn.Identity()
    try:
        with capture(model, path, flush_interval_s=0.0):
            for i in range(1000):
                model(torch.full((5000,), float(i)))
                model(torch.rand(30_000, generator=torch.Generator().manual_seed(i)))
    except CaptureError as error:
        sys.stdout.write(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
