"""The queue between the run and the disk."""

import threading

import pytest
import torch

from validator.capturing.copies import HostCopy, Layout
from validator.capturing.writer import CaptureWriter


class Gate:
    """Stands for a device that has not delivered its copy yet."""

    def __init__(self):
        self.opened = threading.Event()

    def synchronize(self):
        self.opened.wait()


@pytest.fixture
def writer(tmp_path):
    writer = CaptureWriter(tmp_path / "x.h5", rank=0, world_size=1, flush_interval_s=60, queue_bytes=16)
    yield writer
    writer.abandon("the test is over")


def value(ready=None):
    return HostCopy(data=torch.zeros(4), layout=Layout(shape=(4,)), ready=ready)


def test_the_run_waits_only_when_the_queue_is_full(writer):
    gate, put = Gate(), threading.Event()

    def run():
        writer.put("values/a", 0, value(gate))  # The thread takes it and waits for the device.
        writer.put("values/a", 1, value())
        writer.put("values/a", 2, value())
        put.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert not put.wait(0.2)
    gate.opened.set()
    assert put.wait(10)
    thread.join()


def test_a_value_larger_than_the_whole_queue_passes_alone(writer):
    writer.put("values/a", 0, HostCopy(data=torch.zeros(400), layout=Layout(shape=(400,))))
    writer.flush()
    assert writer.values == 1


def test_what_fails_in_the_thread_is_raised_in_the_run(writer):
    class Broken:
        def synchronize(self):
            raise RuntimeError("device lost")

    writer.put("values/a", 0, value(Broken()))
    with pytest.raises(RuntimeError, match="device lost"):
        writer.flush()
    with pytest.raises(RuntimeError, match="device lost"):
        writer.append("layouts", "{}")
